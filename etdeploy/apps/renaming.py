"""The user's files of a project follow when its package or target gets another name.

An app's id is the package of an Android app's code; the recipe's name gives the target of an iOS
app. Both are in paths and texts of a project.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from etdeploy.core.commands import quoted
from etdeploy.core.errors import UsageError
from etdeploy.core.files.basic import write_atomic
from etdeploy.core.hashing import sha256_bytes, sha256_file

Content = Mapping[str, "bytes | Path"]
"""A project's files by their POSIX paths: bytes, or a file to copy."""
LIST_FILE = ".etdeploy.json"
_LARGEST_TEXT_BYTES = 1 << 20
# Folders with what build tools, editors and version control write.
_SKIPPED = re.compile(r"\..*|build|yours(-\d+)?")


class Renaming:
    """Old names by new ones, as whole words of paths and texts."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        words = "|".join(map(re.escape, names))
        self._old = re.compile(rf"(?<![\w.])(?:{words})(?!\w)")

    def rename(self, text: str) -> str:
        """The text with the new names."""
        return self._old.sub(lambda found: self._names[found[0]], text)

    def replaced(self, data: bytes) -> bytes | None:
        """A text file with the new names; None if it has no old ones."""
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return None
        renamed = self.rename(text)
        return None if renamed == text else renamed.encode()

    @property
    def inverse(self) -> Renaming:
        return Renaming({new: old for old, new in self._names.items()})


@dataclass(frozen=True)
class Move:
    """A file that gets another path, or `data` as its text with other names; None leaves the text.

    `digest` is that of the file as it was.
    """

    source: str
    target: str
    digest: str
    data: bytes | None

    @property
    def new_digest(self) -> str:
        """SHA-256 after the move."""
        return self.digest if self.data is None else sha256_bytes(self.data)


def find_renaming(anchor: str, before: Iterable[str], now: Iterable[str]) -> Renaming | None:
    """How a project's names change; None if they stay."""
    pattern = re.compile(re.escape(anchor).replace(r"\*", "(.+)"))
    old, new = (next(_named(pattern, paths), None) for paths in (before, now))
    if old is None or new is None or old == new:
        return None
    return Renaming({old: new, old.replace("/", "."): new.replace("/", ".")})


def _named(pattern: re.Pattern[str], paths: Iterable[str]) -> Iterator[str]:
    return (found[1] for found in map(pattern.fullmatch, paths) if found)


def plan_moves(folder: Path, anchor: str, renaming: Renaming, content: Content) -> dict[str, Move]:
    """Files in the folder that have old names, by their paths; nothing is written."""
    moves: dict[str, Move] = {}
    back, sources = renaming.inverse, PurePosixPath(anchor).parts[0]
    for path in _files(folder):
        target, data = renaming.rename(path), None
        new = _text(content.get(target, b""))
        if PurePosixPath(path).parts[0] == sources or back.replaced(new) is not None:
            data = renaming.replaced(_text(folder / path))
        if target == path and data is None:
            continue
        if target != path and os.path.lexists(folder / target):
            raise UsageError(
                f"{path} belongs where {target} is; nothing was written",
                place=str(folder),
                remedy=f"Remove the one that you do not need: rm {quoted(folder / path)}",
            )
        moves[path] = Move(path, target, sha256_file(folder / path), data)
    return moves


def follow(
    renaming: Renaming, moves: Mapping[str, Move], before: Mapping[str, str], content: Content
) -> dict[str, str]:
    """Digests of what was generated before, as if the names had been those of now.

    A file that differs by names only counts as generated before.
    """
    back, found = renaming.inverse, {}
    for path, digest in before.items():
        target, move = renaming.rename(path), moves.get(path)
        new = _text(content.get(target, b""))
        old = back.replaced(new)
        if old is not None and sha256_bytes(old) == digest and renaming.replaced(old) == new:
            found[target] = sha256_bytes(new)
        else:
            found[target] = move.new_digest if move and move.digest == digest else digest
    return found


def apply_moves(folder: Path, moves: Iterable[Move]) -> None:
    """Writes the files at their new paths, and removes them at the old ones."""
    for move in moves:
        source, target = folder / move.source, folder / move.target
        target.parent.mkdir(parents=True, exist_ok=True)
        if move.data is None:
            source.rename(target)
        else:
            mode = source.stat().st_mode
            write_atomic(target, move.data)
            target.chmod(mode)
            if source != target:
                source.unlink()
        remove_empty(folder, source.parent)


def remove_empty(folder: Path, inner: Path) -> None:
    """Removes folders that hold nothing, from the inner one outwards."""
    while inner != folder and not any(inner.iterdir()):
        inner.rmdir()
        inner = inner.parent


def _files(folder: Path) -> Iterator[str]:
    """Paths of the files that a user edits; links are not followed."""
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not _SKIPPED.fullmatch(name)]
        for name in files:
            path = Path(root) / name
            if name != LIST_FILE and path.is_file() and not path.is_symlink():
                yield path.relative_to(folder).as_posix()


def _text(content: bytes | Path) -> bytes:
    """The content of a file; nothing for one that is too large for a text."""
    if isinstance(content, bytes):
        return content
    large = content.stat().st_size > _LARGEST_TEXT_BYTES
    return b"" if large else content.read_bytes()
