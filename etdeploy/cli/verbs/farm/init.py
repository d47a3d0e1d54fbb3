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
    from etdeploy.farm.scaffold import Here

_LOCALTIME = Path("/etc/localtime")


@click.command()
@click.argument(
    "folder", default=".", type=click.Path(path_type=Path, file_okay=False), metavar="[FOLDER]"
)
def command(folder: Path) -> None:
    """Write a farm.yaml for the devices that are plugged in, with a GitHub workflow and a timer.

    FOLDER is the current one by default. The workflow is for a runner of your own, and goes to the
    top of the git repository; the systemd units say at their top how they are installed. A file
    that exists already is never written over.
    """
    from etdeploy.farm.scaffold import farm_files, write_new

    here = _here(folder.resolve())
    written = write_new(farm_files(here))
    for path in written:
        console.result(str(path))
    plan = f"etdeploy farm plan {quoted(os.path.relpath(here.folder / 'farm.yaml'))}"
    said = "Everything is there already." if not written else "Look it through, then:"
    console.message(f"\n{said}  {plan}")


def _here(folder: Path) -> Here:
    from etdeploy.backends.schemes import DEFAULT_RECIPE
    from etdeploy.devices.registry import list_devices
    from etdeploy.farm.scaffold import Here

    return Here(
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
