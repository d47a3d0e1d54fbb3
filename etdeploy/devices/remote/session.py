"""One shell on a device that runs all commands of a push, one after another.

A connection for each command would cost more than most of the commands. A command can also be begun
without waiting for the one before it, or while a file travels; the answers come in the same order.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from etdeploy.core.errors import DeviceError
from etdeploy.devices.remote.shell import Held, RemoteShell
from etdeploy.devices.shell import ShellResult

HASH_S = 900.0
"""How long a device may be silent that reads a content of several GB."""
# Shells read their input byte by byte: from here on, a connection of its own is faster.
_LONGEST = 32_000


def loop_command(marker: str) -> str:
    """Runs each script that comes at its input; prints after each the marker and its exit code.

    A script's own input is empty; what is said to it comes at 3. `$code` is the exit code of the
    script before it.
    """
    return "\n".join(
        (
            "code=0",
            "while read -r word lines; do",
            # A script that ended early leaves what was said to it.
            '  [ "$word" = run ] || continue; script=',
            "  while [ $lines -gt 0 ]; do IFS= read -r line || break 2",
            "  script=$script$line'\n'; lines=$((lines - 1)); done",
            f'  ( eval "$script" ) 3<&0 </dev/null; code=$?; echo {marker}:$code',
            "done",
        )
    )


@dataclass
class Begun:
    """A script that was begun.

    Attributes:
        doing: What it is for, in the message of an error.
        done: Takes its result.
        idle_s: How long it may be silent.
        ended_s: When its result came, by the monotonic clock.
    """

    doing: str
    done: Callable[[ShellResult], None]
    idle_s: float | None
    ended_s: float = 0.0


class Session:
    """The shell of one push.

    Args:
        shell: The connection.
        held: The shell, which runs `loop_command`.
        folder: Of the push.
        marker: Of that command.
    """

    def __init__(self, shell: RemoteShell, held: Held, folder: str, marker: str) -> None:
        self.folder = folder
        self._shell = shell
        self._held = held
        self._marker = marker
        self._waiting: deque[Begun] = deque()
        self._last: Begun | None = None

    @property
    def last(self) -> Begun | None:
        """The script that was begun last."""
        return self._last

    def begin(
        self,
        script: str,
        doing: str,
        done: Callable[[ShellResult], None],
        idle_s: float | None = None,
        *,
        after_success: bool = False,
    ) -> Begun:
        """Has a script run after those before it; returns at once.

        Args:
            script: For `sh`; what is said to it comes at its descriptor 3.
            doing: What it is for.
            done: Takes the result, in the order in which scripts were begun; may raise.
            idle_s: How long it may be silent.
            after_success: Does nothing, with the same exit code, if the one before failed.
        """
        begun = self._last = Begun(doing, done, idle_s)
        if len(script) > _LONGEST:
            return self._run_apart(script, begun)
        if after_success:
            script = f"[ $code = 0 ] || exit $code\n{script}"
        self._held.say(f"run {script.count(chr(10)) + 1}\n{script}", doing)
        self._waiting.append(begun)
        return begun

    def demand(
        self, script: str, doing: str, idle_s: float | None = None, *, after_success: bool = False
    ) -> None:
        """Like `begin`, for a script that must succeed (DeviceError if not)."""

        def done(result: ShellResult) -> None:
            self._require(result, doing)

        self.begin(script, doing, done, idle_s, after_success=after_success)

    def run(self, script: str, doing: str, idle_s: float | None = None) -> ShellResult:
        """Runs a script to its end."""
        results: list[ShellResult] = []
        self.begin(script, doing, results.append, idle_s)
        self.settle()
        return results[0]

    def require(self, script: str, doing: str, idle_s: float | None = None) -> str:
        """Like `run`, for a script that must succeed (DeviceError if not); gives its output."""
        return self._require(self.run(script, doing, idle_s), doing)

    def say(self, line: str, doing: str) -> None:
        """Says a line to the script that was begun last."""
        self._held.say(line, doing)

    def hear(self, begun: Begun) -> str:
        """The next line that a script prints."""
        while self._waiting[0] is not begun:
            self._settle_one()
        return self._held.hear(begun.doing, begun.idle_s)

    def settle(self, through: Begun | None = None) -> None:
        """Waits for all scripts that were begun, or for those up to one of them."""
        while self._waiting and not (through and through.ended_s):
            self._settle_one()

    def _settle_one(self) -> None:
        begun = self._waiting.popleft()
        result = self._held.result(self._marker, begun.doing, begun.idle_s)
        begun.ended_s = time.monotonic()
        begun.done(result)

    def _run_apart(self, script: str, begun: Begun) -> Begun:
        self.settle()
        result = self._shell.shell(script, begun.doing, begun.idle_s)
        begun.ended_s = time.monotonic()
        begun.done(result)
        return begun

    def _require(self, result: ShellResult, doing: str) -> str:
        if not result.ok:
            said = result.output.strip() or f"exit code {result.exit_code}"
            noun = self._shell.advice.noun
            raise DeviceError(f"the {noun} failed while {doing}: {said}", place=self._shell.name)
        return result.output
