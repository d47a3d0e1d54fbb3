"""Devices behind a running adb server (SERVICES.TXT in AOSP).

A request is its length in four hexadecimal digits and its text; the answer begins with OKAY, or
with FAIL and a reason. The reasons are prose, so what is wrong with a device is asked for anew.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from etdeploy.core.errors import UsageError
from etdeploy.devices.adb_errors import (
    AdbError,
    AdbGoneError,
    AdbRefusedError,
    AdbServerError,
    AdbStateError,
    AdbTimeoutError,
)
from etdeploy.devices.adb_stream import Patience, SocketStream, receive_exactly

_DEFAULT_PORT = 5037
_PROBE_S = 0.5
USABLE = "device"
_CONNECT_S = 5.0
_ASKING = Patience()


@dataclass(frozen=True)
class ServerDevice:
    """A line of `adb devices -l`.

    Attributes:
        serial: As the server names it.
        state: device, offline, unauthorized, authorizing, connecting, no permissions, recovery...
        model: The model's name, where the server knows it.
    """

    serial: str
    state: str
    model: str | None = None


def server_address() -> tuple[str, int]:
    """Where adb's own environment variables say that the server listens.

    Raises:
        UsageError: They hold no address.
    """
    whole = re.fullmatch(r"tcp:(?:(.+):)?(\d+)", os.environ.get("ADB_SERVER_SOCKET", ""))
    host = whole[1] if whole else os.environ.get("ANDROID_ADB_SERVER_ADDRESS")
    port = whole[2] if whole else os.environ.get("ANDROID_ADB_SERVER_PORT", str(_DEFAULT_PORT))
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(
            f"ANDROID_ADB_SERVER_PORT is {port!r}, which is no port number",
            remedy="unset ANDROID_ADB_SERVER_PORT",
        )
    return host or "127.0.0.1", int(port)


def server_is_running() -> bool:
    """Whether something listens where the adb server does."""
    return _listens(server_address())


def _listens(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, timeout=_PROBE_S).close()
    except OSError:
        return False
    return True


def list_devices() -> list[ServerDevice]:
    """What the server knows, unusable devices too; nothing when no server runs.

    Raises:
        AdbServerError: The server does not answer as one.
    """
    if not server_is_running():
        return []
    return parse_devices(_asked(server_address(), "host:devices-l", _ASKING))


def parse_devices(text: str) -> list[ServerDevice]:
    """Reads the answer to `host:devices-l`.

    A state may have several words: `no permissions (missing udev rules? ...); see [address]`.
    """
    found = []
    for line in text.splitlines():
        match = re.match(
            r"(?P<serial>\S+)\s+(?P<state>no permissions|\S+)(?P<rest>.*)$", line.strip()
        )
        if match:
            model = re.search(r"\bmodel:(\S+)", match["rest"])
            found.append(ServerDevice(match["serial"], match["state"], model[1] if model else None))
    return found


class _FailError(Exception):
    """FAIL, with the reason that the server gave."""


class ServerTransport:
    """A device by its serial number at the adb server."""

    def __init__(self, serial: str) -> None:
        self._serial = serial
        self._address = server_address()

    @property
    def description(self) -> str:
        return "adb server"

    def open(self, service: str, patience: Patience) -> SocketStream:
        stream = _connected(self._address, patience)
        try:
            with _server_errors(self._address):
                _request(stream, f"host:transport:{self._serial}")
            # From here on the device answers; its silence is not the server's.
            _request(stream, service)
        except _FailError as failure:
            stream.close()
            raise self._refusal(str(failure), patience) from failure
        except BaseException:
            stream.close()
            raise
        stream.patience = patience
        return stream

    def close(self) -> None:
        """The server keeps the device."""

    def _refusal(self, said: str, patience: Patience) -> AdbError:
        listed = parse_devices(_asked(self._address, "host:devices-l", patience))
        state = next((d.state for d in listed if d.serial == self._serial), None)
        return AdbRefusedError(said) if state == USABLE else AdbStateError(state)


def _connected(address: tuple[str, int], patience: Patience) -> SocketStream:
    try:
        connection = socket.create_connection(address, timeout=_CONNECT_S)
    except OSError as error:
        raise AdbServerError(f"{_named(address)} has ended: {error.strerror or error}") from error
    return SocketStream(connection, patience.for_opening)


def _asked(address: tuple[str, int], request: str, patience: Patience) -> str:
    """The server's own answer to a request.

    Raises:
        AdbServerError: It does not answer as an adb server.
        AdbRefusedError: It says no.
    """
    with closing(_connected(address, patience)) as stream, _server_errors(address):
        try:
            _request(stream, request)
            return _text(stream)
        except _FailError as failure:
            raise AdbRefusedError(str(failure)) from failure


def _request(stream: SocketStream, request: str) -> None:
    data = request.encode()
    stream.send(b"%04x" % len(data) + data)
    status = receive_exactly(stream, 4)
    if status == b"FAIL":
        raise _FailError(_text(stream))
    if status != b"OKAY":
        raise AdbServerError(f"its answer begins with {status!r}")


def _text(stream: SocketStream) -> str:
    digits = receive_exactly(stream, 4)
    try:
        size = int(digits, 16)
    except ValueError as error:
        raise AdbServerError(f"it gives {digits!r} for a length") from error
    return receive_exactly(stream, size).decode(errors="replace")


@contextmanager
def _server_errors(address: tuple[str, int]) -> Iterator[None]:
    """What goes wrong before the server has named a device is the server's."""
    try:
        yield
    except AdbTimeoutError as error:
        raise AdbServerError(f"{_named(address)} hangs: {error}") from error
    except AdbGoneError as error:
        raise AdbServerError(f"{_named(address)} hung up: {error}") from error


def _named(address: tuple[str, int]) -> str:
    return f"the adb server on {address[0]}:{address[1]}"
