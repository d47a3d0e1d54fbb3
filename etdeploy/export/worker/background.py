"""Computations in a fork of this process, concurrent with its own work.

A fork has all that is in memory, without a copy, and sees nothing of what is changed afterwards. So
a model can be run as it was loaded while its weights are quantized in place, and lowered.
"""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
import pickle
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from etdeploy.export.worker.failures import WorkerError, failure_of

Made = TypeVar("Made")
_OMP_PAUSE_HARD = 2
# In a fork: a byte shared with its parent, which sets it when it only waits for the fork's result.
_waited_for: mmap.mmap | None = None


class Starter(Protocol):
    """Starts a computation, and returns a function that waits for its result."""

    def __call__(self, compute: Callable[[], Made], /) -> Callable[[], Made]: ...


def at_once(compute: Callable[[], Made]) -> Callable[[], Made]:
    """Compute in this process, before returning."""
    found = compute()
    return lambda: found


def when_needed(compute: Callable[[], Made]) -> Callable[[], Made]:
    """Compute in this process as soon as the result is asked for."""
    return compute


class BackgroundLostError(Exception):
    """A fork ended without an answer: the system has killed it, as it does without memory."""


class ForkedComputation(Generic[Made]):
    """What `compute` gives, from a fork that begins at once and has all threads but one.

    The fork has one thread, whatever this process has: `compute` must not need a lock that
    another thread holds, such as that of a library with its own threads. OpenMP's threads are
    ended before the fork.
    """

    def __init__(self, compute: Callable[[], Made]) -> None:
        end_openmp_threads()
        context = multiprocessing.get_context("fork")
        self._answers, answer = context.Pipe(duplex=False)
        self._started_by, self._waited_for = os.getpid(), mmap.mmap(-1, 1)
        arguments = (compute, answer, self._waited_for)
        process = context.Process(target=_work, args=arguments, daemon=True)
        with warnings.catch_warnings():
            # Of Python 3.12 and later: this process has several threads.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        answer.close()

    def result(self) -> Made:
        """Waits for it; to be called once, in this process or in a later fork of it.

        Raises:
            WorkerError: The computation failed.
            BackgroundLostError: The fork was killed.
        """
        if os.getpid() == self._started_by:
            self._waited_for[0] = 1
        try:
            made, failure = pickle.loads(self._answers.recv_bytes())  # noqa: S301 - our own fork
        except EOFError:
            raise BackgroundLostError from None
        if failure is not None:
            raise WorkerError(failure)
        found: Made = made
        return found


def can_fork() -> bool:
    """Whether a fork of this process can run beside it."""
    # The libraries of macOS do not work in a fork, and Windows has none.
    return sys.platform == "linux" and len(os.sched_getaffinity(0)) > 1


def use_idle_threads() -> None:
    """In a fork, compute with one more thread once its parent only waits for its result."""
    global _waited_for
    if _waited_for is None or not _waited_for[0]:
        return
    import torch

    _waited_for = None
    torch.set_num_threads(torch.get_num_threads() + 1)


def _work(compute: Callable[[], Made], answer: Connection, waited_for: mmap.mmap) -> None:
    import torch

    global _waited_for
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads - 1))
    # With one thread, there is none that becomes idle.
    _waited_for = waited_for if threads > 1 else None
    try:
        content = pickle.dumps((compute(), None))
    except BackgroundLostError:
        return
    except BaseException as error:  # whoever waits for the result gets it
        content = pickle.dumps((None, failure_of(error)))
    with suppress(BrokenPipeError):  # nobody waits any more
        answer.send_bytes(content)


def end_openmp_threads() -> None:
    """Ends the pool of threads, for which a child would wait in vain; the next loop makes another.

    `omp_pause_resource_all` came with OpenMP 5.0.
    """
    lines = Path("/proc/self/maps").read_text().splitlines()
    libraries = {path for line in lines if "omp" in Path(path := line.split()[-1]).name}
    for path in libraries:
        with suppress(OSError, AttributeError):
            ctypes.CDLL(path).omp_pause_resource_all(_OMP_PAUSE_HARD)
