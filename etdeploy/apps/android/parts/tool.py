"""Runs a tool of the Android SDK or of Java, and says what it complained of."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from etdeploy.core.errors import BuildError
from etdeploy.core.processes import process

_COMPLAINT = re.compile(r"\berror\b|Exception: |^Missing class ", re.IGNORECASE)
_LINES = 6
# These tools run for seconds: the best of Java's compilers would take longer than it saves, and a
# collector with threads of its own compete with theirs.
JAVA_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


def run_tool(
    what: str,
    argv: Sequence[object],
    log: Path | None,
    env: Mapping[str, str | None] | None = None,
    cwd: Path | None = None,
) -> str:
    """Runs a tool to its end and returns what it printed.

    Args:
        what: What it does, for the message: "compiling the app's code".
        argv: Program and arguments.
        log: Receives the command and its output.
        env: Changes to the environment.
        cwd: The working folder.

    Raises:
        BuildError: It failed, with its first complaints, or it cannot be started.
    """
    words = tuple(map(str, argv))
    try:
        outcome = process.run(process.Request(words, cwd=cwd, env=env or {}, log=log))
    except OSError as error:
        raise BuildError(
            f"{what} failed: {words[0]} cannot be started: {error.strerror}", log=log
        ) from error
    if not outcome.ok:
        ended = outcome.signal_name or f"exit code {outcome.exit_code}"
        name = Path(words[0]).name
        told = complaints(f"{outcome.stderr}\n{outcome.stdout}")
        raise BuildError(f"{what} failed ({name}, {ended}){told}", log=log)
    return outcome.stdout


def complaints(text: str) -> str:
    """The first complaints of a tool, each on a line of its own; its last line if none is one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    chosen = [line for line in lines if _COMPLAINT.search(line)][:_LINES] or lines[-1:]
    return "".join(f"\n{line}" for line in chosen)
