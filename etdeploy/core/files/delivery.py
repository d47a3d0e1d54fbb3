"""Copies results to a folder that the user names, without losing any of the user's files.

A delivered folder contains a list of its files with their digests. It is replaced only if it
contains just those, unchanged; any other folder must be new or empty.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from etdeploy.core.cancel import checkpoint
from etdeploy.core.commands import quoted
from etdeploy.core.errors import UsageError
from etdeploy.core.files.basic import (
    annotate_oserror,
    find_disk_full,
    folder_files,
    not_regular,
    open_regular,
    write_atomic,
)
from etdeploy.core.hashing import sha256_file

LIST_FILE = ".etdeploy.json"
_SHOWN = 5
_CHOOSE = "Name a new or empty folder: --output FOLDER"


@dataclass(frozen=True)
class Delivery:
    """The destination of a copy.

    Attributes:
        folder: As the user named it.
        content: What is delivered, for the message: "program", "runner".
        protected: Folders that must not be replaced, nor any folder around them, by description.
        cache: The cache folder; nothing is delivered into it either.
    """

    folder: Path
    content: str
    protected: dict[str, Path]
    cache: Path

    def require_free(self) -> None:
        """Checks that the folder is new, empty, or an unchanged delivery.

        Raises:
            UsageError: It is none of these, or can never be replaced; with the reason.
        """
        with self._naming_folder():
            self._require_place()
            self._require_ours()
            require_writable(self.folder.resolve().parent)

    def put(self, source: Path, leave_out: Sequence[str] = ()) -> Path:
        """Copies `source` there, all of it or nothing.

        Raises:
            UsageError: The folder cannot be replaced, or something cannot be written.
            OSError: The disk is full; its filename says where.
        """
        with self._naming_folder():
            self._require_place()
            final = self.folder.resolve()
            final.parent.mkdir(parents=True, exist_ok=True)
            with _aside(final) as work, annotate_oserror(work):
                _copy_files(source, work, leave_out)
                listed = {name: sha256_file(work / name) for name in folder_files(work)}
                _write_list(work, self.content, listed)
                self._require_ours()
                _exchange(work, final)
        return final

    def _require_place(self) -> None:
        if self.folder.is_symlink():
            target = quoted(self.folder.resolve())
            raise self._refused("is a symbolic link", f"Name the folder itself: --output {target}")
        if self.folder.exists() and not self.folder.is_dir():
            raise self._refused("is not a folder", _CHOOSE)
        resolved = self.folder.resolve()
        around = {"working folder": Path.cwd(), "home folder": Path.home(), **self.protected}
        for what, path in {**around, "cache": self.cache}.items():
            if path.resolve().is_relative_to(resolved):
                # Nothing is delivered below the cache either.
                remedy = _CHOOSE if path == self.cache else self._below()
                raise self._refused(f"is or contains the {what} ({path})", remedy)
        if resolved.is_relative_to(self.cache.resolve()):
            raise self._refused("is in the cache, which etdeploy tidies", _CHOOSE)

    def _require_ours(self) -> None:
        if not self.folder.exists():
            return
        if os.path.ismount(self.folder):
            raise self._refused("is a mount point, which cannot be replaced", self._below())
        # A folder of the user's may have a million files: the first few are enough.
        if foreign := list(islice(foreign_names(self.folder, self.content), _SHOWN + 1)):
            more = " and more" if len(foreign) > _SHOWN else ""
            raise self._refused(
                f"contains what this command did not write: {', '.join(foreign[:_SHOWN])}{more}; "
                "nothing was changed",
                _CHOOSE,
            )

    @contextlib.contextmanager
    def _naming_folder(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if find_disk_full(error):
                raise
            raise UsageError(
                f"the {self.content} cannot be copied there: {error.strerror or error}",
                place=str(self.folder),
                remedy="Name a folder that can be written to and has room: --output FOLDER",
            ) from error

    def _refused(self, why: str, remedy: str) -> UsageError:
        return UsageError(f"the folder {why}", place=str(self.folder), remedy=remedy)

    def _below(self) -> str:
        return f"Name a folder below it: --output {quoted(self.folder / self.content)}"


def require_writable(folder: Path) -> None:
    """Raises OSError before the work for a folder that cannot be written to after it."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, f"{existing} is not a folder")
    # Not os.access, which says yes to root even if the file system refuses.
    Path(tempfile.mkdtemp(prefix=".etdeploy.", dir=existing)).rmdir()


def foreign_names(folder: Path, content: str) -> Iterator[str]:
    """What a folder contains besides an unchanged delivery of `content`, as relative paths."""
    listed = _listed(folder, content)
    expected = {parent.as_posix() for name in listed for parent in Path(name).parents}
    for path in _walk(folder):
        name = path.relative_to(folder).as_posix()
        if path.is_dir() and not path.is_symlink():
            if name not in expected:
                yield f"{name}/"
        elif not _is_plain(path) or not (
            (name == LIST_FILE and listed) or listed.get(name) == sha256_file(path)
        ):
            yield f"{name} (changed)" if name in listed else name


def _walk(folder: Path) -> Iterator[Path]:
    """Everything below a folder, each folder before its content; links are not followed."""
    for path in sorted(folder.iterdir()):
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _walk(path)


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _listed(folder: Path, content: str) -> dict[str, str]:
    try:
        known = json.loads((folder / LIST_FILE).read_bytes())
        return dict(known["files"]) if known["content"] == content else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _write_list(folder: Path, content: str, files: dict[str, str]) -> None:
    text = json.dumps({"content": content, "files": files}, indent=1)
    write_atomic(folder / LIST_FILE, text + "\n")


