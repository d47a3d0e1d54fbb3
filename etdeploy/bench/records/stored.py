"""Run records in their folders: found, read, and their files with them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from etdeploy.bench.records.record import SCHEMA_VERSION, RunRecord
from etdeploy.core.errors import UsageError
from etdeploy.core.files.basic import inside

RECORD_FILE = "record.json"
# Printed beside the keys by `run --json`, and no part of a record: it is true on one machine.
FOLDER_KEY = "folder"
_NO_SUCH_KIND = "union_tag_invalid"
_UPGRADE = "Read it with the etdeploy that wrote it, or a newer one: pip install --upgrade etdeploy"
_MEASURE_AGAIN = (
    "Read it with the etdeploy that wrote it, or measure again: etdeploy run --recipe RECIPE"
)


@dataclass(frozen=True)
class StoredRun:
    """A run record and the folder that it is in now.

    Attributes:
        folder: With the record and all files that it names.
        record: What is in it.
    """

    folder: Path
    record: RunRecord

    @property
    def record_path(self) -> Path:
        """The record's own file."""
        return self.folder / RECORD_FILE

    def path(self, name: str) -> Path | None:
        """Where one of the record's files is here; None for one that the record does not have.

        Raises:
            ValueError: A link leads out of the folder.
        """
        relative = self.record.files.get(name)
        return inside(self.folder, relative) if relative else None

    def printed(self) -> dict[str, Any]:
        """The record as `run --json` prints it, with the folder on this machine."""
        return {**self.record.model_dump(mode="json"), FOLDER_KEY: str(self.folder)}


def load_run(path: Path) -> StoredRun:
    """A record with its folder.

    Args:
        path: Of the folder, or of the record's file in it.

    Raises:
        UsageError: As for `load_record`.
    """
    file = path / RECORD_FILE if path.is_dir() else path
    return StoredRun(file.parent, load_record(file))


def load_record(path: Path) -> RunRecord:
    """Reads a run record."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"the run record cannot be read: {error.strerror or error}", place=str(path)
        ) from error
    return parse_record(content, str(path))


def parse_record(text: str | bytes, place: str) -> RunRecord:
    """The same for the text of a record.

    Args:
        text: JSON.
        place: Where it is from, for messages.

    Raises:
        UsageError: It is not a run record, or has another version.
    """
    content = _content(text, place)
    version = content["schema_version"]
    if version != SCHEMA_VERSION:
        raise UsageError(
            f"the run record has version {version}; this etdeploy reads version {SCHEMA_VERSION}",
            place=place,
            remedy=_UPGRADE if version > SCHEMA_VERSION else _MEASURE_AGAIN,
        )
    try:
        return RunRecord.model_validate_json(json.dumps(content))
    except ValidationError as error:
        raise _unreadable(place, error) from error


def is_readable(path: Path) -> bool:
    """Whether `load_record` can read it."""
    try:
        load_record(path)
    except UsageError:
        return False
    return True


def _content(text: str | bytes, place: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"this is not a run record: {error}", place=place) from error
    version = content.get("schema_version") if isinstance(content, dict) else None
    if type(version) is not int or version < 1:
        raise UsageError("this is not a run record: it has no schema_version", place=place)
    return {key: value for key, value in content.items() if key != FOLDER_KEY}


def _key(place: tuple[str | int, ...], problem: str) -> str:
    """The key as the record has it: pydantic names the kind of a workload beside it."""
    parts = [part for i, part in enumerate(place) if (i, place[0]) != (1, "workload")]
    return ".".join(map(str, [*parts, *(["kind"] if problem == _NO_SUCH_KIND else [])]))


def _unreadable(place: str, error: ValidationError) -> UsageError:
    first = error.errors()[0]
    key = _key(first["loc"], first["type"])
    if first["type"] in ("extra_forbidden", "literal_error", _NO_SUCH_KIND):
        what = f"this etdeploy does not know the run record's value of {key}"
        return UsageError(what, place=place, remedy=_UPGRADE)
    return UsageError(f"the run record is not complete: {key}: {first['msg']}", place=place)
