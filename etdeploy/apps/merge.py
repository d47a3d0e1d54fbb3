"""Writes a project into a folder of the user, and keeps the user's edits of an earlier one.

Three versions of each file decide: as it was generated before, as it is generated now, and as it is
in the folder. A list in the folder has the digests of what was generated before.

| generated before and now | in the folder | action |
| --- | --- | --- |
| any | as it is generated now | nothing |
| different | as it was generated before | it is written |
| any | removed by the user | it stays so |
| equal | changed by the user | it stays so |
| different, or no longer | changed by the user | a conflict |

With a conflict nothing is written at all, unless the caller says which side counts. If the names of
the project change, the user's files follow first: an app's id is the package of an Android app's
code, the recipe's name gives the target of an iOS app, and both are in paths and texts.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

from etdeploy.core.cancel import checkpoint
from etdeploy.core.commands import quoted
from etdeploy.core.errors import UsageError
from etdeploy.core.files.basic import (
    annotate_oserror,
    copy_file,
    find_disk_full,
    is_abandoned,
    remove_tree,
    working_folder,
    write_atomic,
)
from etdeploy.core.files.delivery import require_writable
from etdeploy.core.hashing import sha256_bytes, sha256_file
from etdeploy.devices.bundles import check_relative

Content = Mapping[str, "bytes | Path"]
"""A project's files by their POSIX paths: bytes, or a file to copy."""
LIST_FILE = ".etdeploy.json"
# In the folder that files are staged in: new content, and moved files whose text changes.
_CONTENT, _MOVED = "content", "moved"
_STAGE = ".etdeploy-new-"
SAVED = "yours"
"""The folder in the project that keeps the user's replaced files, at their paths:
beside them, a build tool would take them for sources."""
Conflicts = Literal["refuse", "keep", "overwrite"]
_SHOWN = 8
_LARGEST_TEXT_BYTES = 1 << 20
# Folders with what build tools, editors and version control write.
_SKIPPED = re.compile(r"\..*|build|yours(-\d+)?")


@dataclass
class Written:
    """The changes, by paths in the folder.

    `removed` files are not generated any more; `moved` ones follow the project's names; `kept` ones
    were changed by the user, `deleted` ones removed; `saved` ones were replaced and are in `yours`.
    """

    created: list[str] = field(default_factory=list)
    updated: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    saved: list[str] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        """Whether anything was written."""
        return bool(self.created or self.updated or self.removed or self.moved)


def write_project(
    folder: Path,
    content: Content,
    what: str,
    conflicts: Conflicts = "refuse",
    anchor: str | None = None,
) -> Written:
    """Write a project into a new or empty folder, or over an earlier project of the same kind.

    `what` is the kind ("android app"), `anchor` the file whose path has the project's name. Raises
    UsageError where the folder holds something else, cannot be written to, or there are conflicts.
    """
    with _errors(folder, what):
        before = _generated_before(folder, what)
        now = {path: digest_content(each) for path, each in content.items()}
        moves: dict[str, Move] = {}
        renaming = find_renaming(anchor, before, now) if anchor else None
        if anchor and renaming:
            moves = plan_moves(folder, anchor, renaming, content)
            before = rename_digests(renaming, moves, before, content)
        moved = {move.target: move.new_digest for move in moves.values()}
        todo = _decide(folder, before, now, moved)
        overwrite = conflicts == "overwrite"
        if todo.clashes and conflicts == "refuse":
            raise _conflicting(folder, todo.clashes)
        with _staged(folder, content, todo, moves.values(), overwrite=overwrite) as stage:
            if not (folder / LIST_FILE).exists():
                # A stop from here on leaves a project that the next run completes.
                _write_list(folder, what, {})
            apply_moves(folder, moves.values(), stage)
            done = _apply(folder, content, todo, stage, overwrite=overwrite)
        done.moved += sorted(moved)
        _write_list(folder, what, now)
    return done


@dataclass
class _Todo:
    """The action for each path."""

    write: list[str] = field(default_factory=list)
    remove: list[str] = field(default_factory=list)
    keep: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    clashes: list[str] = field(default_factory=list)


