"""One request to stop, seen by every thread.

Ctrl-C and SIGTERM only raise a flag here and end the children; each stage notices at its next
`checkpoint()` and unwinds through its context managers, so nothing half-written stays behind and
the task graph still saves its state.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from etdeploy.core.errors import Interrupted

_requested = threading.Event()
_on_request: list[Callable[[], None]] = []


def requested() -> bool:
    """Whether the run was asked to stop."""
    return _requested.is_set()


def checkpoint() -> None:
    """Raises `Interrupted` when the run was asked to stop."""
    if _requested.is_set():
        raise Interrupted


def request() -> None:
    """Asks every thread of this run to stop, and its children to end."""
    _requested.set()
    for action in list(_on_request):
        action()


def on_request(action: Callable[[], None]) -> None:
    """Registers what happens at once when a stop is requested (in the signal handler)."""
    _on_request.append(action)


def _handle(signum: int, _frame: FrameType | None) -> None:
    if _requested.is_set() and signum == signal.SIGINT:
        # A second Ctrl-C: the user will not wait for the tidy end.
        os._exit(130)
    request()


@contextmanager
def trapped_signals() -> Iterator[None]:
    """Turns SIGINT and SIGTERM into a stop request while the block runs."""
    signals = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, _handle) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _requested.clear()
