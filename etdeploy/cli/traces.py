"""What verbs that read runs' traces do around it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from etdeploy.cache.workspace import Workspace
from etdeploy.cli.invocation import keep_small
from etdeploy.core import console
from etdeploy.core.occasional import occasional_task
from etdeploy.core.progress import Progress


@contextmanager
def reading_traces(quiet: bool) -> Iterator[tuple[Workspace, Progress]]:
    """Gives the cache that keeps what traces say, and the progress of reading those not in it.

    Args:
        quiet: Whether nothing is shown.
    """
    workspace = Workspace.opened()
    with (
        workspace.in_use(),
        console.TaskDisplay(quiet=quiet) as display,
        occasional_task(display, "profile", "read and kept") as tell,
    ):
        yield workspace, tell
    keep_small(workspace, quiet)