def _decide(
    folder: Path, before: Mapping[str, str], now: Mapping[str, str], moved: Mapping[str, str]
) -> _Todo:
    todo = _Todo()
    for path in sorted({*before, *now}):
        checkpoint()
        theirs = moved.get(path) or _digest_in(folder, path)
        then, new = before.get(path), now.get(path)
        if theirs == new:
            continue
        if theirs == then:
            (todo.write if new else todo.remove).append(path)
        elif theirs is None:
            todo.deleted.append(path)
        elif new == then:
            todo.keep.append(path)
        else:
            todo.clashes.append(path)
    return todo


@contextmanager
def _staged(
    folder: Path, content: Content, todo: _Todo, moves: Iterable[Move], *, overwrite: bool
) -> Iterator[Path]:
    """Yields a folder in the project with every file that will be written.

    Only renames are left to be done then: a full disk leaves the project as it was.
    """
    existed = folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for left in filter(is_abandoned, folder.glob(f"{_STAGE}*")):
            remove_tree(left)  # of a run that was killed
        with working_folder(folder, _STAGE) as stage, annotate_oserror(folder):
            clashes = [path for path in todo.clashes if path in content] if overwrite else []
            for path in (*todo.write, *clashes):
                checkpoint()
                _put(stage / _CONTENT, path, content[path])
            for move in moves:
                if move.data is not None:
                    _put(stage / _MOVED, move.target, move.data)
            yield stage
    except OSError as error:
        if full := find_disk_full(error):
            full.filename = str(folder)  # the file in it is gone
        raise
    finally:
        if not existed and not any(folder.iterdir()):
            folder.rmdir()


def _apply(folder: Path, content: Content, todo: _Todo, stage: Path, *, overwrite: bool) -> Written:
    keep = todo.keep if overwrite else [*todo.keep, *todo.clashes]
    done = Written(kept=keep, deleted=todo.deleted)
    for path in todo.clashes if overwrite else ():
        saved = _free_path(folder, path)
        saved.parent.mkdir(parents=True, exist_ok=True)
        (folder / path).rename(saved)
        done.saved.append(path)
    for path in [*todo.write, *(path for path in done.saved if path in content)]:
        checkpoint()
        existed = (folder / path).exists() or path in done.saved
        (done.updated if existed else done.created).append(path)
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (stage / _CONTENT / path).replace(folder / path)
    for path in todo.remove:
        (folder / path).unlink()
        remove_empty(folder, (folder / path).parent)
        done.removed.append(path)
    return done


def _put(folder: Path, path: str, content: bytes | Path) -> None:
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        write_atomic(target, content)
    else:
        copy_file(content, target)


def _free_path(folder: Path, path: str) -> Path:
    """A place for the user's file at which there is nothing yet."""
    places = (folder / f"{SAVED}{f'-{n}' if n else ''}" / path for n in range(1_000_000))
    return next(place for place in places if not os.path.lexists(place))


def _digest_in(folder: Path, path: str) -> str | None:
    """The digest of the file there; None for no file. A link or folder is the user's."""
    target = folder / path
    if target.is_symlink() or target.is_dir() or _through_link(folder, target):
        return "something else"
    return sha256_file(target) if target.is_file() else None


def _through_link(folder: Path, target: Path) -> bool:
    """Whether a folder on the way is a link, through which a write would leave the project."""
    between = target.relative_to(folder).parents
    return any((folder / each).is_symlink() for each in between if each != Path())


def digest_content(content: bytes | Path) -> str:
    """The SHA-256 of a file's content."""
    return sha256_bytes(content) if isinstance(content, bytes) else sha256_file(content)


def require_project(folder: Path, what: str) -> None:
    """Raise UsageError unless a project can be written into the folder."""
    with _errors(folder, what):
        _generated_before(folder, what)


