"""etdeploy devices."""

from __future__ import annotations

import click

from etdeploy.cli.options import json_option
from etdeploy.core import console

_COLUMNS = ("device", "state", "target", "model", "SoC", "OS", "battery", "temp.", "connection")


@click.command()
@json_option
def command(as_json: bool) -> None:
    """List the devices that can be reached, with what they say of themselves."""
    from etdeploy.core.workspace import Workspace
    from etdeploy.devices.registry import list_devices

    found = list_devices(Workspace.default())
    if as_json:
        console.result_json([device.model_dump(mode="json") for device in found])
        return
    rows = []
    for device in found:
        facts, state = device.facts, device.device_state
        rows.append(
            (
                device.name,
                device.status,
                facts and facts.target,
                facts and facts.model,
                facts and facts.soc,
                facts and facts.os,
                _unit(state and state.battery_percent, " %"),
                _unit(state and state.battery_celsius, " C"),
                facts and facts.connection,
            )
        )
    console.result(console.table(_COLUMNS, rows, right=("battery", "temp.")))
    for device in found:
        if device.remedy:
            console.message(f"\n{device.name}: {device.remedy}")
    if all(not device.name.startswith("android") for device in found):
        console.message(
            "\nNo Android device is connected. Turn on USB debugging and plug it in,\n"
            "or name one on the network: --device android:HOST:PORT"
        )


def _unit(value: float | None, unit: str) -> str | None:
    return None if value is None else f"{value:g}{unit}"
