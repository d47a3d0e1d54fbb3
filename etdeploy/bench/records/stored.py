"""Run records in their folders: found, read in every version, and their files with them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path, PurePath
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
    """Reads a run record of any version as one of the newest.

    Raises:
        UsageError: The file cannot be read, is not a run record, or a newer etdeploy wrote it.
    """
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
        UsageError: It is not a run record, or a newer etdeploy wrote it.
    """
    content = _content(text, place)
    version = content["schema_version"]
    if version > SCHEMA_VERSION:
        raise UsageError(
            f"the run record has version {version}; this etdeploy reads versions 1 to "
            f"{SCHEMA_VERSION}",
            place=place,
            remedy=_UPGRADE,
        )
    try:
        return RunRecord.model_validate_json(json.dumps(_newest(content)))
    except (ValidationError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(place, error) from error


def is_readable(path: Path) -> bool:
    """Whether `load_record` can read it."""
    try:
        load_record(path)
    except UsageError:
        return False
    return True


def _newest(content: dict[str, Any]) -> dict[str, Any]:
    """A record of any version with the keys of the newest.

    Raises:
        KeyError, TypeError, AttributeError: It is not complete.
    """
    if content["schema_version"] == 1:
        content = converted(content)
    # Nothing of version 2 was simulated, which is the default of the key that version 3 added. That
    # of version 4, a partition's `settings`, is empty where they were not read. What version 5
    # added was not measured before, and version 6 added another kind of workload,
    # of which version 7 traces the methods. Before version 8 no app ran anything,
    # and before version 9 texts were compared up to the first token that differed.
    return {**content, "schema_version": SCHEMA_VERSION}


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


def _unreadable(place: str, error: Exception) -> UsageError:
    if not isinstance(error, ValidationError):
        return UsageError(f"the run record is not complete: {error!r}", place=place)
    first = error.errors()[0]
    key = _key(first["loc"], first["type"])
    if first["type"] in ("extra_forbidden", "literal_error", _NO_SUCH_KIND):
        what = f"this etdeploy does not know the run record's value of {key}"
        return UsageError(what, place=place, remedy=_UPGRADE)
    return UsageError(f"the run record is not complete: {key}: {first['msg']}", place=place)


_OF_THE_WORKLOAD = ("latency_ms", "first_inference_ms", "outputs", "outputs_compared")


def converted(content: dict[str, Any]) -> dict[str, Any]:
    """The same run with the keys of version 2.

    Files outside the record's folder, the program and the ETRecord in the cache, are left out.

    Raises:
        KeyError: A key is missing.
        TypeError, AttributeError: A value has another type.
    """
    kept = {key: value for key, value in content.items() if key not in _OF_THE_WORKLOAD}
    moved = {key: content[key] for key in _OF_THE_WORKLOAD}
    return kept | {
        "schema_version": 2,
        "workload": {"kind": "inference", **moved},
        "files": _files(content["files"]),
        "recipe": _recipe(content["recipe"]),
    }


def _files(files: dict[str, str]) -> dict[str, str]:
    """Relative to the folder that the record was written in; it may be another one now."""
    folder = PurePath(files["record"]).parent
    return {
        name: PurePath(path).relative_to(folder).as_posix()
        for name, path in files.items()
        if PurePath(path).is_relative_to(folder)
    }


def _recipe(recipe: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in recipe.items() if key != "path"}
    files = {PurePath(path).name: sha256 for path, sha256 in recipe["files"].items()}
    return kept | {"file": PurePath(recipe["path"]).name, "files": files}
