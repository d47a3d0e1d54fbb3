"""Writes a project into a folder of the user, and keeps the user's edits of an earlier one.

Three versions of each file decide: as it was generated before, as it is generated now, and as it is
in the folder. A list in the folder has the digests of what was generated before, and the texts.

| generated before and now | in the folder | action |
| --- | --- | --- |
| any | as it is generated now | nothing |
| different | as it was generated before | it is written |
| any | removed by the user | it stays so |
| equal | changed by the user | it stays so |
| different | a text, changed by the user in other places | both changes are merged |
| different, or no longer | changed by the user otherwise | a conflict |

`git merge-file` merges. With a conflict nothing is written at all, unless the caller says which
side counts. If the names of the project change, the user's files follow first: an app's id is the
package of an Android app's code, the recipe's name gives the target of an iOS app, and both are in
paths and texts.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
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
from etdeploy.core.processes import process
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
Conflicts = Literal["refuse", "keep", "overwrite", "mark"]
_SHOWN = 8
_LARGEST_TEXT_BYTES = 1 << 20
# Larger files are data, which nobody edits by hand.
_LARGEST_BASE_BYTES = 1 << 17
# Folders with what build tools, editors and version control write.
_SKIPPED = re.compile(r"\..*|build|yours(-\d+)?")


@dataclass
class Written:
    """The changes, by paths in the folder.

    `merged` files have the user's changes and the new ones; in `marked` ones, markers show both
    versions of the lines that both sides changed. `removed` files are not generated any more;
    `moved` ones follow the project's names; `kept` ones were changed by the user, `deleted` ones
    removed; `saved` ones were replaced and are in `yours`.
    """

    created: list[str] = field(default_factory=list)
    updated: list[str] = field(default_factory=list)
    merged: list[str] = field(default_factory=list)
    marked: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    saved: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        """Whether anything was written."""
        return bool(
            self.created or self.updated or self.merged or self.marked or self.removed or self.moved
        )


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
        before, bases = _generated_before(folder, what)
        now = {path: digest_content(each) for path, each in content.items()}
        moves: dict[str, Move] = {}
        renaming = find_renaming(anchor, before, now) if anchor else None
        if anchor and renaming:
            moves = plan_moves(folder, anchor, renaming, content)
            bases = rename_bases(renaming, moves, bases)
            before = rename_digests(renaming, moves, before, content)
        moved = {move.target: move for move in moves.values()}
        todo = _decide(folder, before, now, {path: move.new_digest for path, move in moved.items()})
        reasons = _merge_all(folder, content, bases, moved, todo, marks=conflicts == "mark")
        overwrite = conflicts == "overwrite"
        if todo.clashes and conflicts in ("refuse", "mark"):
            raise _conflicting(folder, reasons)
        with _staged(folder, content, todo, moves.values(), overwrite=overwrite) as stage:
            if not (folder / LIST_FILE).exists():
                # A stop from here on leaves a project that the next run completes.
                _write_list(folder, what, {}, {})
            apply_moves(folder, moves.values(), stage)
            done = _apply(folder, content, todo, stage, overwrite=overwrite)
        done.moved += sorted(moved)
        if unmerged := [path for path, reason in reasons.items() if reason == _NO_GIT]:
            done.notes.append(f"{_NO_GIT}, so nothing was merged: {_shown(unmerged)}.")
        texts = {path: text for path in now if (text := _base(content[path]))}
        _write_list(folder, what, now, texts)
    return done


@dataclass
class _Todo:
    """The action for each path; `merged` texts have both sides' changes, or `marked` conflicts."""

    write: list[str] = field(default_factory=list)
    merged: dict[str, bytes] = field(default_factory=dict)
    marked: dict[str, bytes] = field(default_factory=dict)
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


_MARKER = re.compile(rb"^(?:<{7}|>{7}) ", re.MULTILINE)
_MINE, _GENERATED = "yours", "generated"
_SAME_LINES = "both changed the same lines"
_NO_GIT = "git is not installed"


