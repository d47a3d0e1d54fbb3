"""What a session is at one moment: its text, with keys and values."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from dataclasses import dataclass, replace
from pathlib import Path

from etdeploy.bench.snapshot import (
    Message,
    Snapshot,
    SnapshotHeader,
    require_replaceable,
    save_snapshot,
)
from etdeploy.core.files.basic import write_atomic


class _StateFolder:
    """A temporary folder, which is removed with the value."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="etdeploy-state-"))
        self.remove = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


@dataclass(frozen=True)
class SavedState:
    """A text with its keys and values, in a file of the format of `--save-cache`.

    A state without a path of the caller's is in a temporary file, which is removed with the value.
    """

    snapshot: Snapshot
    _folder: _StateFolder | None = None

    @classmethod
    def read(cls, path: str | Path) -> SavedState:
        """Read a file that `write`, `Session.save` or `--save-cache` wrote, and check all of it.

        Raises:
            UsageError: The file has no state, is from another release, or is damaged.
        """
        return cls(Snapshot.open(Path(path)))

    @classmethod
    def make(cls, header: SnapshotHeader, image: Path, path: Path | None) -> SavedState:
        """Write what a runner saved, to `path` or to a temporary file."""
        folder = None if path else _StateFolder()
        file = folder.path / "state.cache" if folder else Path(path or "")
        header = save_snapshot(file, header, image)
        start = file.stat().st_size - header.image_bytes
        return cls(Snapshot(file, header, start), folder)

    def write(self, path: str | Path) -> SavedState:
        """Copy the state to a file, and return the one of that file.

        Raises:
            UsageError: Another file is there, or its folder does not exist.
        """
        file = Path(path)
        require_replaceable(file)
        with self.snapshot.path.open("rb") as stream:
            write_atomic(file, iter(lambda: stream.read(1 << 20), b""))
        return SavedState(replace(self.snapshot, path=file))

    def discard(self) -> None:
        """Remove the temporary file now; a file of the caller's stays."""
        if self._folder:
            self._folder.remove()

    @property
    def tokens(self) -> tuple[int, ...]:
        """The whole text."""
        return (*self.snapshot.header.tokens, *self.snapshot.header.pending)

    @property
    def position(self) -> int:
        """How many tokens have their keys and values in the state."""
        return len(self.snapshot.header.tokens)

    @property
    def size_bytes(self) -> int:
        """Of the file."""
        return self.snapshot.start + self.snapshot.header.image_bytes

    @property
    def system(self) -> str | None:
        """The system prompt of a chat; None without one."""
        return self.snapshot.header.system

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation of a chat; empty for another text."""
        return self.snapshot.header.messages
