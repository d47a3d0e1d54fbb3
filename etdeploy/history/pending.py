"""Records that could not be kept in the history: noted in a list, and imported when it works again.

The list has a line of JSON for each, so that lines of several processes do not mix.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from etdeploy.core.files.basic import read_text, write_atomic
from etdeploy.core.files.locks import briefly
from etdeploy.history.place import Place, data_folder

_FILE = "pending.jsonl"


@dataclass(frozen=True)
class Pending:
    """A record that waits for a history: its file, and the history that it is for."""

    record: Path
    store: str


def note(record: Path, place: Place) -> None:
    """Adds a record to the list.

    Raises:
        OSError: The list cannot be written.
    """
    with _locked() as file, file.open("a", encoding="utf-8") as stream:
        stream.write(_line(Pending(record.absolute(), place.shown)))


def waiting(place: Place) -> list[Pending]:
    """The records that wait for this history."""
    return [entry for entry in _entries() if entry.store == place.shown]


def forget(done: Iterable[Pending]) -> None:
    """Takes records off the list, and leaves alone what was added meanwhile.

    Raises:
        OSError: The list cannot be written.
    """
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
    with briefly(file.with_name(f"{_FILE}.lock")):
        yield file
