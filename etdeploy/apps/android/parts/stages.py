"""Stages of a build whose results stay until what they are made from changes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from etdeploy.core.errors import BuildError
from etdeploy.core.files.basic import folder_files, new_folder, write_atomic
from etdeploy.core.hashing import digest_json, stamp
from etdeploy.export.digests import FileDigests

_KEY = ".key.json"


class Stages:
    """The stages of one build.

    Args:
        work: Their folder, with a folder for each stage.
        deciding: A digest of what decides how they are made, besides their inputs: other code
            makes all of them again.
    """

    def __init__(self, work: Path, deciding: str) -> None:
        self.work = work
        self._deciding = deciding
        self._digests = FileDigests(work / "digests.json")

    def digest(self, path: Path) -> str:
        """The SHA-256 of a file, read again only if it was touched.

        Raises:
            BuildError: It cannot be read.
        """
        found = self._digests.of(path)
        if found is None:
            raise BuildError(f"{path} cannot be read", remedy="Generate the project again.")
        return found

    def digests(self, folder: Path) -> dict[str, str]:
        """The SHA-256 of each file below a folder, by its path there; empty for no folder."""
        names = (name for name in folder_files(folder) if name != _KEY)
        return {name: self.digest(folder / name) for name in names}

    def obtain(self, name: str, inputs: Mapping[str, object], make: Callable[[Path], None]) -> Path:
        """The folder of a stage, made again unless its inputs are those of the last time.

        Args:
            name: Of the stage.
            inputs: What it is made from, as JSON.
            make: Fills an empty folder.
        """
        folder = self.work / name
        key = digest_json({"deciding": self._deciding, "inputs": inputs})
        if not _is_sound(folder, key):
            with new_folder(folder) as made:
                make(made)
                files = {file: list(stamp(made / file)[:2]) for file in folder_files(made)}
                write_atomic(made / _KEY, json.dumps({"key": key, "files": files}))
        return folder

    def save(self) -> None:
        """Keeps the digests of files for the next time."""
        self._digests.save()


def _is_sound(folder: Path, key: str) -> bool:
    """Whether a stage was made with that key, and nothing touched its files since."""
    try:
        known = json.loads((folder / _KEY).read_bytes())
        return known["key"] == key and all(
            list(stamp(folder / name)[:2]) == seen for name, seen in known["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
