"""Asks git about a folder; changes nothing."""

from __future__ import annotations

from pathlib import Path

from etdeploy.core.processes import process


def ask(folder: Path, *arguments: str, timeout_s: float = 10.0) -> str | None:
    """What git prints; None if it fails or is not installed.

    Args:
        folder: Where git runs.
        arguments: Git's arguments.
        timeout_s: After this many seconds it counts as failed.
    """
    program = process.which("git")
    if program is None:
        return None
    request = process.Request(
        (str(program), "-C", str(folder), *arguments),
        # Without this, `git status` rewrites the index.
        env={"GIT_OPTIONAL_LOCKS": "0"},
        timeout_s=timeout_s,
    )
    try:
        outcome = process.run(request)
    except OSError:  # it cannot be started
        return None
    return outcome.stdout if outcome.ok else None
