"""What this room needs of a connection to a device with a POSIX shell at its other end."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from etdeploy.core.errors import DeviceError
from etdeploy.devices.shell import ShellResult


class SilentError(Exception):
    """A command printed nothing for as long as it was allowed to."""


class DeviceWriteError(Exception):
    """The device could not write a file; the message is what it said."""


@dataclass(frozen=True)
class DevicePaths:
    """Where etdeploy keeps things on a device.

    Attributes:
        base: A folder of the device's, absolute and without symbolic links in its path.
    """

    base: str

    @property
    def root(self) -> str:
        """The folder that is etdeploy's own."""
        return f"{self.base}/etdeploy"

    @property
    def incoming(self) -> str:
        """What pushes in progress are sending."""
        return f"{self.root}/incoming"

    @property
    def partial(self) -> str:
        """What interrupted pushes sent of large files."""
        return f"{self.root}/partial"

    def bundle(self, digest: str) -> str:
        """A bundle's folder."""
        return f"{self.root}/bundles/{digest}"

    def run(self, run_id: str) -> str:
        """A run's folder."""
        return f"{self.root}/runs/{run_id}"


@dataclass(frozen=True)
class Advice:
    """What a user does about this kind of device, in remedies."""

    noun: str
    prefix: str
    restart: str
    damaged: str


class Running(Protocol):
    """A command that a device's shell has begun."""

    def finish(self, activity: str, on_line: Callable[[str], None] | None = None) -> ShellResult:
        """Waits for its end."""
        ...

    def close(self) -> None:
        """Ends the connection to it, which the command sees as the end of its input."""
        ...


class PersistentShell(Protocol):
    """A command that goes on while this end holds the connection to it.

    In every method, `activity` is what etdeploy does, for the message of an error. A method that
    waits for the command raises DeviceError when it is silent for `idle_s`, or as long as usual.
    """

    def write_lines(self, lines: str, activity: str) -> None:
        """Writes lines to its input; the end of the last one is added."""
        ...

    def read_reply(self, activity: str, idle_s: float | None = None) -> str:
        """The next line that it prints, as soon as it is there; empty at its end."""
        ...

    def read_line(self, activity: str, idle_s: float) -> str | None:
        """The next line without its end, as soon as it is there; None at the end of all."""
        ...

    def read_result(self, marker: str, activity: str, idle_s: float | None = None) -> ShellResult:
        """What it prints up to a line with a marker and an exit code."""
        ...


class RemoteShell(Protocol):
    """The connection to one device.

    In every method, `activity` is what etdeploy does, for the message of an error: "reading its
    battery state". A command's words from outside have gone through shlex.quote. Every method
    raises DeviceError when the device goes away, refuses the connection or does not answer, and
    Interrupted when the run was asked to stop, unless it says otherwise.
    """

    @property
    def name(self) -> str:
        """The device's name for the user."""
        ...

    @property
    def place(self) -> DevicePaths:
        """Where etdeploy keeps things there."""
        ...

    @property
    def advice(self) -> Advice:
        """What a user does about it."""
        ...

    def shell(self, command: str, activity: str, idle_s: float | None = None) -> ShellResult:
        """Runs a command; its stdout and stderr come as one."""
        ...

    def best_effort_cleanup(self, command: str) -> None:
        """Runs a command if the device is still there; raises nothing, and heeds no stop."""
        ...

    def start(self, command: str, activity: str, idle_s: float) -> Running:
        """Starts a command whose input ends with the connection.

        The shell leads its own process group, and /proc has the command's words as its
        arguments.
        """
        ...

    def persistent_shell(
        self, command: str, activity: str
    ) -> AbstractContextManager[PersistentShell]:
        """Starts such a command to talk with; its connection is closed with the block.

        Files may be sent and other commands run meanwhile, from the same thread.
        """
        ...

    def send(
        self,
        source: Path,
        target: str,
        activity: str,
        on_bytes: Callable[[int], None],
        start: int = 0,
        size: int | None = None,
    ) -> None:
        """Sends a file or a range of it, which is written there as it comes."""
        ...

    def content(self, source: str, activity: str) -> Iterator[bytes]:
        """The content of a file there, in pieces."""
        ...

    def read(self, source: str, activity: str) -> str:
        """The text of a file there; empty when there is none."""
        ...

    def close(self) -> None:
        """Ends the connection."""
        ...


