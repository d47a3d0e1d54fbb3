"""The git revision of a file's folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from etdeploy.core import process

_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Revision:
    """A commit; `dirty` when files below the folder differ from it or are not in it."""

    commit: str | None
    dirty: bool | None


_NONE = Revision(None, None)


def revision_of(path: Path) -> Revision:
    """The revision of the folder that `path` is in.

    Without git, outside of a repository, and for a file that the repository ignores (an installed
    package inside of it), both fields are None.
    """
    folder = path.parent
    if process.which("git") is None or not folder.is_dir():
        return _NONE
    head = _git(folder, "rev-parse", "--verify", "HEAD")
    ignored = _git(folder, "check-ignore", "--quiet", path.name) is not None
    if head is None or ignored:
        return _NONE
    changes = _git(folder, "status", "--porcelain", "--", ".")
    return Revision(head.strip(), None if changes is None else bool(changes.strip()))


def _git(folder: Path, *arguments: str) -> str | None:
    """What git prints; None when it fails."""
    request = process.Request(
        ("git", "-C", str(folder), *arguments),
        env={"GIT_OPTIONAL_LOCKS": "0"},
        timeout_s=_TIMEOUT_S,
    )
    try:
        outcome = process.run(request)
    except OSError:
        return None
    return outcome.stdout if outcome.ok else None
