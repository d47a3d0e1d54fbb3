"""pymobiledevice3 as a command: one process for each request, never imported (it is GPL-3.0)."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from etdeploy.core.commands import pip_command
from etdeploy.core.errors import DeviceError
from etdeploy.core.processes import process
from etdeploy.core.processes.conversation import InteractiveProcess
from etdeploy.devices.ios import usbmux

VARIABLE = "ETDEPLOY_PYMOBILEDEVICE3"
"""Names the program where it is neither beside Python nor on the PATH."""

PROGRAM = "pymobiledevice3"
TUNNELLED = ("developer", "core-device")
"""Commands that begin so need the developer services of iOS 17, behind a tunnel."""

# How long a request may take that moves no large file; starting the program alone takes 1 to 2 s,
# and on a busy machine several times that.
_REQUEST_S = 90.0
_TUNNEL_VARIABLES = (
    "PYMOBILEDEVICE3_TUNNEL", "PYMOBILEDEVICE3_USERSPACE", "PYMOBILEDEVICE3_NATIVE",
)  # fmt: skip
_STAMP = re.compile(r"^\S+ \S+ \S+ \S+\[\d+\] (?P<level>[A-Z]+) ")


@dataclass(frozen=True)
class PhoneCommandResult:
    """How a request ended.

    Attributes:
        exit_code: 0 when it was done.
        stdout: What was asked for.
        said: The text of its error; empty when there was none.
        timed_out: Whether it was ended because it took too long.
        log: All that it wrote to stderr.
    """

    exit_code: int
    stdout: str
    said: str
    timed_out: bool
    log: str

    @property
    def ok(self) -> bool:
        return self.exit_code == 0 and not self.timed_out


def find_program(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The command: the one that a variable names, else beside this Python, else on the PATH."""
    named = environment.get(VARIABLE)
    if named:
        found = shutil.which(named)
        return Path(found) if found else None
    beside = Path(sys.executable).with_name(PROGRAM)
    return beside if os.access(beside, os.X_OK) else process.which(PROGRAM)


def require_program(place: str) -> Path:
    """The command.

    Raises:
        DeviceError: It is not installed.
    """
    found = find_program()
    if found:
        return found
    named = os.environ.get(VARIABLE)
    raise DeviceError(
        f"{VARIABLE} names {named}, which cannot be run"
        if named
        else "pymobiledevice3, the program that talks to iPhones, is not installed",
        place=place,
        remedy=f"unset {VARIABLE}   or set it to the program" if named else install_command(),
    )


def install_command() -> str:
    """What installs it beside etdeploy."""
    return pip_command("etdeploy[ios]")


class PhoneCommand:
    """pymobiledevice3 for one phone.

    Args:
        program: The command.
        udid: Of the phone.
    """

    def __init__(self, program: Path, udid: str) -> None:
        self.program = program
        self.udid = udid

    @property
    def name(self) -> str:
        """As `--device` takes the phone."""
        return f"ios:{self.udid}"

    def ask(self, words: Sequence[str], limit_s: float | None = _REQUEST_S) -> PhoneCommandResult:
        """Runs a request to its end.

        Args:
            words: Of the command line, after the program.
            limit_s: When it is ended; None waits forever.

        Raises:
            DeviceError: The program cannot be started.
            Interrupted: The run was asked to stop.
        """
        request = self._request(words, limit_s)
        with self._start_errors():
            outcome = process.run(request)
        said = (
            "" if outcome.exit_code == 0 and not outcome.timed_out else last_error(outcome.stderr)
        )
        return PhoneCommandResult(
            outcome.exit_code, outcome.stdout, said, outcome.timed_out, outcome.stderr
        )

    @contextmanager
    def listening(self, words: Sequence[str]) -> Iterator[InteractiveProcess]:
        """A request whose output is read as it comes; it is ended with the block.

        Raises:
            DeviceError: The program cannot be started.
        """
        with self._start_errors(), process.talking(self._request(words, None)) as conversation:
            yield conversation

    def tidy(self, words: Sequence[str], limit_s: float = 30.0) -> str:
        """What a request prints; one that fails prints nothing. A stop does not end it."""
        request = self._request(words, None, outlives_stop=True)
        output = b""
        with suppress(OSError, TimeoutError), process.talking(request) as conversation:
            while chunk := conversation.read(1 << 16, limit_s, heed_stop=False):
                output += chunk
        return output.decode(errors="replace")

    def by_hand(self, *words: str) -> str:
        """What a user types to do the same."""
        return " ".join((PROGRAM, *words))

    def _request(
        self, words: Sequence[str], limit_s: float | None, *, outlives_stop: bool = False
    ) -> process.Request:
        return process.Request(
            (str(self.program), *words),
            env=_environment(self.udid, tunnelled=tuple(words[:2]) == TUNNELLED),
            timeout_s=limit_s,
            outlives_stop=outlives_stop,
        )

    @contextmanager
    def _start_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise DeviceError(
                f"{self.program} cannot be started: {error.strerror or error}",
                place=self.name,
                remedy=install_command(),
            ) from error


def _environment(udid: str, *, tunnelled: bool) -> dict[str, str | None]:
    """The variables for a request.

    `--userspace` heeds only usbmuxd's own variable, so that is set. A tunnel of the user's is for
    the developer services; all else goes over the cable, which is faster.
    """
    address = os.environ.get(usbmux.VARIABLE) or os.environ.get("PYMOBILEDEVICE3_USBMUX")
    variables: dict[str, str | None] = {
        "PYMOBILEDEVICE3_UDID": udid,
        "NO_COLOR": "1",
        "COLUMNS": "200",  # its messages are wrapped at the terminal's width
        "PYTHONUTF8": "1",
    }
    if address:
        variables[usbmux.VARIABLE] = address.removeprefix("UNIX:")
    if not tunnelled:
        variables |= dict.fromkeys(_TUNNEL_VARIABLES)
    return variables


def last_error(stderr: str) -> str:
    """The text of the last error that pymobiledevice3 logged, without time and advice of its own.

    A failure that it did not expect is a traceback in a frame; what follows the frame is its text.
    """
    lines = stderr.splitlines()
    starts = [
        i for i, line in enumerate(lines) if (m := _STAMP.match(line)) and m["level"] == "ERROR"
    ]
    frames = [i for i, line in enumerate(lines) if line.startswith("╰─") and line.endswith("─╯")]
    if starts:
        first = starts[-1]
        text = [_STAMP.sub("", lines[first])]
        for line in lines[first + 1 :]:
            if _STAMP.match(line):
                break
            text.append(line)
    elif frames:
        text = lines[frames[-1] + 1 :]
    else:
        text = [line for line in lines if not _STAMP.match(line)][-3:]
    return "\n".join(line.strip() for line in text if line.strip())
