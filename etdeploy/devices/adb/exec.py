"""A command in the device's shell, with its exit code.

The service `exec:` gives raw bytes on every Android that ExecuTorch runs on, stdout and stderr
merged and without the exit code; a marker at the end of the output carries that.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from etdeploy.devices.adb.errors import AdbGoneError
from etdeploy.devices.adb.stream import Patience, Stream, Transport
from etdeploy.devices.shell import Lines, ShellResult, is_marked, marked, parse_marked

_READ = 1 << 16


@dataclass(frozen=True)
class RunningCommand:
    """A command that the device's shell has begun; `marker` comes before its exit code."""

    stream: Stream
    marker: str

    def finish(self, on_line: Callable[[str], None] | None = None) -> ShellResult:
        """Waits for the exit code; `on_line` is called with each line as it comes.

        Not for the end of the stream: what a command left behind may keep that open.

        Raises:
            AdbTimeoutError: It was silent for longer than its patience.
            AdbError: The device went away.
            Interrupted: The run was asked to stop.
        """
        output, lines = bytearray(), Lines(on_line)
        while not is_marked(output, self.marker) and (part := self.stream.receive(_READ)):
            output += part
            lines.take(part)
        result = parse_marked(bytes(output), self.marker)
        if result is None:
            raise AdbGoneError("the device's shell ended in the middle of a command")
        return result

    def close(self) -> None:
        """Ends the connection to it."""
        self.stream.close()


def start_command(transport: Transport, command: str, patience: Patience) -> RunningCommand:
    """Starts a command; every word in it from outside must have gone through shlex.quote.

    Raises:
        AdbError: The device or the adb server went away, or did not answer in time.
        Interrupted: The run was asked to stop.
    """
    marker = f"etdeploy-{secrets.token_hex(8)}"
    return RunningCommand(transport.open(f"exec:{marked(command, marker)}", patience), marker)


def run_command(transport: Transport, command: str, patience: Patience) -> ShellResult:
    """Like `start_command`, but waits for the end.

    Raises:
        AdbError: The device went away, or the command took too long.
        Interrupted: The run was asked to stop.
    """
    with closing(start_command(transport, command, patience)) as running:
        return running.finish()