def _merge_all(
    folder: Path,
    content: Content,
    bases: Mapping[str, str],
    moved: Mapping[str, Move],
    todo: _Todo,
    *,
    marks: bool,
) -> dict[str, str]:
    """Merges what clashes as far as it can be; gives the reason for each path that is left."""
    left: dict[str, str] = {}
    git = process.which("git") if todo.clashes else None
    for path in todo.clashes:
        move = moved.get(path)
        source = folder / (move.source if move else path)
        mine = move.data if move and move.data is not None else _text_in(folder, source)
        new, base = _base(content.get(path, b"")), bases.get(path)
        if new is None or mine is None:
            left[path] = "" if path in content else "no longer generated"
        elif _MARKER.search(mine):
            left[path] = "it still has conflict markers"
        elif base is None:
            left[path] = "no earlier text to merge with"
        elif git is None:
            left[path] = _NO_GIT
        else:
            merged, clean = _merged(git, mine, base.encode(), new.encode())
            if not clean and not marks:
                left[path] = _SAME_LINES
            else:
                (todo.merged if clean else todo.marked)[path] = merged
    todo.clashes = list(left)
    return left


def _text_in(folder: Path, path: Path) -> bytes | None:
    """A text file of the user's; None for a link, a folder or other content."""
    if path.is_symlink() or not path.is_file() or _through_link(folder, path):
        return None
    return path.read_bytes() if _base(path) is not None else None


def _merged(git: Path, mine: bytes, base: bytes, new: bytes) -> tuple[bytes, bool]:
    """The merged text, and whether it is without conflicts."""
    with tempfile.TemporaryDirectory(prefix="etdeploy-merge-") as work:
        paths = [Path(work, name) for name in ("mine", "base", "new")]
        for path, data in zip(paths, (mine, base, new), strict=True):
            path.write_bytes(data)
        labels = (word for name in (_MINE, "before", _GENERATED) for word in ("-L", name))
        outcome = process.run(
            process.Request((str(git), "merge-file", "--quiet", *labels, *map(str, paths)))
        )
        merged = paths[0].read_bytes()
        # git gives the number of conflicts, up to 127, or 255 for what it cannot merge.
        if outcome.exit_code not in range(128):
            raise UsageError(
                f"git cannot merge: {outcome.stderr.strip() or outcome.signal_name}",
                remedy="Keep your files, or take the new ones: --conflicts keep or overwrite",
            )
        return merged, outcome.ok


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
            for path, data in {**todo.merged, **todo.marked}.items():
                _put(stage / _CONTENT, path, data)
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
    for path in todo.merged:
        checkpoint()
        _replace_text(stage / _CONTENT / path, folder / path)
        done.merged.append(path)
    for path in todo.marked:
        checkpoint()
        saved = _free_path(folder, path)
        saved.parent.mkdir(parents=True, exist_ok=True)
        copy_file(folder / path, saved)
        _replace_text(stage / _CONTENT / path, folder / path)
        done.marked.append(path)
        done.saved.append(path)
    replaced = []
    for path in todo.clashes if overwrite else ():
        saved = _free_path(folder, path)
        saved.parent.mkdir(parents=True, exist_ok=True)
        (folder / path).rename(saved)
        replaced.append(path)
        done.saved.append(path)
    for path in [*todo.write, *(path for path in replaced if path in content)]:
        checkpoint()
        existed = (folder / path).exists() or path in replaced
        (done.updated if existed else done.created).append(path)
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (stage / _CONTENT / path).replace(folder / path)
    for path in todo.remove:
        (folder / path).unlink()
        remove_empty(folder, (folder / path).parent)
        done.removed.append(path)
    return done


def _replace_text(new: Path, target: Path) -> None:
    """Puts a text in the place of the user's, with its permissions."""
    new.chmod(target.stat().st_mode)
    new.replace(target)


