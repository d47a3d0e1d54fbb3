"""The two ways to an iPhone: pymobiledevice3, and usbmuxd, which lists the phones.

pymobiledevice3 is a command, one process for each request, and never imported (it is GPL-3.0).

usbmuxd is the daemon that Linux and macOS have for iPhones. A message is a header of four numbers
(length with header, version 1, kind 8, tag; little endian) and a property list. Asking costs a
millisecond; where no phone was ever attached, Linux runs no daemon.
"""

from __future__ import annotations

import os
import plistlib
import re
import shutil
import socket
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.parsers.expat import ExpatError

from etdeploy.core.commands import pip_command
from etdeploy.core.errors import DeviceError
from etdeploy.core.processes import process
from etdeploy.core.processes.conversation import InteractiveProcess

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
    """How a request ended."""

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
    """The command."""
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
    """pymobiledevice3 for one phone."""

    def __init__(self, program: Path, udid: str) -> None:
        self.program = program
        self.udid = udid

    @property
    def name(self) -> str:
        """As `--device` takes the phone."""
        return f"ios:{self.udid}"

    def ask(self, words: Sequence[str], limit_s: float | None = _REQUEST_S) -> PhoneCommandResult:
        """Runs a request to its end."""
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
        """A request whose output is read as it comes; it is ended with the block."""
        with self._start_errors(), process.talking(self._request(words, None)) as conversation:
            yield conversation

    def best_effort_cleanup(self, words: Sequence[str], limit_s: float = 30.0) -> str:
        """What a request prints; one that fails prints nothing. A stop does not end it."""
        request = self._request(words, None, outlives_stop=True)
        output = b""
        with suppress(OSError, TimeoutError), process.talking(request) as conversation:
            while chunk := conversation.read(1 << 16, limit_s, heed_stop=False):
                output += chunk
        return output.decode(errors="replace")

    def manual_command(self, *words: str) -> str:
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
    address = os.environ.get(SOCKET_VARIABLE) or os.environ.get("PYMOBILEDEVICE3_USBMUX")
    variables: dict[str, str | None] = {
        "PYMOBILEDEVICE3_UDID": udid,
        "NO_COLOR": "1",
        "COLUMNS": "200",  # its messages are wrapped at the terminal's width
        "PYTHONUTF8": "1",
    }
    if address:
        variables[SOCKET_VARIABLE] = address.removeprefix("UNIX:")
    if not tunnelled:
        variables |= dict.fromkeys(_TUNNEL_VARIABLES)
    return variables


def last_error(stderr: str) -> str:
    """The text of the last error that pymobiledevice3 logged, without its time and advice.

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


SOCKET_VARIABLE = "USBMUXD_SOCKET_ADDRESS"
"""Names another socket: a path, UNIX:PATH or HOST:PORT."""

_SOCKET = "/var/run/usbmuxd"
_HEADER = struct.Struct("<4I")
_WAIT_S = 5.0
_MOST_BYTES = 1 << 20


class MuxError(Exception):
    """What listens on the socket does not answer like usbmuxd."""


@dataclass(frozen=True)
class Attached:
    """A phone that usbmuxd knows."""

    udid: str
    connection: str


def socket_address() -> str:
    """Where usbmuxd listens: a path, or HOST:PORT."""
    return (os.environ.get(SOCKET_VARIABLE) or _SOCKET).removeprefix("UNIX:")


def list_attached() -> list[Attached] | None:
    """Every attached phone, once, preferring its cable; None where no usbmuxd runs."""
    try:
        with _connected() as connection:
            answer = _request_reply(connection, {"MessageType": "ListDevices"})
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    except OSError as error:
        raise MuxError(str(error)) from error
    return parse_devices(answer)


def parse_devices(answer: dict[str, Any]) -> list[Attached]:
    """The phones in an answer to ListDevices."""
    try:
        found = [
            Attached(format_udid(str(p["SerialNumber"])), str(p["ConnectionType"]))
            for p in (device["Properties"] for device in answer["DeviceList"])
        ]
    except (KeyError, TypeError) as error:
        raise MuxError(f"its list of devices lacks {error}") from error
    by_udid: dict[str, Attached] = {}
    for phone in found:
        if phone.connection == "USB" or phone.udid not in by_udid:
            by_udid[phone.udid] = phone
    return list(by_udid.values())


def format_udid(serial: str) -> str:
    """A UDID as Apple's tools write it; usbmuxd on Linux leaves the dash out."""
    match = re.fullmatch(r"([0-9A-Fa-f]{8})-?([0-9A-Fa-f]{16})", serial)
    return f"{match[1]}-{match[2]}".upper() if match else serial


def _connected() -> socket.socket:
    address = socket_address()
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        return socket.create_connection((host.strip("[]"), int(port)), timeout=_WAIT_S)
    if not Path(address).exists():
        raise FileNotFoundError(address)
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(_WAIT_S)
    try:
        connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection


def _request_reply(connection: socket.socket, message: dict[str, Any]) -> dict[str, Any]:
    body = plistlib.dumps(message)
    connection.sendall(_HEADER.pack(_HEADER.size + len(body), 1, 8, 1) + body)
    size = _HEADER.unpack(_exactly(connection, _HEADER.size))[0] - _HEADER.size
    if not 0 < size <= _MOST_BYTES:
        raise MuxError(f"a message of {size} bytes")
    try:
        answer = plistlib.loads(_exactly(connection, size))
    except (plistlib.InvalidFileException, ExpatError, ValueError) as error:
        raise MuxError("its answer is not a property list") from error
    if not isinstance(answer, dict):
        raise MuxError("its answer is not a dictionary")
    return answer


def _exactly(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        chunk = connection.recv(size - len(received))
        if not chunk:
            raise MuxError("it hung up")
        received += chunk
    return received
