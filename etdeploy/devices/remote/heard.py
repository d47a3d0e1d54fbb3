"""What a program prints on a device's shell, apart from what the shell says after it."""

from __future__ import annotations

import time
from collections.abc import Callable

from etdeploy.devices.remote.shell import SilentError


class Heard:
    """The lines of a program, handed over as they come.

    A program that prints is never silent for long, so its time limit is looked at here.

    Args:
        on_line: Called with each line.
        end: What the shell prints after the program, at the end of a line.
        timeout_s: For the whole program, from now on.
    """

    def __init__(self, on_line: Callable[[str], None], end: str, timeout_s: float) -> None:
        self._on_line = on_line
        self.end = end
        self._deadline = time.monotonic() + timeout_s
        self._lines: list[str] = []
        self._ended = False

    @property
    def text(self) -> str:
        """All lines of the program so far."""
        return "".join(f"{line}\n" for line in self._lines)

    def take(self, line: str) -> None:
        """The next line of the shell's output.

        Raises:
            SilentError: The time is up.
        """
        if self._ended:
            return
        if time.monotonic() > self._deadline:
            raise SilentError
        self._ended = line.endswith(self.end)
        line = line.removesuffix(self.end)
        if line or not self._ended:
            self._lines.append(line)
            self._on_line(line)

    def after(self, said: str) -> str:
        """What the shell said after the program, in all of its output."""
        return said.rpartition(self.end)[2]
