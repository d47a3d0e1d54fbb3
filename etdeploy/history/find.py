"""Runs by name, also those whose folder was moved: the history has their records whole."""

from __future__ import annotations

import json
from pathlib import Path

from etdeploy.bench.records.find import LAST, find_run
from etdeploy.bench.records.stored import StoredRun, parse_record
from etdeploy.core import console
from etdeploy.core.errors import EtdeployError, StoreError, UsageError
from etdeploy.history.place import Place, place_of

# As for runs in a folder: shorter ends of ids are more likely a mistake than meant.
_SHORTEST = 4


def find_kept(text: str, output: Path, place: Place | None) -> StoredRun:
    """The run that `text` names, in the output folder or else in the history.

    Args:
        text: As for `find_run`.
        output: The folder for run records.
        place: The history; None without one.

    Returns:
        The run. If only its record is left, its folder is one in `output` that does not exist, and
        a warning says so.

    Raises:
        UsageError: There is no such run, or several fit.
    """
    try:
        return find_run(text, output)
    except UsageError:
        if text == LAST or len(text) < _SHORTEST or place is None:
            raise
        found = _in_history(text, output, place)
        if found is None:
            raise
        return found


def find_anywhere(text: str, output: Path) -> StoredRun:
    """The same with the user's history, which is looked for only if the folder is gone.

    Raises:
        UsageError: There is no such run, or several fit.
    """
    try:
        return find_run(text, output)
    except UsageError:
        try:
            place = place_of()
        except StoreError as error:
            console.warn(f"the run was not looked for in the history: {error}")
            place = None
        return find_kept(text, output, place)


def _in_history(text: str, output: Path, place: Place) -> StoredRun | None:
    if place.file and not place.file.is_file():
        return None
    from etdeploy.history.store.store import open_store

    try:
        with open_store(place, read_only=True) as store:
            ids = [name for name in store.ids(text) if text == name or name.endswith(text)]
            ids = [text] if text in ids else ids
            content = store.content(ids[0]) if len(ids) == 1 else None
    except EtdeployError as error:
        console.warn(f"the run was not looked for in the history: {error}")
        return None
    if len(ids) > 1:
        raise UsageError(
            f"{len(ids)} runs in the history have an id that ends with {text!r}",
            place=place.shown,
            remedy="Name one of them:\n" + "\n".join(ids),
        )
    if content is None:
        return None
    record = parse_record(json.dumps(content), f"{place.shown}: {ids[0]}")
    console.warn(
        f"only the record of {record.run_id} is left, in the history: its folder is not in "
        f"{output}, and with it the outputs and the trace"
    )
    return StoredRun(output / record.run_id, record)
