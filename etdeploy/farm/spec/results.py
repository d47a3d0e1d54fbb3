"""The folder for a farm's records: it has a mark, and nobody else's files are in it."""

from __future__ import annotations

from pathlib import Path

from etdeploy.core.errors import UsageError
from etdeploy.core.files.basic import not_regular, write_atomic
from etdeploy.core.files.delivery import require_writable
from etdeploy.core.files.disk import no_room_in

MARK = ".etdeploy-farm"
_TEXT = "The results of a farm; etdeploy farm writes a folder here for each night.\n"
_IGNORE = ".gitignore"
_SHOWN = 3


def results_problem(folder: Path, farm: Path) -> str | None:
    """Why a folder cannot be that of a farm's results; None if it can.

    Args:
        folder: Absolute; it need not exist.
        farm: The folder of farm.yaml.
    """
    if farm.resolve().is_relative_to(folder.resolve()):
        return "is or contains the folder of this file"
    try:
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        if not existing.is_dir():
            what = not_regular(existing) or "a file"
            return f"is {what}" if existing == folder else f"would be below {existing}, {what}"
        if existing != folder or (folder / MARK).exists():
            return None
        names = sorted(path.name for path in folder.iterdir() if path.name != _IGNORE)
    except OSError as error:
        return f"cannot be used: {error.strerror}"
    if not names:
        return None
    more = ", ..." if len(names) > _SHOWN else ""
    return f"contains what no farm wrote: {', '.join(names[:_SHOWN])}{more}"


def prepare_results(folder: Path, farm: Path, option: str = "") -> None:
    """Makes the folder and marks it; a night calls this before it writes there.

    Args:
        folder: Absolute.
        farm: The folder of farm.yaml.
        option: Of the command line that named the folder; empty where farm.yaml did.

    Raises:
        UsageError: It cannot be that of a farm's results, or cannot be written to.
        OSError: The disk is full.
    """
    problem = results_problem(folder, farm)
    if problem is None:
        try:
            require_writable(folder)
            folder.mkdir(parents=True, exist_ok=True)
            if not (folder / MARK).exists():
                write_atomic(folder / MARK, _TEXT)
                if not (folder / _IGNORE).exists():
                    # Else the recipes' commits would count as changed from the second night on.
                    write_atomic(folder / _IGNORE, "*\n")
        except OSError as error:
            if no_room_in(error):
                raise
            problem = f"cannot be written to: {error.strerror or error}"
    if problem:
        raise UsageError(
            f"the folder for results {problem}",
            place=str(folder),
            remedy=f"Name a folder of its own: {option} FOLDER"
            if option
            else "Name a folder of its own in farm.yaml: results: FOLDER",
        )
