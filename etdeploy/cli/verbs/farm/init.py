"""etdeploy farm init."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from etdeploy.core import console
from etdeploy.core.commands import quoted

if TYPE_CHECKING:
    from etdeploy.farm.scaffold import FarmSite

_LOCALTIME = Path("/etc/localtime")


@click.command()
@click.argument(
    "folder", default=".", type=click.Path(path_type=Path, file_okay=False), metavar="[FOLDER]"
)
def command(folder: Path) -> None:
    """Write a farm.yaml for the devices that are plugged in, with a GitHub workflow and a timer.

    FOLDER is the current one by default. The workflow is for a self-hosted runner and goes to the
    top of the git repository; the systemd units contain the commands that install them. Files that
    exist already are never overwritten.
    """
    from etdeploy.farm.scaffold import farm_files, write_new

    site = _site(folder.resolve())
    written = write_new(farm_files(site))
    for path in written:
        console.result(str(path))
    plan = f"etdeploy farm plan {quoted(os.path.relpath(site.folder / 'farm.yaml'))}"
    text = "All files exist already." if not written else "Check the farm.yaml, then run:"
    console.message(f"\n{text}  {plan}")


def _site(folder: Path) -> FarmSite:
    from etdeploy.backends.schemes import DEFAULT_RECIPE
    from etdeploy.devices.registry import list_devices
    from etdeploy.farm.scaffold import FarmSite

    return FarmSite(
        folder=folder,
        devices=list_devices(),
        command=_command(),
        repository=_repository(folder),
        timezone=_timezone(),
        recipe=DEFAULT_RECIPE,
    )


def _command() -> Path:
    """This etdeploy: beside the interpreter, where a virtual environment has it."""
    import shutil

    beside = Path(sys.executable).with_name("etdeploy")
    found = shutil.which("etdeploy")
    return beside if beside.is_file() or not found else Path(found)


def _repository(folder: Path) -> Path:
    """The top of the git repository that a folder is in, which may not exist yet."""
    return next((up for up in (folder, *folder.parents) if (up / ".git").exists()), folder)


def _timezone() -> str | None:
    """The IANA name of this machine's time zone, by the link that names its file."""
    from etdeploy.farm.spec.conditions import zone_problem

    name = os.environ.get("TZ", "").removeprefix(":")
    if not name and _LOCALTIME.is_symlink():
        name = str(_LOCALTIME.resolve()).rpartition("/zoneinfo/")[2]
    return name if name and zone_problem(name) is None else None
