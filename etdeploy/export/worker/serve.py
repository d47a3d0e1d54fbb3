"""The preloaded worker: imports once what exports need, then forks itself for each export.

It answers orders as `core/processes/forks.py` describes them. A fork goes on as the worker that
`start.py` would have started: it has its own session, output, folder and environment, and ends
like any process. That is safe only while no other thread runs, and nobody else could know.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from etdeploy.core.processes.forks import ORDER_FDS
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.background import end_openmp_threads
from etdeploy.export.worker.failures import OUR_PACKAGE, system_folders
from etdeploy.export.worker.loading.paths import add_user_folder, pin_installed, user_folders

_PATIENCE_S = 2.0
# The worker's `main`, with the arguments and the modules that were preloaded.
Worker = Callable[[list[str], Collection[str]], int]


def serve(worker: Worker, before: Collection[str], needs: str, descriptor: str) -> int:
    """Serves until the socket ends; returns only in a fork, with the exit code of its export."""
    control = socket.socket(fileno=int(descriptor))
    control.set_inheritable(False)
    server = Server(control, _preloaded(before, needs), worker)
    # What is there is never garbage: a collection in a fork would copy every page of it.
    gc.collect()
    gc.freeze()
    return server.run()()


def _preloaded(before: Collection[str], needs: str) -> Preloaded | str:
    """What was imported; a sentence where no fork can be made."""
    # As the worker has it: before the user's code runs, nothing of the user is imported.
    warnings.simplefilter("default")
    add_user_folder(Path.cwd())
    pin_installed()
    try:
        os.close(os.pidfd_open(os.getpid()))  # tells the end of a child, since Linux 5.3
        preloaded = preload(before, [tuple(pair) for pair in json.loads(needs)])
        _require_one_thread()
        return preloaded
    except UnsafeForkError as error:
        return str(error)
    except Exception as error:
        traceback.print_exc()
        return f"{type(error).__name__}: {error}"


def _require_one_thread() -> None:
    """A fork takes only the calling thread along, and locks that another one holds stay locked."""
    import torch

    if torch.cuda.is_initialized():
        raise UnsafeForkError("PyTorch uses the GPU, which a fork cannot")
    end_openmp_threads()
    # OpenBLAS, which NumPy brings, ends its threads before any fork (pthread_atfork).
    trial = os.fork()
    if trial == 0:
        os._exit(0)
    os.waitpid(trial, 0)
    deadline = time.monotonic() + _PATIENCE_S
    while (threads := len(list(Path("/proc/self/task").iterdir()))) > 1:
        if time.monotonic() > deadline:
            raise UnsafeForkError(f"{threads} threads run in it")
        time.sleep(0.01)


class Server:
    """Forks a child for each order, until its socket ends.

    Every order is refused if `preloaded` is a sentence that says why no fork can be made.
    """

    def __init__(self, control: socket.socket, preloaded: Preloaded | str, worker: Worker) -> None:
        self._control = control
        self._preloaded = preloaded
        self._worker = worker
        # The children that run, with their sockets, by the handle that tells of the end.
        self._running: dict[int, tuple[int, socket.socket]] = {}

    def run(self) -> Callable[[], int]:
        """Serves; returns in each child, with what that has to do. The server itself ends."""
        while True:
            poll = select.poll()
            for descriptor in (self._control.fileno(), *self._running):
                poll.register(descriptor, select.POLLIN)
            for descriptor, _ in poll.poll():
                if descriptor in self._running:
                    self._tell_end(descriptor)
                elif work := self._take_order():
                    return work

    def _take_order(self) -> Callable[[], int] | None:
        """In the child, what it has to do; None in the server."""
        descriptors = socket.recv_fds(self._control, 16, ORDER_FDS)[1]
        if len(descriptors) < ORDER_FDS:
            self._end()
        order, answers, output, mark = descriptors
        channel = socket.socket(fileno=answers)
        if isinstance(self._preloaded, str):
            _answer(channel, f"refused {self._preloaded}")
        else:
            try:
                child = os.fork()
            except OSError as error:
                _answer(channel, f"refused it cannot fork: {error}")
            else:
                if child == 0:
                    self._forget()
                    return partial(_work, self._worker, self._preloaded, order, channel, output)
                self._running[os.pidfd_open(child)] = child, channel
        for descriptor in (order, output, mark):
            os.close(descriptor)
        return None

    def _forget(self) -> None:
        """Closes in a child what belongs to the server: an open end would hide its end."""
        self._control.close()
        for handle, (_, channel) in self._running.items():
            os.close(handle)
            channel.close()
        self._running.clear()

    def _tell_end(self, handle: int) -> None:
        child, channel = self._running.pop(handle)
        os.close(handle)
        _, status = os.waitpid(child, 0)
        _answer(channel, f"ended {os.waitstatus_to_exitcode(status)}")

    def _end(self) -> None:
        """Nobody is left who could use what still runs."""
        for child, _ in self._running.values():
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
        os._exit(0)


def _answer(channel: socket.socket, line: str) -> None:
    """Sends the last answer."""
    with channel, suppress(OSError):  # nobody waits for it any more
        channel.sendall(f"{' '.join(line.split())}\n".encode())


def _work(
    worker: Worker, preloaded: Preloaded, order: int, channel: socket.socket, output: int
) -> int:
    """Runs the worker in a child, which becomes a separate process."""
    try:
        os.setsid()
        for descriptor in (1, 2):  # stdout and stderr
            os.dup2(output, descriptor)
        os.close(output)
        arguments = _become(order)
        spec = ExportSpec.load(Path(arguments[0]))
        if met := preloaded.met_beside(spec, Path.cwd()):
            raise UnsafeForkError(f"{met} shadows a module that is already imported")
        channel.sendall(f"pid {os.getpid()}\n".encode())
    except Exception as error:
        _answer(channel, f"refused {error}")
        os._exit(0)
    channel.close()
    import torch

    # Makes PyTorch's pool of threads in this fork: of several that meet there first, one fails.
    torch.set_num_threads(torch.get_num_threads())
    return worker(arguments, preloaded.modules)


def _become(order: int) -> list[str]:
    """Takes over folder, environment and arguments of an order; returns the arguments."""
    with open(order, "rb") as content:
        request = json.load(content)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv[:] = request["argv"][1:]
    user_folders.folders.clear()  # the worker adds the working folder, which may be another
    return sys.argv[1:]


# What every export imports. The last two stand in functions of ExecuTorch.
_ALWAYS = (
    "torch",
    "executorch.exir",
    "etdeploy.export.worker.pipeline",
    "executorch.devtools.backend_debug",
    "executorch.devtools.etrecord",
)
_PT2E = ("torchao.quantization.pt2e.quantize_pt2e",)
_SCHEMES = {
    "int8_static": _PT2E,
    "int8_dynamic": _PT2E,
    "8a4w": _PT2E,
    "16a8w": _PT2E,
    "16a4w": _PT2E,
    "16a4w_block": _PT2E,
    "8da4w": ("torchao.quantization.quant_api",),
    "8da8w": ("torchao.quantization.quant_api",),
}
# Pinned before the user's code runs, in every worker; see `loading/paths.py`.
_PINNED = "executorch"


class UnsafeForkError(Exception):
    """A fork of this process would not be safe, or not be what a new process is."""


@dataclass(frozen=True)
class Preloaded:
    """Names of the modules that were imported before the user's code runs.

    `before` are those that every worker has by then.
    """

    modules: frozenset[str]
    before: frozenset[str] = frozenset()

    def met_beside(self, spec: ExportSpec, working: Path) -> Path | None:
        """A file or folder of the user that is called like one of the modules.

        If the user's code puts that folder in front of `sys.path`, a new process would import the
        user's module under that name, and a fork the one that is there already.
        """
        if not spec.runs_user_code:
            return None
        names = _packages(self.modules) - _packages(self.before) - {_PINNED}
        files = [Path(path).parent for path in spec.named_files().values()]
        for folder in dict.fromkeys((working, *files)):
            with suppress(OSError):
                for entry in sorted(folder.iterdir()):
                    if entry.name.partition(".")[0] in names and _is_module(entry):
                        return entry
        return None


def preload(before: Collection[str], needs: Iterable[tuple[str | None, str | None]]) -> Preloaded:
    """Imports what exports need."""
    for name in _ALWAYS:
        importlib.import_module(name)
    for backend, scheme in sorted({(b or "", s or "") for b, s in needs}):
        try:
            _prepare(backend, scheme)
        except Exception:  # the export that needs it will say so, with what to do
            traceback.print_exc()
    _require_installed()
    return Preloaded(frozenset(sys.modules) - frozenset(before), frozenset(before))


def _prepare(backend: str, scheme: str) -> None:
    from etdeploy.export.worker.backends.base import lowering_for

    for name in _SCHEMES.get(scheme, ()):
        importlib.import_module(name)
    with no_progress_bar():
        lowering_for(backend).preload(scheme)


def _packages(modules: Iterable[str]) -> set[str]:
    return {module.partition(".")[0] for module in modules}


def _is_module(path: Path) -> bool:
    """Whether an import may find it; a folder without that file comes after any module."""
    return path.suffix in (".py", ".so", ".pyc") or (path / "__init__.py").is_file()


def _require_installed() -> None:
    """Only files of the user's code are watched; files of installed packages have a version."""
    fixed = (*system_folders(), OUR_PACKAGE)
    files = {name: getattr(module, "__file__", None) for name, module in [*sys.modules.items()]}
    for name, file in files.items():
        # Modules without a file may carry any text there: torch.ops has "_ops.py".
        if file is None or not (Path(file).is_absolute() and Path(file).is_file()):
            continue
        if not any(Path(file).resolve().is_relative_to(folder) for folder in fixed):
            raise UnsafeForkError(f"{name} comes from {file}, which is not an installed package")


@contextmanager
def no_progress_bar() -> Iterator[None]:
    """Keeps tqdm, with which torch.fx counts, from starting a thread that looks after its bars."""
    from tqdm import tqdm  # type: ignore[import-untyped]

    before, tqdm.monitor_interval = tqdm.monitor_interval, 0
    try:
        yield
    finally:
        tqdm.monitor_interval = before