def _copy_files(source: Path, target: Path, leave_out: Sequence[str]) -> None:
    for name in folder_files(source):
        if name not in leave_out:
            checkpoint()
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, target / name)


@contextlib.contextmanager
def _aside(final: Path) -> Iterator[Path]:
    """A new folder beside `final`, in the same file system."""
    work = Path(tempfile.mkdtemp(prefix=f".{final.name}.", dir=final.parent))
    work.chmod(0o755)
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _exchange(work: Path, final: Path) -> None:
    """Replaces `final`, which is a delivery, empty or missing, with `work`."""
    try:
        work.rename(final)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    else:
        return
    old = final.with_name(f".{final.name}.{secrets.token_hex(4)}.old")
    final.rename(old)
    try:
        work.rename(final)
    except BaseException:
        old.rename(final)
        raise
    _remove_delivery(old)


def _remove_delivery(folder: Path) -> None:
    """Removes the listed files; anything that was added to the folder since stays in it.

    Only names that are found below the folder are removed: the list may name others.
    """
    listed = json.loads((folder / LIST_FILE).read_bytes())["files"]
    for path in reversed(list(_walk(folder))):
        if path.relative_to(folder).as_posix() in (*listed, LIST_FILE) and _is_plain(path):
            path.unlink()
        elif path.is_dir() and not path.is_symlink():
            with contextlib.suppress(OSError):
                path.rmdir()
    with contextlib.suppress(OSError):
        folder.rmdir()


# The beginning of a file by which a text result may be known.
_LOOKED_AT_BYTES = 65_536


@dataclass(frozen=True)
class ResultFile:
    """What is written, and how an earlier one is known again.

    Attributes:
        noun: For messages: "report".
        kind: The same more exactly: "a report in html".
        is_own: Whether a file, of which nothing was read yet, is an earlier one.
        example: A file's name, for the remedy where a folder is named.
        option: What stands before the file on the command line.
        standard: How the command line names the standard output.
    """

    noun: str
    kind: str
    is_own: Callable[[BinaryIO], bool]
    example: str
    option: str = "--output"
    standard: str = "--output -"

    def require_free(self, path: Path) -> None:
        """Checks that a file is new, empty, or an earlier result.

        Raises:
            UsageError: It is none of these, or cannot be written; with the reason.
            OSError: The disk is full.
        """
        foreign = False
        try:
            if what := not_regular(path):
                raise self._no_file(path, what)
            if path.stat().st_size:
                with open_regular(path) as stream:
                    foreign = not self.is_own(stream)
        except FileNotFoundError:
            self._require_folder(path)
        except OSError as error:
            raise self.unwritable(path, error) from error
        self._require_writable(path)
        if foreign:
            raise UsageError(
                f"the file exists and is not {self.kind}; it was not changed",
                place=str(path),
                remedy=self._choose,
            )

    def write(self, text: str, path: Path) -> Path:
        """Writes it, all of it or nothing.

        Returns:
            The file's absolute path; where `path` is a link, of what it leads to.
        """
        self.require_free(path)
        final = path.resolve()
        try:
            write_atomic(final, text)
        except OSError as error:
            if find_disk_full(error):
                raise
            raise self.unwritable(path, error) from error
        return final

    def unwritable(self, path: Path, error: OSError) -> UsageError:
        """The error for the user."""
        return UsageError(
            f"the {self.noun} cannot be written: {error.strerror or error}",
            place=str(path),
            remedy=self._choose,
        )

    @property
    def _choose(self) -> str:
        return f"Name another file: {self.option} FILE"

    def _no_file(self, path: Path, what: str) -> UsageError:
        inside = f"Name a file in it: {self.option} {quoted(path / self.example)}"
        return UsageError(
            f"the {self.noun} needs a file, and this is {what}",
            place=str(path),
            remedy=inside if path.is_dir() else f"For standard output: {self.standard}",
        )

    def _require_folder(self, path: Path) -> None:
        """A folder that is missing is more likely a slip than meant: none is created."""
        folder = path.resolve().parent
        if not folder.is_dir():
            raise UsageError(
                f"the folder for the {self.noun} does not exist",
                place=str(folder),
                remedy=f"Create it: mkdir -p {quoted(folder)}\n{self._choose}",
            )

    def _require_writable(self, path: Path) -> None:
        try:
            require_writable(path.resolve().parent)
        except OSError as error:
            if find_disk_full(error):
                raise
            raise self.unwritable(path, error) from error


def begins_with(*texts: str) -> Callable[[BinaryIO], bool]:
    """Whether a file begins with one of these."""
    known = tuple(text.encode() for text in texts)
    longest = max(map(len, known))
    return lambda stream: stream.read(longest).startswith(known)


def contains(text: str) -> Callable[[BinaryIO], bool]:
    """Whether a file has this near its beginning."""
    return lambda stream: text.encode() in stream.read(_LOOKED_AT_BYTES)


def make_result_folder(folder: Path, content: str, option: str) -> None:
    """Creates a folder for files that are replaced one by one, if its parent folder exists.

    Args:
        folder: As the user named it.
        content: What will be in it, for the message: "dashboard", "pages".
        option: Where the user names it.

    Raises:
        UsageError: It cannot be created or read.
    """
    try:
        folder.mkdir(exist_ok=True)
        next(folder.iterdir(), None)
    except FileNotFoundError as error:
        raise UsageError(
            f"the parent folder of the {content} does not exist",
            place=str(folder.parent),
            remedy=f"Create it: mkdir -p {quoted(folder.parent)}",
        ) from error
    except OSError as error:
        raise UsageError(
            f"the folder of the {content} cannot be used: {error.strerror or error}",
            place=str(folder),
            remedy=f"Name another folder: {option}",
        ) from error
