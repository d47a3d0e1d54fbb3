"""A request to stop, seen by every thread of the run that it is for.

Ctrl-C and SIGTERM only raise a flag here and end the children; each stage notices at its next
`checkpoint()` and unwinds through its context managers, so nothing half-written stays behind and
the task graph still saves its state.

Each run has its own flag (`trapped_signals`), so that runs in several threads do not stop each
other; a signal stops all of them. A thread that a run starts must be bound to the run's flag
(`bound`); without that, it belongs to the only run, if there is just one.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any, TypeVar

from etdeploy.core.errors import Interrupted


class Flag:
    """A request to stop; a flag is also up while one of its parents is up.

    A plain value, not a threading.Event: a signal handler may interrupt the thread that holds the
    event's lock.
    """

    def __init__(self, *parents: Flag) -> None:
        self._is_up = False
        self._parents = parents

    def is_set(self) -> bool:
        """Whether it is up."""
        return self._is_up or any(parent.is_set() for parent in self._parents)

    def set(self) -> None:
        """Raises it."""
        self._is_up = True

    def clear(self) -> None:
        """Takes it down."""
        self._is_up = False


MOST_THREADS = 64
"""For work that waits, such as asking devices."""

S = TypeVar("S")
T = TypeVar("T")
# How soon a sleeper notices a stop.
_SLICE_S = 0.2
# Above the flags of all runs; a signal raises it.
_requested = Flag()
_signalled = Flag()
_current: ContextVar[Flag | None] = ContextVar("etdeploy_run", default=None)
_runs: list[Flag] = []
_runs_lock = threading.Lock()
_on_request: list[Callable[[], None]] = []


def current() -> Flag:
    """The flag of this thread's run; outside of a run, the parent of all."""
    mine = _current.get()
    if mine is not None:
        return mine
    runs = list(_runs)
    return runs[0] if len(runs) == 1 else _requested


@contextmanager
def bound(flag: Flag) -> Iterator[None]:
    """Binds this thread to the run with that flag while the block runs."""
    token = _current.set(flag)
    try:
        yield
    finally:
        _current.reset(token)


def requested() -> bool:
    """Whether the run was asked to stop."""
    return current().is_set()


def checkpoint() -> None:
    """Raises `Interrupted` when the run was asked to stop."""
    if requested():
        raise Interrupted


def in_threads(call: Callable[[S], T], items: Iterable[S]) -> list[T]:
    """Calls something that waits for each item, in threads of this run; results in order."""
    flag = current()

    def called(item: S) -> T:
        with bound(flag):
            return call(item)

    waiting = list(items)
    if len(waiting) < 2:
        return list(map(call, waiting))
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(MOST_THREADS) as pool:
        return list(pool.map(called, waiting))


def sleep_until_stopped(
    seconds: float, clock: Callable[[], float], sleep: Callable[[float], None]
) -> None:
    """Sleeps in slices, each after a checkpoint."""
    until = clock() + seconds
    while (left := until - clock()) > 0:
        checkpoint()
        sleep(min(left, _SLICE_S))
    checkpoint()


def request() -> None:
    """Asks every thread of this run to stop, and its children to end."""
    flag = current()
    flag.set()
    if flag is _requested or _runs in ([], [flag]):
        _act()
    # Else the thread that waits for a child ends it: other children belong to other runs.


def on_request(action: Callable[[], None]) -> None:
    """Registers an action to call when all runs are asked to stop (in the signal handler)."""
    _on_request.append(action)


def _act() -> None:
    for action in list(_on_request):
        action()


def _handle(signum: int, _frame: FrameType | None) -> None:
    if _signalled.is_set() and signum == signal.SIGINT:
        # A second Ctrl-C: the user will not wait for an orderly stop.
        os._exit(130)
    _signalled.set()
    _requested.set()
    _act()


@contextmanager
def trapped_signals() -> Iterator[None]:
    """Gives the block its own flag, and turns SIGINT and SIGTERM into requests to all runs.

    In Python only the main thread can handle signals; in another thread the block only gets its
    flag.
    """
    flag = Flag(current() if _current.get() is not None else _requested)
    with _runs_lock:
        _runs.append(flag)
    try:
        with _handlers(), bound(flag):
            yield
    finally:
        with _runs_lock:
            _runs.remove(flag)
            if not _runs:
                _requested.clear()
                _signalled.clear()


@contextmanager
def first_interrupt(flag: Flag) -> Iterator[None]:
    """Lets a first Ctrl-C in the block raise this flag and nothing else; a second one stops all.

    The block has to be in the main thread, within `trapped_signals`.
    """

    def handle(signum: int, frame: FrameType | None) -> None:
        if flag.is_set():
            _handle(signum, frame)
        else:
            flag.set()

    with _handled({signal.SIGINT: handle}):
        yield


@contextmanager
def waiting_for_input() -> Iterator[None]:
    """Lets signals end a wait for somebody's input, which goes on after a handler that returns."""

    def handle(signum: int, frame: FrameType | None) -> None:
        _handle(signum, frame)
        raise Interrupted

    with _handled({signal.SIGINT: signal.default_int_handler, signal.SIGTERM: handle}):
        checkpoint()  # one that came before the handlers were there would end no wait
        yield


@contextmanager
def _handlers() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with _handled({signal.SIGINT: _handle, signal.SIGTERM: _handle}):
        yield


@contextmanager
def _handled(
    handlers: Mapping[signal.Signals, Callable[[int, FrameType | None], Any]],
) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
