"""A file of lines that wait for the database; what was added is on the disk."""

from __future__ import annotations

import os
from pathlib import Path

from etdeploy.core.errors import BuildError
from etdeploy.core.files.disk import no_room_in
from etdeploy.core.text.shell import quoted


class Spool:
    """The file; it is there only while something waits.

    A last line that was not written whole, as where a machine lost its power, is cut off.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._size = _cut(path)

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return self._size == 0

    def lines(self, offset: int = 0) -> list[tuple[str, int]]:
        """The lines from an offset on, each with the offset of what follows it, in bytes."""
        if self.is_empty:
            return []
        with self.path.open("rb") as stream:
            stream.seek(offset)
            content = stream.read(self._size - offset)
        found = []
        for line in content.splitlines(keepends=True):
            offset += len(line)
            found.append((line.decode("utf-8", "replace").rstrip("\n"), offset))
        return found

    def add(self, *lines: str) -> None:
        """Adds lines, all or none, and waits for the disk.

        Raises:
            BuildError: The disk is full.
            OSError: The file cannot be written.
        """
        data = "".join(f"{line}\n" for line in lines).encode()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            try:
                _write(handle, data, self._size)
            except OSError as error:
                os.ftruncate(handle, self._size)
                if no_room_in(error) is None:
                    raise
                raise BuildError(
                    "the history cannot be reached, and what the night did cannot be noted for "
                    f"later: {error.strerror}",
                    place=str(self.path),
                    remedy=f"Make room on its disk: df -h {quoted(self.path.parent)}\n"
                    "Then run the same command again: it goes on with this night.",
                ) from error
        finally:
            os.close(handle)
        if not self._size:
            _sync_folder(self.path.parent)
        self._size += len(data)

    def clear(self) -> None:
        """Removes the file: everything is in the database."""
        self.path.unlink(missing_ok=True)
        self._size = 0


def _write(handle: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(handle, view, offset)
        view, offset = view[written:], offset + written
    os.fsync(handle)


def _cut(path: Path) -> int:
    """The size of a file's whole lines, in bytes; the rest of it is cut off."""
    try:
        with path.open("r+b") as stream:
            content = stream.read()
            size = content.rfind(b"\n") + 1
            if size != len(content):
                stream.truncate(size)
    except FileNotFoundError:
        return 0
    return size


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
