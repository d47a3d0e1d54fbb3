"""Writes the first files of a farm, and over nobody else's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from etdeploy.core.errors import UsageError
from etdeploy.core.files.basic import write_atomic
from etdeploy.core.files.disk import no_room_in


def write_new(files: Mapping[Path, str]) -> list[Path]:
    """Writes files that are not there yet; those that are there just so are left.

    Args:
        files: Texts by absolute paths.

    Returns:
        What was written.

    Raises:
        UsageError: One is there with another content, or cannot be written; none was changed then.
        OSError: The disk is full.
    """
    try:
        new = [path for path, text in files.items() if not _is_there(path, text)]
        for path in new:
            path.parent.mkdir(parents=True, exist_ok=True)
        for path in new:
            write_atomic(path, files[path])
    except OSError as error:
        if no_room_in(error):
            raise
        raise UsageError(
            f"the files of a farm cannot be written: {error.strerror or error}",
            place=error.filename and str(error.filename),
            remedy="Name another folder: etdeploy farm init FOLDER",
        ) from error
    return new


def _is_there(path: Path, text: str) -> bool:
    """Whether a file is there with this text.

    Raises:
        UsageError: Something else is there.
    """
    if not os.path.lexists(path):
        return False
    if path.is_file() and path.read_bytes() == text.encode():
        return True
    raise UsageError(
        "this exists already; nothing was written",
        place=str(path),
        remedy="Rename or remove it if you do not need it, or name another folder: "
        "etdeploy farm init FOLDER",
    )
