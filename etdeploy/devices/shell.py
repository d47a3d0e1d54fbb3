"""What comes back from a shell on a device; all pure."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class ShellResult:
    """The result of a command."""

    exit_code: int
    output: str

    @property
    def ok(self) -> bool:
        return self.exit_code == 0


class Lines:
    """Hands over the whole lines of an output that comes in pieces."""

    def __init__(self, on_line: Callable[[str], None] | None) -> None:
        self._on_line = on_line
        self._begun = b""

    def take(self, part: bytes) -> None:
        """The next piece."""
        if self._on_line is None:
            return
        *lines, self._begun = (self._begun + part).split(b"\n")
        for line in lines:
            self._on_line(_text(line))


class Received:
    """The whole lines of an output that comes in pieces, when they are asked for."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque()
        self._begun = b""

    def add(self, part: bytes) -> None:
        """The next piece."""
        *lines, self._begun = (self._begun + part).split(b"\n")
        self._lines.extend(lines)

    def line(self) -> str | None:
        """The next line, without its end; None if it is not whole yet."""
        return _text(self._lines.popleft()) if self._lines else None

    def rest(self) -> str | None:
        """What is left at the end of the output; None if that is nothing."""
        begun, self._begun = self._begun, b""
        return _text(begun) if begun else None


def _text(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\r")


def marked(command: str, marker: str) -> str:
    """The command, followed by a line with the marker and its exit code.

    A subshell, so that `exit` in the command does not skip the marker. `$$` in it is still the
    shell that was started, which leads its own session and process group.
    """
    return f"( {command}\n); echo {marker}:$?"


def is_marked(output: bytes | bytearray, marker: str) -> bool:
    """Whether an output that comes in pieces has ended."""
    # No exit code has more than three digits.
    tail = bytes(output[-len(marker) - len(":255\r\n") :])
    return re.search(rb"%s:\d+\r?\n\Z" % re.escape(marker.encode()), tail) is not None


def parse_marked(output: bytes, marker: str) -> ShellResult | None:
    """Takes the exit code from behind the marker; None without one: the shell did not finish."""
    before, found, after = output.rpartition(f"{marker}:".encode())
    code = after.strip()
    if not found or not code.isdigit():
        return None
    return ShellResult(int(code), before.decode(errors="replace").replace("\r\n", "\n"))


def take_marked(output: bytearray, marker: str) -> ShellResult | None:
    """Takes the first result away from an output that goes on; None when it has not ended yet."""
    end = re.search(rb"%s:\d+\n" % re.escape(marker.encode()), output)
    if end is None:
        return None
    result = parse_marked(bytes(output[: end.end()]), marker)
    del output[: end.end()]
    return result


def sections(text: str) -> dict[str, str]:
    """Splits an output at its lines `#name`; what comes before the first is under ""."""
    parts = re.split(r"^#(\w+)\n", text, flags=re.MULTILINE)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def parse_meminfo(text: str, name: str = "MemTotal") -> int | None:
    """A line of /proc/meminfo in bytes: the size of the main memory, or `MemAvailable`."""
    match = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def parse_load(text: str) -> float | None:
    """The load average of the last minute, from the text of /proc/loadavg."""
    match = re.match(r"\s*(\d+\.\d+)", text)
    return float(match[1]) if match else None


_NAMES = {
    1: "SIGHUP",
    2: "SIGINT",
    3: "SIGQUIT",
    4: "SIGILL",
    5: "SIGTRAP",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    10: "SIGUSR1",
    11: "SIGSEGV",
    12: "SIGUSR2",
    13: "SIGPIPE",
    14: "SIGALRM",
    15: "SIGTERM",
    24: "SIGXCPU",
    25: "SIGXFSZ",
    31: "SIGSYS",
}


def signal_name_for(exit_code: int) -> str | None:
    """The signal behind a shell's exit code of 128 + n; None for a plain exit code."""
    return _NAMES.get(exit_code - 128)


def signal_number(name: str) -> int | None:
    """The number of a signal; None for a name that Linux does not have."""
    return next((number for number, known in _NAMES.items() if known == name), None)
