"""Exports that share one preloaded process.

To import PyTorch and ExecuTorch takes longer than to export a small model. A run with several
exports imports them once: a server process does (`worker/serve.py`), and each export is a fork of
it, as isolated as a process of its own. Only on Linux: on macOS the system's libraries do not work
in a fork, and Windows has none.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from etdeploy.backends.registry import backend_named
from etdeploy.backends.values import Workstation
from etdeploy.core.processes import process
from etdeploy.core.processes.forks import ForkLostError, ForkRefusedError, ForkServer
from etdeploy.export.protocol import progress_line
from etdeploy.export.spec import ExportSpec

WORKER = (sys.executable, str(Path(__file__).resolve().parent / "worker" / "start.py"))
# Unbuffered, so that the log is in order; a crash in native code leaves the Python stack.
_ENVIRONMENT: Mapping[str, str | None] = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}


class Exporter(Protocol):
    """Runs the worker processes of exports; any thread may use it."""

    def run(self, request: process.Request, undo: Callable[[], None]) -> process.Outcome:
        """Runs one worker to its end.

        Args:
            request: The worker, with its spec and its folder.
            undo: Removes what a first attempt left, before a second one.

        Raises:
            Interrupted: The run was asked to stop; the worker and its children are gone.
        """


class _OwnProcesses:
    """Starts a process for each export."""

    def run(self, request: process.Request, undo: Callable[[], None]) -> process.Outcome:  # noqa: ARG002 - there is no second attempt
        return process.run(request)


OWN_PROCESSES: Exporter = _OwnProcesses()


@contextmanager
def preloaded_exports(specs: Iterable[ExportSpec]) -> Iterator[Exporter]:
    """An exporter for all exports of a run; what it has started ends with the block.

    Nothing is started before the first export runs, and no process is preloaded for fewer than two
    exports. After as many as were expected it is ended already.

    Args:
        specs: What is probably to be exported, each once. Others may be, too.
    """
    sharing = [spec for spec in specs if can_share(spec)]
    if len(sharing) < 2 or sys.platform != "linux":
        yield OWN_PROCESSES
        return
    needs = sorted({(spec.backend or "", spec.quantization or "") for spec in sharing})
    with ExitStack() as stack:
        yield _SharedProcess(json.dumps(needs), len(sharing), stack)


def can_share(spec: ExportSpec) -> bool:
    """Whether its worker can be a fork: finished programs need none, others an environment.

    The dynamic loader reads LD_LIBRARY_PATH when a process starts.
    """
    return not spec.program and worker_environment(spec) == _ENVIRONMENT


def worker_environment(spec: ExportSpec) -> dict[str, str | None]:
    """Changes to the environment of an export's worker; None removes a variable."""
    backend = backend_named(str(spec.backend))
    return {**_ENVIRONMENT, **backend.export_environment(spec.request, Workstation.this())}


class _SharedProcess:
    """Starts the server at the first export; where it cannot fork, a process for the export.

    The server ends with the last export that is expected: what follows in a run, like a
    measurement on this machine, has its memory.
    """

    def __init__(self, needs: str, expected: int, stack: ExitStack) -> None:
        self._needs = needs
        self._expected = expected
        self._stack = stack
        self._server: ForkServer | None = None
        self._has_forked = False
        self._running = 0
        self._lock = threading.Lock()

    def run(self, request: process.Request, undo: Callable[[], None]) -> process.Outcome:
        if request.env != _ENVIRONMENT or self._expected <= 0:
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
                request = process.Request(argv, env=_ENVIRONMENT, log=log)
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