def _generated_before(folder: Path, what: str) -> dict[str, str]:
    """Digests of what was generated before; empty for a new project."""
    if folder.exists() and not folder.is_dir():
        raise UsageError("this is not a folder", place=str(folder), remedy=_ANOTHER)
    if not folder.exists() or all(path.name.startswith(_STAGE) for path in folder.iterdir()):
        require_writable(folder)
        return {}
    try:
        known = json.loads((folder / LIST_FILE).read_bytes())
        kind, files = known["content"], dict(known["files"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(
            f"the folder is not empty, and does not hold an etdeploy {what}; nothing was changed",
            place=str(folder),
            remedy=_ANOTHER,
        ) from None
    if kind != what:
        raise UsageError(
            f"the folder holds the {kind} that etdeploy wrote, not the {what}; nothing was changed",
            place=str(folder),
            remedy=_ANOTHER,
        )
    require_writable(folder)
    generated = dict(_paths_inside(files))
    # Of a project that somebody emptied, no single file was deleted.
    return generated if any(os.path.lexists(folder / path) for path in generated) else {}


def _paths_inside(files: Mapping[object, object]) -> Iterator[tuple[str, str]]:
    """Return the entries that name files in the folder; anybody may have edited the list."""
    for path, digest in files.items():
        try:
            yield check_relative(str(path)), str(digest)
        except ValueError:
            continue


def _write_list(folder: Path, what: str, files: Mapping[str, str]) -> None:
    text = json.dumps({"content": what, "files": dict(sorted(files.items()))}, indent=1) + "\n"
    path = folder / LIST_FILE
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        write_atomic(path, text)


_ANOTHER = "Name a new or empty folder, or that of an earlier project: --output FOLDER"


def _conflicting(folder: Path, paths: list[str]) -> UsageError:
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return UsageError(
        "nothing was written: you changed files that are now generated differently, or not at "
        f"all: {', '.join(paths[:_SHOWN])}{more}",
        place=str(folder),
        remedy="Keep yours: --conflicts keep\n"
        f"Or take the new ones; yours go to {quoted(folder / SAVED)}: --conflicts overwrite\n"
        f"To see the new ones first: --output {quoted(folder.with_name(folder.name + '-new'))}",
    )


def _file_named_by(error: OSError, folder: Path) -> str:
    """The file in the folder that the system names, or the folder: not a temporary file."""
    named = Path(str(error.filename or ""))
    return str(named if named.is_relative_to(folder) else folder)


@contextmanager
def _errors(folder: Path, what: str) -> Iterator[None]:
    """Turns what the system says while a project is written into an error for the user."""
    try:
        yield
    except OSError as error:
        if find_disk_full(error):
            raise
        raise UsageError(
            f"the {what} cannot be written there: {error.strerror or error}",
            place=_file_named_by(error, folder),
            remedy="Name a folder that can be written to: --output FOLDER",
        ) from error


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
    for path in _editable_files(folder):
        target, data = renaming.rename(path), None
        new = _read_text(content.get(target, b""))
        if PurePosixPath(path).parts[0] == sources or back.replaced(new) is not None:
            data = renaming.replaced(_read_text(folder / path))
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


def rename_digests(
    renaming: Renaming, moves: Mapping[str, Move], before: Mapping[str, str], content: Content
) -> dict[str, str]:
    """Digests of what was generated before, as if the names had been those of now.

    A file that differs by names only counts as generated before.
    """
    back, found = renaming.inverse, {}
    for path, digest in before.items():
        target, move = renaming.rename(path), moves.get(path)
        new = _read_text(content.get(target, b""))
        old = back.replaced(new)
        if old is not None and sha256_bytes(old) == digest and renaming.replaced(old) == new:
            found[target] = sha256_bytes(new)
        else:
            found[target] = move.new_digest if move and move.digest == digest else digest
    return found


def apply_moves(folder: Path, moves: Iterable[Move], stage: Path) -> None:
    """Puts the files at their new paths, those that `stage` has from there."""
    for move in moves:
        source, target = folder / move.source, folder / move.target
        target.parent.mkdir(parents=True, exist_ok=True)
        if move.data is None:
            source.rename(target)
        else:
            staged = stage / _MOVED / move.target
            staged.chmod(source.stat().st_mode)
            staged.replace(target)
            if source != target:
                source.unlink()
        remove_empty(folder, source.parent)


def remove_empty(folder: Path, inner: Path) -> None:
    """Removes folders that hold nothing, from the inner one outwards."""
    while inner != folder and not any(inner.iterdir()):
        inner.rmdir()
        inner = inner.parent


def _editable_files(folder: Path) -> Iterator[str]:
    """Paths of the files that a user edits; links are not followed."""
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not _SKIPPED.fullmatch(name)]
        for name in files:
            path = Path(root) / name
            if name != LIST_FILE and path.is_file() and not path.is_symlink():
                yield path.relative_to(folder).as_posix()


def _read_text(content: bytes | Path) -> bytes:
    """The content of a file; nothing for one that is too large for a text."""
    if isinstance(content, bytes):
        return content
    large = content.stat().st_size > _LARGEST_TEXT_BYTES
    return b"" if large else content.read_bytes()
