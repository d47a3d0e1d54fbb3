"""Keeps the record of every run in the history. A history that fails never fails a run."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from etdeploy.core import console
from etdeploy.core.commands import quoted
from etdeploy.core.errors import EtdeployError, Interrupted, UsageError
from etdeploy.core.files.basic import read_text, write_atomic
from etdeploy.core.files.locks import short_lock
from etdeploy.history.location import HistoryLocation, data_folder, place_of

if TYPE_CHECKING:
    from etdeploy.bench.records.stored import StoredRun


# A run brings in at most so many that waited, so that it does not wait for them; `etdeploy history`
# brings in all.
_AT_ONCE = 50
_lock = threading.Lock()
# What was said already, and which histories failed, in this process: jobs of one run are told once,
# and none of them waits for a server again.
_said: set[str] = set()
_failed: set[str] = set()


def keep(run: StoredRun) -> None:
    """Keeps a run's record, and those that waited for the history.

    If that fails, a warning says why once, and the record waits in its own file.

    Raises:
        Interrupted: The run was stopped; the record waits.
    """
    with _lock:
        place = None
        try:
            place = place_of()
            if place is None:
                return
            if place.shown in _failed:
                _wait(run, place)
                return
            _keep(run, place)
        except Interrupted:
            if place:
                _wait(run, place)
            raise
        except Exception as error:
            _refused(run, place, error)


def bring_in(place: HistoryLocation, at_most: int | None = None) -> int:
    """Imports the records that wait for a history, and returns how many were new.

    Records that are gone, or cannot be read, are taken off the list with a warning.

    Raises:
        StoreError: The history cannot be used; what is not imported still waits.
        BuildError: Its disk is full.
    """
    entries = waiting(place)[:at_most]
    if not entries:
        return 0
    from etdeploy.bench.records.stored import load_run
    from etdeploy.history.store.store import open_store

    done, new = [], 0
    try:
        with open_store(place) as store:
            for entry in entries:
                try:
                    run = load_run(entry.record)
                except UsageError as error:
                    console.warn(f"a record that waited for the history is not in it: {error}")
                else:
                    new += store.add(run.record)
                done.append(entry)
    finally:
        _forget(done)
    return new


def _keep(run: StoredRun, place: HistoryLocation) -> None:
    from etdeploy.history.store.store import open_store

    with open_store(place) as store:
        store.add(run.record)
    bring_in(place, _AT_ONCE)


def _refused(run: StoredRun, place: HistoryLocation | None, error: Exception) -> None:
    """Says why, and notes the record for later."""
    bug = not isinstance(error, EtdeployError)
    why = f"{type(error).__name__}: {error}" if bug else str(error)
    _say(f"the history does not have this run yet: {why}")
    if place:
        _failed.add(place.shown)
        _wait(run, place)
    else:
        _say(by_hand(run.record_path))


def _wait(run: StoredRun, place: HistoryLocation) -> None:
    try:
        note(run.record_path, place)
    except OSError as error:
        what = error.strerror or error
        _say(f"nor can it be noted for later: {what}\n  {by_hand(run.record_path)}")
    else:
        _say("Its record is kept as a file; the next run, or etdeploy history, imports it.")


def by_hand(record: Path) -> str:
    """How to import a record that is in no list."""
    return f"Its record is a file; import it with: etdeploy history import {quoted(record)}"


def _forget(done: Sequence[Pending]) -> None:
    if not done:
        return
    try:
        forget(done)
    except OSError as error:  # they are imported again, which changes nothing
        _say(f"the list of records that wait cannot be written: {error.strerror or error}")


def _say(text: str) -> None:
    if text not in _said:
        _said.add(text)
        console.warn(text)


_FILE = "pending.jsonl"


@dataclass(frozen=True)
class Pending:
    """A record that waits for a history: its file, and the history that it is for."""

    record: Path
    store: str


def note(record: Path, place: HistoryLocation) -> None:
    """Adds a record to the list."""
    with _locked() as file, file.open("a", encoding="utf-8") as stream:
        stream.write(_line(Pending(record.absolute(), place.shown)))


def waiting(place: HistoryLocation) -> list[Pending]:
    """The records that wait for this history."""
    return [entry for entry in _entries() if entry.store == place.shown]


def forget(done: Iterable[Pending]) -> None:
    """Takes records off the list, and leaves alone what was added meanwhile."""
    with _locked() as file:
        gone = set(done)
        left = [entry for entry in _entries() if entry not in gone]
        if left:
            write_atomic(file, "".join(map(_line, left)))
        else:
            file.unlink(missing_ok=True)


def _entries() -> Iterator[Pending]:
    for line in read_text(data_folder() / _FILE).splitlines():
        try:
            content = json.loads(line)
            yield Pending(Path(content["record"]), content["store"])
        except (ValueError, KeyError, TypeError):  # a line that a full disk cut off
            continue


def _line(entry: Pending) -> str:
    return json.dumps({"record": str(entry.record), "store": entry.store}) + "\n"


@contextmanager
def _locked() -> Iterator[Path]:
    file = data_folder() / _FILE
    with short_lock(file.with_name(f"{_FILE}.lock")):
        yield file
