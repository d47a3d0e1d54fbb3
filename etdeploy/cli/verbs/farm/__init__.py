"""etdeploy farm: the table of its commands."""

from __future__ import annotations

import click

from etdeploy.cli.main import LazyGroup

COMMANDS: dict[str, tuple[str, str]] = {
    "init": (
        "setup",
        "Write a farm.yaml for the connected devices, a GitHub workflow and a systemd timer.",
    ),
    "plan": ("nights", "Explain what a night would measure, and what it cannot; change nothing."),
    "run": ("nights", "Measure every recipe on its devices, and judge the numbers."),
    "status": ("nights", "Show the devices and what is being measured, live."),
    "report": ("nights", "Write a night as a page, as Markdown or as JUnit XML."),
    "worker": ("setup", "Offer the devices of this host to a farm on another host."),
    "certificates": ("setup", "Create certificates for the hosts of a farm."),
    "reserve": ("devices", "Keep the farm away from a device for a while."),
    "release": ("devices", "Give a reserved device back."),
    "quarantine": ("devices", "Quarantine a device, or list quarantined devices."),
    "bisect": ("bisect", "Find the change that made a recipe slower."),
    "schema": ("setup", "Print the JSON Schema of farm.yaml, for completion in editors."),
}


class _Commands(LazyGroup):
    """The commands of the farm."""

    package = __name__
    table = COMMANDS
    title = "Commands"
    noun = "farm command"


@click.group(cls=_Commands)
def farm() -> None:
    """Measure recipes on a shelf of devices, every night, and judge the numbers.

    A farm.yaml says which recipes, which devices and when: docs/farm.md describes it.
    """
