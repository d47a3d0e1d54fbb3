"""Identifies the files of a checkout: equal revisions mean equal sources.

Git lists the files that differ from the commit, and these are read. Submodules are separate
repositories and are examined in the same way.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from etdeploy.core import git
from etdeploy.core.files.basic import read_text
from etdeploy.core.hashing import digest_json, sha256_file, stamp

# Checking every file of a large checkout may take long on a slow disk.
_GIT_TIMEOUT_S = 60.0
# Requests explicitly what the user's git configuration may hide.
_STATUS = (
    "status", "--porcelain=v2", "-z", "--untracked-files=all", "--ignore-submodules=none",
    "--no-renames",
)  # fmt: skip
# The mode of a submodule in git's index.
_LINK = "160000"
# Where a build writes into the checkout: flatcc's library and tool, Python's compiled modules.
_BUILT = re.compile(r"(^|/)(__pycache__|flatcc/(lib|bin))(/|$)")
# A folder with such a file holds what was built or installed: thousands of files, compared by date
# because reading them all would take longer than the build.
_MADE = ("CMakeCache.txt", "pyvenv.cfg")
# Larger files are not sources but weights or archives. They are compared by date, too.
_READ_BYTES = 16 << 20


def revision(folder: Path) -> str:
    """The state of a checkout.

    Returns:
        With git: the commit, followed by a digest of all files that differ from it, if any,
        including untracked files and submodules. Without git: a digest of the sizes and dates of
        all files.
    """
    return _of_repository(folder) or "files-" + digest_json(dict(_stamps(folder)))[:32]


def submodule_paths(folder: Path) -> frozenset[str] | None:
    """The submodules that the checkout's .gitmodules names; None without such a file."""
    text = read_text(folder / ".gitmodules")
    return frozenset(re.findall(r"^\s*path\s*=\s*(\S+)", text, re.MULTILINE)) if text else None


def _of_repository(folder: Path) -> str | None:
    # Otherwise git would answer for a repository that contains the folder.
    if not (folder / ".git").exists():
        return None
    head = git.ask(folder, "rev-parse", "--verify", "HEAD", timeout_s=_GIT_TIMEOUT_S)
    status = git.ask(folder, *_STATUS, timeout_s=_GIT_TIMEOUT_S) if head else None
    if head is None or status is None:
        return None
    changed = {**dict(_changes(status)), **dict.fromkeys(_without_git(folder))}
    # The folder's own name is needed where it is flatcc's.
    sources = [n for n in sorted(changed) if not _BUILT.search(f"{folder.name}/{n}")]
    made = {str(PurePosixPath(n).parent) for n in sources if PurePosixPath(n).name in _MADE}
    states = {n: _state(folder / n, _is_below(n, made)) for n in sources}
    # A submodule that only a build has written into still counts as its commit.
    details = {name: state for name, state in states.items() if state != changed[name]}
    return head.strip() + (f"+{digest_json(details)[:16]}" if details else "")


def _changes(status: str) -> Iterator[tuple[str, str | None]]:
    """Each name in `git status --porcelain=v2 -z`, with what HEAD has there if it is tracked."""
    for entry in filter(None, status.split("\0")):
        if entry[0] == "1":
            *_, in_head, _, name = entry.split(" ", 8)
            yield name, in_head
        elif entry[0] == "u":
            yield entry.split(" ", 10)[10], None
        elif entry[0] == "?":
            yield entry[2:], None


def _without_git(folder: Path) -> Iterator[str]:
    """Submodules whose files were unpacked there: git does not examine their folders."""
    names = [
        name
        for name in sorted(submodule_paths(folder) or ())
        if (folder / name).is_dir()
        and not (folder / name / ".git").exists()
        and any((folder / name).iterdir())
    ]
    if names:
        # A fork may have committed them as ordinary files, which git does examine.
        tracked = git.ask(folder, "ls-files", "-s", "-z", "--", *names, timeout_s=_GIT_TIMEOUT_S)
        links = (e.partition("\t")[2] for e in (tracked or "").split("\0") if e[:6] == _LINK)
        yield from links


def _is_below(name: str, folders: set[str]) -> bool:
    return any(str(parent) in folders for parent in PurePosixPath(name).parents)


def _state(path: Path, made: bool) -> str:
    """The present state of a path; `made` says that it was built or installed."""
    if path.is_symlink():
        return f"link to {path.readlink()}"
    if path.is_file():
        by_date = made or path.stat().st_size > _READ_BYTES
        try:
            return digest_json(stamp(path)) if by_date else sha256_file(path)
        except OSError:  # another user's, or deleted meanwhile: no compiler reads it either
            return "unreadable"
    # A submodule, or another repository.
    return revision(path) if path.is_dir() else "gone"


def _stamps(folder: Path) -> Iterator[tuple[str, tuple[int, int, int, int]]]:
    for root, folders, files in os.walk(folder):
        here = Path(root)
        relative = here.relative_to(folder.parent).as_posix()
        folders[:] = sorted(
            name for name in folders if name != ".git" and not _BUILT.search(f"{relative}/{name}")
        )
        for name in sorted(files):
            if not (here / name).is_symlink():
                yield str((here / name).relative_to(folder)), stamp(here / name)
