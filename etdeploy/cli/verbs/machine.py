"""etdeploy devices, etdeploy doctor and etdeploy completion."""

from __future__ import annotations

from textwrap import indent
from typing import TYPE_CHECKING

import click
from click.shell_completion import get_completion_class

from etdeploy.cli.options import options
from etdeploy.core import console

if TYPE_CHECKING:
    from etdeploy.devices.base import DeviceListing

_COLUMNS = ("device", "state", "target", "model", "SoC", "OS", "battery", "temp.", "connection")
_MARK = {"ok": "ok", "optional": "--", "missing": "!!"}
_WHERE = {
    "bash": 'eval "$(etdeploy completion bash)"         # in ~/.bashrc',
    "zsh": 'eval "$(etdeploy completion zsh)"          # in ~/.zshrc',
    "fish": "etdeploy completion fish > ~/.config/fish/completions/etdeploy.fish",
}


@click.command()
@options("json")
def devices(as_json: bool) -> None:
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


@click.command()
@options("json")
def doctor(as_json: bool) -> None:
    """Check what is installed, and show how to install what is missing.

    The exit code is 4 if a run on this machine needs something that is missing.
    """
    from etdeploy.core.errors import BuildError
    from etdeploy.doctor import examine

    findings = examine()
    if as_json:
        console.result_json([f.model_dump(mode="json") for f in findings])
    else:
        rows = [(_MARK[f.state], f.name, f.found or "-", f.needed_for) for f in findings]
        console.result(
            console.table(("", "what", "found", "needed for"), rows, width=console.width())
        )
        for finding in findings:
            if finding.state != "ok" and finding.remedy:
                console.result(f"\n{finding.name}\n{indent(finding.remedy, '    ')}")
    missing = [f.name for f in findings if f.state == "missing"]
    if missing:
        raise BuildError(
            f"a run on this machine needs {', '.join(missing)}, which is not installed",
            remedy="Run the commands above, then run `etdeploy doctor` again.",
        )


@click.command(epilog="bash: " + _WHERE["bash"])
@click.argument("shell", type=click.Choice(list(_WHERE)))
def completion(shell: str) -> None:
    """Print the completion script for a shell."""
    from etdeploy.cli.main import cli

    maker = get_completion_class(shell)
    if maker is None:  # pragma: no cover - click has all three
        raise click.ClickException(f"click has no completion for {shell}")
    console.message(f"Enable it with: {_WHERE[shell]}")
    console.result(maker(cli, {}, "etdeploy", "_ETDEPLOY_COMPLETE").source())
