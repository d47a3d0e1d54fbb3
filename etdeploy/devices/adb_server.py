"""Devices behind a running adb server, spoken to with adbutils."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from etdeploy.core.errors import UsageError
from etdeploy.devices.adb_stream import (
    AdbGoneError,
    AdbRefusedError,
    AdbTimeoutError,
    Patience,
    SocketStream,
)

_DEFAULT_PORT = 5037
_PROBE_S = 0.5
_ANSWER_S = 10.0


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
        AdbError: The server does not answer as one.
    """
    if not server_is_running():
        return []
    with _our_errors(), _connect(server_address()) as connection:
        connection.conn.settimeout(_ANSWER_S)
        connection.send_command("host:devices-l")
        connection.check_okay()
        return parse_devices(connection.read_string_block())


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


class ServerTransport:
    """A device by its serial number at the adb server."""

    def __init__(self, serial: str) -> None:
        self._serial = serial
        self._address = server_address()

    @property
    def description(self) -> str:
        return "adb server"

    def open(self, service: str, patience: Patience) -> SocketStream:
        with _our_errors():
            connection = _connect(self._address)
            try:
                connection.conn.settimeout(min(_ANSWER_S, patience.idle_s))
                for request in (f"host:transport:{self._serial}", service):
                    connection.send_command(request)
                    connection.check_okay()
            except BaseException:
                connection.conn.close()
                raise
        return SocketStream(connection.conn, patience)

    def close(self) -> None:
        """The server keeps the device."""


def _connect(address: tuple[str, int]) -> Any:
    # adbutils would start a server of its own where none answers.
    if not _listens(address):
        raise AdbGoneError("the adb server has ended")
    import adbutils

    return adbutils.AdbClient(*address).make_connection()


@contextmanager
def _our_errors() -> Iterator[None]:
    """Turns what adbutils and its sockets raise into our own errors."""
    from adbutils import errors

    try:
        yield
    except (TimeoutError, errors.AdbTimeout) as error:
        raise AdbTimeoutError("the adb server does not answer") from error
    except (OSError, EOFError) as error:
        raise AdbGoneError(f"the adb server hung up: {error}") from error
    except errors.AdbError as error:
        if str(error) in ("connection closed", "Unknown data: b''"):
            raise AdbGoneError("the adb server hung up") from error
        raise AdbRefusedError(str(error)) from error