def check_output(
    shell: RemoteShell, command: str, activity: str, idle_s: float | None = None
) -> str:
    """Runs a command, and raises DeviceError where it fails; returns its output."""
    return require_success(shell, shell.shell(command, activity, idle_s), activity)


def require_success(shell: RemoteShell, result: ShellResult, activity: str) -> str:
    """The output of a command; DeviceError where it failed."""
    if not result.ok:
        said = result.output.strip() or f"exit code {result.exit_code}"
        noun = shell.advice.noun
        raise DeviceError(f"the {noun} failed while {activity}: {said}", place=shell.name)
    return result.output


def pull_file(shell: RemoteShell, source: str, to: Path, activity: str) -> None:
    """Copies a file from the device; `to` is replaced once all of it has arrived."""
    to.parent.mkdir(parents=True, exist_ok=True)
    part = to.with_name(f".{to.name}.part")
    try:
        with part.open("wb") as file:
            for piece in shell.content(source, activity):
                file.write(piece)
        part.replace(to)
    finally:
        part.unlink(missing_ok=True)


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
class PushScript:
    """A script that was begun.

    Attributes:
        activity: What it is for, in the message of an error.
        done: Takes its result.
        idle_s: How long it may be silent.
        ended_s: When its result came, by the monotonic clock.
    """

    activity: str
    done: Callable[[ShellResult], None]
    idle_s: float | None
    ended_s: float = 0.0


class ShellSession:
    """The shell of one push."""

    def __init__(
        self, shell: RemoteShell, persistent: PersistentShell, folder: str, marker: str
    ) -> None:
        self.folder = folder
        self._shell = shell
        self._persistent = persistent
        self._marker = marker
        self._waiting: deque[PushScript] = deque()
        self._last: PushScript | None = None

    @property
    def last(self) -> PushScript | None:
        """The script that was begun last."""
        return self._last

    def begin(
        self,
        script: str,
        activity: str,
        done: Callable[[ShellResult], None],
        idle_s: float | None = None,
        *,
        after_success: bool = False,
    ) -> PushScript:
        """Has a script run after those before it; returns at once."""
        begun = self._last = PushScript(activity, done, idle_s)
        if len(script) > _LONGEST:
            return self._run_apart(script, begun)
        if after_success:
            script = f"[ $code = 0 ] || exit $code\n{script}"
        self._persistent.write_lines(f"run {script.count(chr(10)) + 1}\n{script}", activity)
        self._waiting.append(begun)
        return begun

    def begin_checked(
        self,
        script: str,
        activity: str,
        idle_s: float | None = None,
        *,
        after_success: bool = False,
    ) -> None:
        """Like `begin`, for a script that must succeed (DeviceError if not)."""

        def done(result: ShellResult) -> None:
            require_success(self._shell, result, activity)

        self.begin(script, activity, done, idle_s, after_success=after_success)

    def run(self, script: str, activity: str, idle_s: float | None = None) -> ShellResult:
        """Runs a script to its end."""
        results: list[ShellResult] = []
        self.begin(script, activity, results.append, idle_s)
        self.wait()
        return results[0]

    def check_output(self, script: str, activity: str, idle_s: float | None = None) -> str:
        """Like `run`, but raises DeviceError where the script fails; returns its output."""
        return require_success(self._shell, self.run(script, activity, idle_s), activity)

    def write_line(self, line: str, activity: str) -> None:
        """Says a line to the script that was begun last."""
        self._persistent.write_lines(line, activity)

    def read_line(self, begun: PushScript, activity: str | None = None) -> str:
        """The next line that a script prints; the activity is the script's if none is given."""
        while self._waiting[0] is not begun:
            self._wait_for_first()
        return self._persistent.read_reply(activity or begun.activity, begun.idle_s)

    def wait(self, through: PushScript | None = None) -> None:
        """Waits for all scripts that were begun, or for those up to one of them."""
        while self._waiting and not (through and through.ended_s):
            self._wait_for_first()

    def _wait_for_first(self) -> None:
        begun = self._waiting.popleft()
        result = self._persistent.read_result(self._marker, begun.activity, begun.idle_s)
        begun.ended_s = time.monotonic()
        begun.done(result)

    def _run_apart(self, script: str, begun: PushScript) -> PushScript:
        self.wait()
        result = self._shell.shell(script, begun.activity, begun.idle_s)
        begun.ended_s = time.monotonic()
        begun.done(result)
        return begun
