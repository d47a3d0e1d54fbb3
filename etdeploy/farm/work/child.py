"""An attempt in a separate process: a crash, a hang or a kill of it only ends the attempt.

The child reads one line from stdin, a `ChildTask`, and writes lines to stdout, each a
`ChildMessage`; the last has the result, which therefore arrives even if the disk is full. It leads
its own session, and is killed with its parent (`core/processes/orphans.py`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from etdeploy.cache.workspace import Workspace
from etdeploy.core import cancel, console
from etdeploy.core.errors import Interrupted
from etdeploy.core.processes import process
from etdeploy.core.processes.conversation import InteractiveProcess
from etdeploy.core.values import Progress, Value, silent
from etdeploy.devices.local.device import oom_kills
from etdeploy.farm.model import AttemptFailure, AttemptResult, Fate, Order
from etdeploy.farm.work.artifact import failure_of, host_failure, time_limit_failure

_START = Path(__file__).with_name("start.py")
_READ = 1 << 16
# A child that has told its ending has nothing left to do.
_END_S = 10.0
_SPEAK_S = 0.5
_LAST_WORDS = 2000


class ChildTask(Value):
    """What the child is to do."""

    order: Order
    artifact_folder: str
    output: str


class ChildMessage(Value):
    """A line of the child: what it does now, that it is idle, or how it ended."""

    doing: str | None = None
    fraction: float | None = None
    idle: bool = False
    ending: AttemptResult | None = None


def run_attempt(
    order: Order,
    artifact_folder: Path,
    output: Path,
    limit_s: float,
    cancelled: cancel.Flag,
    progress: Progress = silent,
    idle: Callable[[], None] = lambda: None,
) -> AttemptResult:
    """Does an attempt in a child process, and says how it ended, whatever happens to the child."""
    begun_s = time.monotonic()
    task = ChildTask(
        order=order, artifact_folder=str(artifact_folder), output=str(output.absolute())
    )
    heard = _ChildOutput(progress, idle)

    def ended(fate: Fate, failure: AttemptFailure) -> AttemptResult:
        return order.end(fate, failure, begun_s)

    cache = Workspace.default().root
    try:
        with cancel.bound(cancelled):
            return _followed(task, limit_s, heard) or ended(*_lost(heard, order.offer.host))
    except TimeoutError:
        return heard.ending or ended(
            Fate.FAILED, time_limit_failure(limit_s, order.offer.name, heard.doing)
        )
    except Interrupted as error:
        return heard.ending or ended(Fate.PUT_OFF, failure_of(error, cache))
    except OSError as error:  # no room for a process, or no memory
        return ended(Fate.FAILED, host_failure(f"no process can be started: {error}"))


class _ChildOutput:
    """What a child has said so far."""

    def __init__(self, progress: Progress, idle: Callable[[], None]) -> None:
        self._progress, self._idle = progress, idle
        self._rest = b""
        self.ending: AttemptResult | None = None
        self.doing = ""
        self.exit_code: int | None = None
        self.errors = ""
        self.memory_ran_out = False

    def take(self, part: bytes) -> None:
        *lines, self._rest = (self._rest + part).split(b"\n")
        for line in lines:
            self._line(line)

    def _line(self, line: bytes) -> None:
        try:
            said = ChildMessage.model_validate_json(line)
        except ValidationError:  # a library that prints
            return
        if said.doing is not None:
            self.doing = said.doing
            self._progress(said.doing, said.fraction)
        if said.idle:
            self._idle()
        self.ending = said.ending or self.ending


def _followed(task: ChildTask, limit_s: float, heard: _ChildOutput) -> AttemptResult | None:
    """Follows a child to its end; None if it did not say how it ended."""
    deadline = time.monotonic() + limit_s
    kills = oom_kills()
    # Its own output must come at once, and no variable of the user's may change what it imports.
    request = process.Request((sys.executable, str(_START)), env={"PYTHONUNBUFFERED": "1"})
    with process.talking(request) as child:
        child.say(f"{task.model_dump_json()}\n".encode())
        child.end_input()
        while part := child.read(_READ, max(0.0, deadline - time.monotonic())):
            heard.take(part)
        if heard.ending is None:
            heard.exit_code = _exit_code(child)
            heard.errors = child.errors()[-_LAST_WORDS:].strip()
            heard.memory_ran_out = kills is not None and oom_kills() != kills
        return heard.ending


def _exit_code(child: InteractiveProcess) -> int | None:
    try:
        return child.ended(_END_S)
    except TimeoutError:
        return None


def _lost(heard: _ChildOutput, host: str) -> tuple[Fate, AttemptFailure]:
    """A child that ended without a word: nothing is known of the attempt."""
    code = heard.exit_code
    how = "does not end"
    if code is not None:
        how = f"was ended by {process.signal_name(-code)}" if code < 0 else f"ended with {code}"
    memory = ", and memory ran out on this host meanwhile" if heard.memory_ran_out else ""
    doing = f" while {heard.doing}" if heard.doing else ""
    said = f"\n{heard.errors}" if heard.errors else ""
    return Fate.LOST, host_failure(f"the process that measured {how}{doing}{memory}{said}", host)


def main() -> int:
    """The child; what it is to do comes from stdin."""
    console.open_streams()
    with cancel.trapped_signals():
        task = ChildTask.model_validate_json(sys.stdin.readline())
        from etdeploy.farm.work.attempt import attempt

        speaker = _Speaker()
        ending = attempt(
            task.order,
            Path(task.artifact_folder),
            Path(task.output),
            speaker.progress,
            speaker.idle,
        )
    _say(ChildMessage(ending=ending))
    return 0


class _Speaker:
    """Tells what is new, and how far it is only now and then."""

    def __init__(self) -> None:
        self._doing = ""
        self._spoken_s = 0.0
        self._is_idle = False

    def progress(self, text: str, fraction: float | None = None) -> None:
        now = time.monotonic()
        if text == self._doing and now - self._spoken_s < _SPEAK_S:
            return
        self._doing, self._spoken_s = text, now
        _say(ChildMessage(doing=text, fraction=fraction))

    def idle(self) -> None:
        if not self._is_idle:
            self._is_idle = True
            _say(ChildMessage(idle=True))


def _say(said: ChildMessage) -> None:
    console.result(said.model_dump_json(exclude_defaults=True))
