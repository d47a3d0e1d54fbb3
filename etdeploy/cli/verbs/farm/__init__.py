"""etdeploy farm, with a module for each of its commands."""

from __future__ import annotations

import click

from etdeploy.cli.main import LazyGroup

# In the order of the help.
COMMANDS: dict[str, str] = {
    "init": "Write a farm.yaml for the devices here, a GitHub workflow and a systemd timer.",
    "plan": "Explain what a night would measure, and what it cannot; change nothing.",
    "run": "Measure every recipe on its devices, and judge the numbers.",
    "status": "Show the devices and what is being measured, live.",
    "report": "Write a night as a page, as Markdown or as JUnit XML.",
    "worker": "Offer the devices of this host to a farm on another.",
    "certificates": "Make certificates for the hosts of a farm.",
    "reserve": "Keep the farm away from a device for a while.",
    "release": "Give a reserved device back.",
    "quarantine": "Set a device aside, or list those that are.",
    "bisect": "Find the change that made a recipe slower.",
    "schema": "Print the JSON Schema of farm.yaml, for completion in editors.",
}


class _Commands(LazyGroup):
    """The commands of the farm."""

    package = __name__
    sentences = COMMANDS
    title = "Commands"
    noun = "farm command"


@click.group(cls=_Commands)
def command() -> None:
    """Measure recipes on a shelf of devices, every night, and judge the numbers.

    A farm.yaml says which recipes, which devices and when: docs/farm.md describes it.
    """
