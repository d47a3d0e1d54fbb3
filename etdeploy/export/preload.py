"""Exports that share one preloaded process.

To import PyTorch and ExecuTorch takes longer than to export a small model. A run with several
exports imports them once: a server process does (`worker/serve.py`), and each export is a fork of
it, as isolated as a new process. The dynamic loader reads LD_LIBRARY_PATH when a process
starts, so each environment that exports ask for has its own server. Only on Linux: on macOS
the system's libraries do not work in a fork, and Windows has none.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from etdeploy.backends.registry import backend_named
from etdeploy.backends.values import Workstation
from etdeploy.core.processes import process
from etdeploy.core.processes.forks import ForkLostError, ForkRefusedError, ForkServer
from etdeploy.export.hf.memory import machine_memory
from etdeploy.export.protocol import progress_line
from etdeploy.export.spec import ExportSpec

WORKER = (sys.executable, str(Path(__file__).resolve().parent / "worker" / "start.py"))
# Unbuffered, so that the log is in order; a crash in native code leaves the Python stack. OpenMP's
# threads that wait for each other leave the processor to the forks that compute meanwhile: while
# they spun, steps beside a fork took three times as long.
_ENVIRONMENT: Mapping[str, str | None] = {
    "PYTHONUNBUFFERED": "1",
    "PYTHONFAULTHANDLER": "1",
    "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE"),
}
# PyTorch's: large tensors get huge pages where Linux has them on request. A model with 10^9
# parameters takes a tenth less time, and up to a tenth more memory.
_HUGE_PAGES: Mapping[str, str | None] = {
    "THP_MEM_ALLOC_ENABLE": os.environ.get("THP_MEM_ALLOC_ENABLE", "1")
}
_HUGE_PAGES_FROM_BYTES = 12 << 30
# The variables of an environment.
_Key = tuple[tuple[str, str | None], ...]


class Exporter(Protocol):
    """Runs the worker processes of exports; any thread may use it."""

    def run(self, request: process.Request, undo: Callable[[], None]) -> process.Outcome:
        """Runs one worker to its end; `undo` removes what a first attempt left, before a second."""


class _OwnProcesses:
    """Starts a process for each export."""

    def run(self, request: process.Request, undo: Callable[[], None]) -> process.Outcome:  # noqa: ARG002 - there is no second attempt
        return process.run(request)


OWN_PROCESSES: Exporter = _OwnProcesses()


@contextmanager
def preloaded_exports(specs: Iterable[ExportSpec]) -> Iterator[Exporter]:
    """An exporter for all exports of a run; what it has started ends with the block.

    Nothing is started before the first export runs, and no process is preloaded for fewer than two
    exports of one environment. After as many as `specs` has, it is ended already.
    """
    groups: dict[_Key, list[ExportSpec]] = {}
    for spec in specs if sys.platform == "linux" else ():
        if not spec.is_finished:  # a finished one starts no process
            groups.setdefault(_key(worker_environment(spec)), []).append(spec)
    groups = {key: specs for key, specs in groups.items() if len(specs) > 1}
    if not groups:
        yield OWN_PROCESSES
        return
    with ExitStack() as stack:
        yield _SharedProcesses(
            {
                key: _SharedProcess(dict(key), specs, stack.enter_context(ExitStack()))
                for key, specs in groups.items()
            }
        )


def _key(environment: Mapping[str, str | None] | None) -> _Key:
    return tuple(sorted((environment or {}).items()))


def task_command(request: Path, answer: Path) -> process.Request:
    """Starts a worker that reads the result of a task's program."""
    argv = (*WORKER, "--task", str(request), str(answer))
    return process.Request(argv=argv, env=_ENVIRONMENT)


def replay_command(spec: ExportSpec, request: Path, answer: Path) -> process.Request:
    """Starts a worker that evaluates a program's graph with values of the device."""
    argv = (*WORKER, "--replay", str(request), str(answer))
    return process.Request(argv=argv, env=worker_environment(spec))


def worker_environment(spec: ExportSpec) -> dict[str, str | None]:
    """Changes to the environment of an export's worker; None removes a variable."""
    if spec.backend is None:
        return dict(_ENVIRONMENT)
    backend = backend_named(spec.backend)
    own = backend.export_environment(spec.request, Workstation.this())
    roomy = machine_memory().total_bytes >= _HUGE_PAGES_FROM_BYTES
    return {**_ENVIRONMENT, **(_HUGE_PAGES if roomy else {}), **own}


class _SharedProcesses:
    """The server of each environment; a new process for an export with another."""

    def __init__(self, servers: Mapping[_Key, _SharedProcess]) -> None:
        self._servers = servers

    def run(self, request: process.Request, undo: Callable[[], None]) -> process.Outcome:
        return self._servers.get(_key(request.env), OWN_PROCESSES).run(request, undo)


class _SharedProcess:
    """Starts the server at the first export; where it cannot fork, a process for the export.

    The server ends with the last export that is expected: what follows in a run, like a
    measurement on this machine, has its memory.
    """

    def __init__(
        self,
        environment: Mapping[str, str | None],
        specs: Sequence[ExportSpec],
        stack: ExitStack,
    ) -> None:
        self._environment = environment
        needs = sorted({(spec.backend or "", spec.quantization or "") for spec in specs})
        self._needs = json.dumps(needs)
        self._expected = len(specs)
        self._stack = stack
        self._server: ForkServer | None = None
        self._has_forked = False
        self._running = 0
        self._lock = threading.Lock()

    def run(self, request: process.Request, undo: Callable[[], None]) -> process.Outcome:
        if self._expected <= 0:
            return process.run(request)
        if request.on_line and not self._has_forked:
            request.on_line(progress_line("importing PyTorch and ExecuTorch for all exports", 0.01))
        try:
            with self._serving(request.log) as server:
                outcome = process.run(request, server)
            self._has_forked = True
            return outcome
        except ForkRefusedError as error:
            _note(request.log, f"the preloaded process does not take this export: {error}")
        except ForkLostError:
            _note(request.log, "the preloaded process ended, and this export with it")
        undo()
        return process.run(request)

    @contextmanager
    def _serving(self, log: Path | None) -> Iterator[ForkServer]:
        """The server, for one export."""
        with self._lock:
            if self._server is None:
                argv = (*WORKER, "--serve", self._needs)
                request = process.Request(argv, env=self._environment, log=log)
                self._server = self._stack.enter_context(process.fork_server(request))
            self._running += 1
            server = self._server
        try:
            yield server
        finally:
            with self._lock:
                self._running -= 1
                self._expected -= 1
                if self._expected <= 0 and not self._running:
                    self._stack.close()
                    self._server = None


def _note(log: Path | None, text: str) -> None:
    if log:
        with log.open("a") as stream:
            stream.write(f"[{text}; the export gets a process of its own]\n")
