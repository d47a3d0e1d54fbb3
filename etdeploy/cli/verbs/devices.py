"""etdeploy devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from etdeploy.cli.options import json_option
from etdeploy.core import console

if TYPE_CHECKING:
    from etdeploy.devices.base import DeviceListing

_COLUMNS = ("device", "state", "target", "model", "SoC", "OS", "battery", "temp.", "connection")


@click.command()
@json_option
def command(as_json: bool) -> None:
    """List the devices that can be reached, with what they report."""
    from etdeploy.cache.workspace import Workspace
    from etdeploy.devices.registry import list_devices

    found = list_devices(Workspace.default())
    if as_json:
        console.result_json([device.model_dump(mode="json") for device in found])
        return
    rows = [_row(device) for device in found]
    console.result(console.table(_COLUMNS, rows, right=("battery", "temp."), width=console.width()))
    for device in found:
        if device.remedy:
            console.message(f"\n{device.name}: {device.remedy}")
    if all(device.kind != "android" for device in found):
        console.message(
            "\nNo Android device is connected. Turn on USB debugging and plug the phone in,\n"
            "or name a device on the network: --device android:HOST:PORT, --device ssh:HOST"
        )


def _row(device: DeviceListing) -> tuple[object, ...]:
    from etdeploy.devices.base import DeviceFacts, DeviceState

    facts = device.facts or DeviceFacts(name=device.name, kind=device.kind, target="-")
    state = device.device_state or DeviceState()
    return (
        device.name,
        device.status,
        facts.target,
        facts.model,
        facts.soc,
        facts.os,
        _unit(state.battery_percent, " %"),
        _unit(state.battery_celsius, " C"),
        device.connection or facts.connection,
    )


def _unit(value: float | None, unit: str) -> str | None:
    return None if value is None else f"{value:g}{unit}"
