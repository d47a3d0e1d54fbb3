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
from etdeploy.history.location import HistoryLocation, data_folder, resolve_location

if TYPE_CHECKING:
    from etdeploy.bench.records.stored import StoredRun


# A run brings in at most so many that waited, so that it does not wait for them; `etdeploy history`
# brings in all.
_AT_ONCE = 50
_lock = threading.Lock()
# Warnings printed and histories that failed in this process: jobs of one run warn once,
# and none of them waits for a server again.
_warned: set[str] = set()
_failed: set[str] = set()


def save_run(run: StoredRun) -> None:
    """Keeps a run's record, and those that waited for the history.

    If that fails, a warning says why once, and the record waits in its own file.

    Raises:
        Interrupted: The run was stopped; the record waits.
    """
    with _lock:
        place = None
        try:
            place = resolve_location()
            if place is None:
                return
            if place.shown in _failed:
                _queue(run, place)
                return
            _save(run, place)
        except Interrupted:
            if place:
                _queue(run, place)
            raise
        except Exception as error:
            _report_failure(run, place, error)


def import_pending(place: HistoryLocation, at_most: int | None = None) -> int:
    """Imports the records that wait for a history, and returns how many were new.

    Records that are gone, or cannot be read, are taken off the list with a warning.

    Raises:
        StoreError: The history cannot be used; what is not imported still waits.
        BuildError: Its disk is full.
    """
    entries = pending_records(place)[:at_most]
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


def _save(run: StoredRun, place: HistoryLocation) -> None:
    from etdeploy.history.store.store import open_store

    with open_store(place) as store:
        store.add(run.record)
    import_pending(place, _AT_ONCE)


def _report_failure(run: StoredRun, place: HistoryLocation | None, error: Exception) -> None:
    """Says why, and notes the record for later."""
    bug = not isinstance(error, EtdeployError)
    why = f"{type(error).__name__}: {error}" if bug else str(error)
    _warn_once(f"the history does not have this run yet: {why}")
    if place:
        _failed.add(place.shown)
        _queue(run, place)
    else:
        _warn_once(import_command(run.record_path))


def _queue(run: StoredRun, place: HistoryLocation) -> None:
    try:
        add_pending(run.record_path, place)
    except OSError as error:
        what = error.strerror or error
        _warn_once(f"nor can it be noted for later: {what}\n  {import_command(run.record_path)}")
    else:
        _warn_once("Its record is kept as a file; the next run, or etdeploy history, imports it.")


def import_command(record: Path) -> str:
    """How to import a record that is in no list."""
    return f"Its record is a file; import it with: etdeploy history import {quoted(record)}"


def _forget(done: Sequence[PendingRecord]) -> None:
    if not done:
        return
    try:
        remove_pending(done)
    except OSError as error:  # they are imported again, which changes nothing
        _warn_once(f"the list of records that wait cannot be written: {error.strerror or error}")


def _warn_once(text: str) -> None:
    if text not in _warned:
        _warned.add(text)
        console.warn(text)


_FILE = "pending.jsonl"


@dataclass(frozen=True)
class PendingRecord:
    """A record that waits for a history: its file, and the history that it is for."""

    record: Path
    store: str


def add_pending(record: Path, place: HistoryLocation) -> None:
    """Adds a record to the list."""
    with _locked() as file, file.open("a", encoding="utf-8") as stream:
        stream.write(_line(PendingRecord(record.absolute(), place.shown)))


def pending_records(place: HistoryLocation) -> list[PendingRecord]:
    """The records that wait for this history."""
    return [entry for entry in _entries() if entry.store == place.shown]


def remove_pending(done: Iterable[PendingRecord]) -> None:
    """Takes records off the list, and leaves alone what was added meanwhile."""
    with _locked() as file:
        gone = set(done)
        left = [entry for entry in _entries() if entry not in gone]
        if left:
            write_atomic(file, "".join(map(_line, left)))
        else:
            file.unlink(missing_ok=True)


def _entries() -> Iterator[PendingRecord]:
    for line in read_text(data_folder() / _FILE).splitlines():
        try:
            content = json.loads(line)
            yield PendingRecord(Path(content["record"]), content["store"])
        except (ValueError, KeyError, TypeError):  # a line that a full disk cut off
            continue


def _line(entry: PendingRecord) -> str:
    return json.dumps({"record": str(entry.record), "store": entry.store}) + "\n"


@contextmanager
def _locked() -> Iterator[Path]:
    file = data_folder() / _FILE
    with short_lock(file.with_name(f"{_FILE}.lock")):
        yield file
