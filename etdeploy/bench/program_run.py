"""A pushed program in a run's folder on a device, and a runner there that listens to lines."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import TypeVar, cast

from etdeploy.backends.values import Simulated
from etdeploy.bench.diagnosis import TEXT, run_error
from etdeploy.bench.threads import choose_threads
from etdeploy.core import cancel
from etdeploy.core.errors import RunError, UsageError
from etdeploy.core.files.basic import write_atomic
from etdeploy.devices.base import (
    Bundle,
    ConversingRun,
    Device,
    DeviceState,
    RunOutcome,
    StreamingRun,
    Talk,
)
from etdeploy.program.folder import PROGRAM_FILE
from etdeploy.recipe.model import Recipe
from etdeploy.runner.generation import READY

PROGRAM = f"{{bundle}}/{PROGRAM_FILE}"
"""The program, as a runner on the device sees it."""
IDLE_TIMEOUT_S = 3600
"""A runner without input for so long exits; the next request starts another one."""


@dataclass(frozen=True)
class ProgramRun:
    """A run's folder of a program on a locked device.

    Attributes:
        device: The device.
        folder: The run's folder there.
        recipe: Gives the time limit and the number of threads.
        log: Where the runner's stderr goes.
        here: A folder for files that are sent and received.
        simulated: What computes in place of a device's processor, whose times are none of the
            device's.
    """

    device: Device
    folder: StreamingRun
    recipe: Recipe
    log: Path
    here: Path
    simulated: Simulated | None

    def put(self, name: str, content: str | bytes | Iterable[bytes]) -> None:
        """Write a file in the run's folder."""
        write_atomic(self.here / name, content)
        self.folder.put(self.here / name, name)

    @property
    def threads(self) -> int:
        """The number of threads that the recipe requests; 0 for ExecuTorch's choice."""
        requested = self.recipe.runtime.threads
        if not isinstance(requested, int | str):
            return 0
        state = self.device.state() if isinstance(requested, str) else DeviceState()
        return choose_threads(requested, state).numbers[0]

    def is_failure(self, outcome: RunOutcome) -> bool:
        """Whether the runner failed; writes its stderr to the log.

        Raises Interrupted when a stop ended it.
        """
        self.log.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(self.log, outcome.stderr)
        if outcome.exit_code != 0:
            cancel.checkpoint()
        return outcome.exit_code != 0

    def failure(self, outcome: RunOutcome) -> RunError:
        """The error for a runner that failed."""
        return run_error(
            outcome,
            TEXT,
            self.recipe,
            self.device.name,
            self.log,
            self.device.capabilities,
            iterations=1,
        )


@contextmanager
def open_run_folder(
    device: Device, bundle: Bundle, suffix: str
) -> Iterator[tuple[StreamingRun, Path]]:
    """Open a run's folder on a locked device, and a folder here; both are removed at the end.

    Raises:
        UsageError: The device cannot stream a program's output.
    """
    if not device.capabilities.streams:
        raise UsageError(
            f"{device.name} cannot stream the output of a running program",
            remedy="Use another device (etdeploy devices), or measure on this one: etdeploy run",
        )
    device.end_leftovers()
    started = datetime.now(timezone.utc)
    run_id = f"{started:%Y%m%d-%H%M%S-%f}-{suffix}"
    with TemporaryDirectory(prefix="etdeploy-") as here, device.open_run(bundle, run_id) as folder:
        yield cast(StreamingRun, folder), Path(here)


class IdleExitError(RunError):
    """The runner exited by itself after a time without input."""


R = TypeVar("R", bound=ProgramRun)


class ListeningProcess:
    """A runner that stays loaded, and answers lines.

    Args:
        run: Its folder must support conversations (`ConversingRun`).
        idle_timeout_s: It exits after so long without a line.
        flag: Stops whatever is being waited for; by default that of the caller's run.
    """

    def __init__(
        self,
        run: ProgramRun,
        idle_timeout_s: int = IDLE_TIMEOUT_S,
        flag: cancel.Flag | None = None,
    ) -> None:
        self._run = run
        self._idle_timeout_s = idle_timeout_s
        self._flag = flag
        self._stack = ExitStack()
        self._talk: Talk | None = None
        self.load_ms = 0.0
        """From the start of the process, as seen from here, until the program was loaded."""

    @property
    def is_running(self) -> bool:
        """Whether the process was started, and has not been seen to end."""
        return self._talk is not None

    def load(self) -> None:
        """Start the process, unless it runs."""
        if self._talk is None:
            self._start()

    def end(self) -> None:
        """End the process; the next request starts another one."""
        self._talk = None
        stack, self._stack = self._stack, ExitStack()
        stack.close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def _arguments(self) -> tuple[str, ...]:
        """Send what the process reads at its start; return its arguments."""
        raise NotImplementedError

    def _start(self) -> Talk:
        """Start the runner, and wait until it has loaded the program."""
        arguments = self._arguments()
        folder = cast(ConversingRun, self._run.folder)
        deadline = self._deadline()
        started_s = time.monotonic()
        try:
            talk = self._stack.enter_context(folder.converse(arguments))
            self._expect(talk, READY, deadline)
        except BaseException:
            self.end()
            raise
        self.load_ms = 1000 * (time.monotonic() - started_s)
        self._talk = talk
        return talk

    def _deadline(self) -> float:
        return time.monotonic() + self._run.recipe.benchmark.timeout_s

    def _expect(self, talk: Talk, wanted: str, deadline: float) -> None:
        if (line := self._read_line(talk, deadline)) != wanted:
            raise unexpected_line(line)

    def _request(self, line: str, reply: str) -> None:
        """Send a line that has one reply."""
        talk = self._talk or self._start()
        try:
            talk.write_line(line)
            self._expect(talk, reply, self._deadline())
        except BaseException:
            self.end()
            raise

    def _read_line(self, talk: Talk, deadline: float) -> str:
        # A generator keeps no context from one step to the next.
        with cancel.bound(self._flag or cancel.current()):
            try:
                line = talk.read_line(max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                line = None
            if line is not None:
                return line
            outcome = talk.end()
            if self._run.is_failure(outcome):
                raise self._run.failure(outcome)
        raise IdleExitError("the runner ended before its answer did")


def unexpected_line(line: str) -> RunError:
    """The error for a line that is not part of the protocol."""
    return RunError(f"the runner printed {line[:80]!r}, which is not part of an answer")
