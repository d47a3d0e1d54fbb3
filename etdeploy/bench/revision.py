"""The git revision of a file's folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from etdeploy.core import git


@dataclass(frozen=True)
class Revision:
    """A commit; `dirty` when files below the folder differ from it or are not in it."""

    commit: str | None
    dirty: bool | None


_NONE = Revision(None, None)


def revision_of(path: Path) -> Revision:
    """The revision of the folder that `path` is in.

    Without git, outside a repository, and for a file that the repository ignores (an installed
    package inside it), both fields are None.
    """
    folder = path.parent
    if not folder.is_dir():
        return _NONE
    head = git.ask(folder, "rev-parse", "--verify", "HEAD")
    ignored = git.ask(folder, "check-ignore", "--quiet", path.name) is not None
    if head is None or ignored:
        return _NONE
    changes = git.ask(folder, "status", "--porcelain", "--", ".")
    return Revision(head.strip(), None if changes is None else bool(changes.strip()))