def _put(folder: Path, path: str, content: bytes | Path) -> None:
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        write_atomic(target, content)
    else:
        copy_file(content, target)
    with target.open("rb") as file:
        if file.read(2) == b"#!":  # a script
            target.chmod(target.stat().st_mode | 0o111)


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


def _generated_before(folder: Path, what: str) -> tuple[dict[str, str], dict[str, str]]:
    """Digests and texts of what was generated before; empty for a new project."""
    if folder.exists() and not folder.is_dir():
        raise UsageError("this is not a folder", place=str(folder), remedy=_ANOTHER)
    if not folder.exists() or all(path.name.startswith(_STAGE) for path in folder.iterdir()):
        require_writable(folder)
        return {}, {}
    try:
        known = json.loads((folder / LIST_FILE).read_bytes())
        kind, files = known["content"], dict(known["files"])
        texts = {path: "".join(lines) for path, lines in dict(known.get("texts") or {}).items()}
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
    if not any(os.path.lexists(folder / path) for path in generated):
        return {}, {}
    # A text that is not the one of the digest was edited, and nothing can be merged with it.
    bases = {
        path: text
        for path, text in texts.items()
        if sha256_bytes(text.encode()) == generated.get(path)
    }
    return generated, bases


def _paths_inside(files: Mapping[object, object]) -> Iterator[tuple[str, str]]:
    """Return the entries that name files in the folder; anybody may have edited the list."""
    for path, digest in files.items():
        try:
            yield check_relative(str(path)), str(digest)
        except ValueError:
            continue


def _write_list(
    folder: Path, what: str, files: Mapping[str, str], texts: Mapping[str, str]
) -> None:
    # By lines, which version control can compare.
    lines = {path: texts[path].splitlines(keepends=True) for path in sorted(texts)}
    listed = {"content": what, "files": dict(sorted(files.items())), "texts": lines}
    text = json.dumps(listed, indent=1, ensure_ascii=False) + "\n"
    path = folder / LIST_FILE
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        write_atomic(path, text)


_ANOTHER = "Name a new or empty folder, or that of an earlier project: --output FOLDER"


_INSTALL = "Or install git, which merges changes in different lines\n"


def _shown(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"


def _conflicting(folder: Path, reasons: Mapping[str, str]) -> UsageError:
    named = [f"{path} ({reason})" if reason else path for path, reason in reasons.items()]
    mark = (
        "Or write both versions of the lines into the files, between conflict markers; yours go to "
        f"{quoted(folder / SAVED)}, too: --conflicts mark\n"
    )
    return UsageError(
        "nothing was written: you changed files that are now generated differently, or not at "
        f"all: {_shown(named)}",
        place=str(folder),
        remedy="Keep yours: --conflicts keep\n"
        f"Or take the new ones; yours go to {quoted(folder / SAVED)}: --conflicts overwrite\n"
        f"{mark if set(reasons.values()) == {_SAME_LINES} else ''}"
        f"{_INSTALL if _NO_GIT in reasons.values() else ''}"
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


def rename_bases(
    renaming: Renaming, moves: Mapping[str, Move], bases: Mapping[str, str]
) -> dict[str, str]:
    """Texts that were generated before, with the names that the user's files get."""
    found = {}
    for path, text in bases.items():
        renames = path in moves and moves[path].data is not None
        found[renaming.rename(path)] = renaming.rename(text) if renames else text
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


def _base(content: bytes | Path) -> str | None:
    """The content as a text that can be merged; None for data, and for nothing."""
    if isinstance(content, Path) and content.stat().st_size > _LARGEST_BASE_BYTES:
        return None
    data = content if isinstance(content, bytes) else content.read_bytes()
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return text if text and "\0" not in text and len(data) <= _LARGEST_BASE_BYTES else None


def _read_text(content: bytes | Path) -> bytes:
    """The content of a file; nothing for one that is too large for a text."""
    if isinstance(content, bytes):
        return content
    large = content.stat().st_size > _LARGEST_TEXT_BYTES
    return b"" if large else content.read_bytes()
