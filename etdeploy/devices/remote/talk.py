"""A program on a remote device that is talked with."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from etdeploy.devices.base import RunOutcome
from etdeploy.devices.remote import layout
from etdeploy.devices.remote.shell import Held, RemoteShell, SilentError
from etdeploy.devices.signals import signal_of

_DOING = "the program was running"
# What is longest talked with; the end of the connection ends it, too.
_LIMIT_S = 86_400


class RemoteTalk:
    """The lines of a program.

    Args:
        shell: The connection to the device.
        folder: Of the run.
        held: Runs `layout.talk_command`.
        end: What comes after the program's stdout, at the end of a line.
        marker: What comes after the command.
    """

    def __init__(self, shell: RemoteShell, folder: str, held: Held, end: str, marker: str) -> None:
        self._shell = shell
        self._folder = folder
        self._held = held
        self._end, self._marker = end, marker
        self._began = time.monotonic()
        self._has_ended = False

    def say(self, line: str) -> None:
        if not self._has_ended:
            self._held.say(line, _DOING)

    def hear(self, wait_s: float) -> str | None:
        if self._has_ended:
            return None
        try:
            line = self._held.line(_DOING, wait_s)
        except SilentError as error:
            raise TimeoutError(f"no line within {wait_s:g} s") from error
        self._has_ended = line is None or line.endswith(self._end)
        if line is None:
            self._held.result(self._marker, _DOING)  # tells why the connection ended
        return (line or "").removesuffix(self._end) or None if self._has_ended else line

    def end(self) -> RunOutcome:
        seconds = time.monotonic() - self._began
        said = self._held.result(self._marker, _DOING).output if self._has_ended else None
        if said is None:
            self.kill()
        exit_code = None if said is None else layout.require_exit_code(said, self._shell.name)
        stderr = self._shell.read(f"{self._folder}/.stderr", "reading the program's output")
        return RunOutcome(
            exit_code=exit_code,
            signal_name=None if exit_code is None else signal_of(exit_code),
            stdout="",
            stderr=stderr,
            seconds=seconds,
            timed_out=exit_code is None,
            out_of_memory=None if said is None else layout.parse_out_of_memory(said),
        )

    def kill(self) -> None:
        """Ends the program and all that it started."""
        self._shell.tidy(layout.kill_command(self._folder))


@contextmanager
def talking(
    shell: RemoteShell, folder: str, argv: Sequence[str], variables: Mapping[str, str]
) -> Iterator[RemoteTalk]:
    """Starts a program in a run's folder to talk with, and ends it with the block.

    Args:
        shell: The connection to the device.
        folder: The run's.
        argv: The program with its arguments.
        variables: For its environment.

    Raises:
        DeviceError: The device went away.
    """
    end, marker = (f"etdeploy-{secrets.token_hex(8)}" for _ in range(2))
    command = layout.talk_command(folder, argv, variables, _LIMIT_S, end, marker)
    with shell.held(command, "starting the program") as held:
        talk = RemoteTalk(shell, folder, held, end, marker)
        try:
            yield talk
        finally:
            talk.kill()
