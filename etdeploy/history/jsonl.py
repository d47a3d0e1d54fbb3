"""Records as JSON lines: exports and imports of the history."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO

from etdeploy.bench.records.stored import RECORD_FILE, parse_record
from etdeploy.core.cancel import checkpoint
from etdeploy.core.errors import UsageError
from etdeploy.core.files.basic import annotate_oserror, find_disk_full, open_regular
from etdeploy.core.files.delivery import ResultFile

if TYPE_CHECKING:
    from etdeploy.history.store.store import Store

STANDARD = "-"
# Of a record in a file that an export may replace, in bytes.
_LONGEST_LINE = 1 << 26


@dataclass
class Imported:
    """What became of the lines.

    Attributes:
        new: Records that were not there.
        known: Records that were.
        bad: Why a line is none, each with its place.
    """

    new: int = 0
    known: int = 0
    bad: list[str] = field(default_factory=list)


def to_lines(contents: Iterable[dict[str, Any]]) -> Iterator[str]:
    """A line for each record."""
    for content in contents:
        yield json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def write_lines(file: Path, lines: Iterable[str]) -> int:
    """Writes lines to a file, all or none, and returns how many there are.

    Raises:
        UsageError: It cannot be written, or is there and has something else in it.
        OSError: The disk is full.
        Interrupted: The export was stopped.
    """
    count = 0
    _FILE.require_free(file)
    final = file.resolve()
    work = final.with_name(f".{final.name}.{secrets.token_hex(6)}")
    try:
        with annotate_oserror(final), work.open("x", encoding="utf-8") as stream:
            for line in lines:
                checkpoint()
                stream.write(f"{line}\n")
                count += 1
        work.replace(final)
    except OSError as error:
        if find_disk_full(error):
            raise
        raise _FILE.unwritable(file, error) from error
    finally:
        work.unlink(missing_ok=True)
    return count


def _has_records(stream: BinaryIO) -> bool:
    """Whether a file begins with a record in a line, as an earlier export does."""
    try:
        content = json.loads(stream.readline(_LONGEST_LINE))
    except (ValueError, RecursionError):
        return False
    return isinstance(content, dict) and {"schema_version", "run_id"} <= set(content)


_FILE = ResultFile(
    "list of records",
    "a list of records",
    _has_records,
    "records.jsonl",
    option="etdeploy history export",
    standard="etdeploy history export -",
)


def import_all(store: Store, names: Iterable[str], standard_input: IO[bytes]) -> Imported:
    """Imports records; those that are there already are left as they are.

    Args:
        store: Where they go.
        names: Files of JSON lines, runs' folders or records, or `-`.
        standard_input: For `-`.

    Raises:
        StoreError: The history cannot be used; what was imported before stays.
        Interrupted: The same.
    """
    done = Imported()
    for name in names:
        try:
            for place, text in _records_in(name, standard_input):
                checkpoint()
                _import(store, place, text, done)
        except UsageError as error:
            done.bad.append(f"{error.place}: {error.message}")
    return done


def _import(store: Store, place: str, text: bytes, done: Imported) -> None:
    try:
        record = parse_record(text, place)
    except UsageError as error:
        done.bad.append(f"{error.place}: {error.message}")
        return
    if store.add(record):
        done.new += 1
    else:
        done.known += 1


def _records_in(name: str, standard_input: IO[bytes]) -> Iterator[tuple[str, bytes]]:
    """The texts of the records that a file has, each with its place; UsageError without one."""
    if name == STANDARD:
        yield from _lines("standard input", standard_input)
        return
    path = Path(name)
    try:
        path = path / RECORD_FILE if path.is_dir() else path
        with open_regular(path) as stream:
            first = stream.readline()
            stream.seek(0)
            if _is_json(first):
                yield from _lines(str(path), stream)
            else:  # a record is written over many lines
                yield str(path), stream.read()
    except (OSError, ValueError) as error:
        what = (error.strerror if isinstance(error, OSError) else None) or error
        raise UsageError(f"this cannot be imported: {what}", place=name) from error


def _lines(name: str, stream: IO[bytes]) -> Iterator[tuple[str, bytes]]:
    for number, line in enumerate(stream, 1):
        if line.strip():
            yield f"{name}:{number}", line


def _is_json(line: bytes) -> bool:
    """Whether a line is complete; a file that begins with a broken one has lines, too."""
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return len(line.strip()) > 1
    return True
