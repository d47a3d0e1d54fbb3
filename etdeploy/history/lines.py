"""Records as JSON lines: out of the history, and into it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from etdeploy.bench.records.stored import RECORD_FILE, parse_record
from etdeploy.core.cancel import checkpoint
from etdeploy.core.errors import UsageError
from etdeploy.core.files.basic import open_regular

if TYPE_CHECKING:
    from etdeploy.history.store.store import Store

STANDARD = "-"


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


def lines_of(contents: Iterable[dict[str, Any]]) -> Iterator[str]:
    """A line for each record."""
    for content in contents:
        yield json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def write_lines(file: Path, lines: Iterable[str]) -> int:
    """Writes lines to a file, all or none, and returns how many there are.

    Raises:
        UsageError: It cannot be written, or is there and has something else in it.
    """
    count = 0
    try:
        _require_ours(file)
        work = file.with_name(f".{file.name}.{secrets.token_hex(6)}")
        try:
            with work.open("x", encoding="utf-8") as stream:
                for line in lines:
                    stream.write(f"{line}\n")
                    count += 1
            work.replace(file)
        finally:
            work.unlink(missing_ok=True)
    except OSError as error:
        what = error.strerror or error
        raise UsageError(f"the records cannot be written: {what}", place=str(file)) from error
    return count


def _require_ours(file: Path) -> None:
    """Refuses to replace what is no file of JSON lines, such as the history itself."""
    if not file.exists():
        return
    with open_regular(file) as stream:
        if stream.read(1) not in (b"", b"{"):
            raise UsageError(
                "the file has something else in it, and stays as it is",
                place=str(file),
                remedy="Name another file.",
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
