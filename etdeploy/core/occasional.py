"""Work that may have nothing to do: it is shown as a task only if it says something."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from etdeploy.core import console
from etdeploy.core.progress import Progress


@contextmanager
def occasional_task(display: console.TaskDisplay, name: str, done: str) -> Iterator[Progress]:
    """Gives the progress of work that may have nothing to do.

    Args:
        display: Shows the task from its first progress on.
        name: Of the task.
        done: What is shown when the block ends well.
    """
    started = False

    def tell(text: str, fraction: float | None = None) -> None:
        nonlocal started
        if not started:
            display.start(name)
        started = True
        display.advance(name, text, fraction)

    yield tell
    if started:
        display.end(name, done)
