"""Requests to a running adb server (SERVICES.TXT in AOSP).

A request is its length in four hexadecimal digits and its text; the answer begins with OKAY, or
with FAIL and a reason.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager

from etdeploy.core.errors import UsageError
from etdeploy.devices.adb.errors import (
    AdbGoneError,
    AdbRefusedError,
    AdbServerError,
    AdbTimeoutError,
)
from etdeploy.devices.adb.stream import Patience, SocketStream, receive_exactly

_DEFAULT_PORT = 5037
_PROBE_S = 0.5
_CONNECT_S = 5.0


class FailError(Exception):
    """FAIL, with the reason that the server gave."""


def server_address() -> tuple[str, int]:
    """Where adb's own environment variables say that the server listens.

    Raises:
        UsageError: They do not hold an address.
    """
    whole = re.fullmatch(r"tcp:(?:(.+):)?(\d+)", os.environ.get("ADB_SERVER_SOCKET", ""))
    host = whole[1] if whole else os.environ.get("ANDROID_ADB_SERVER_ADDRESS")
    port = whole[2] if whole else os.environ.get("ANDROID_ADB_SERVER_PORT", str(_DEFAULT_PORT))
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(
            f"ANDROID_ADB_SERVER_PORT is {port!r}, which is not a port number",
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


def connect(address: tuple[str, int], patience: Patience) -> SocketStream:
    """A connection to the server, with the patience for opening.

    Raises:
        AdbServerError: It has ended.
    """
    try:
        connection = socket.create_connection(address, timeout=_CONNECT_S)
    except OSError as error:
        raise AdbServerError(f"{_named(address)} has ended: {error.strerror or error}") from error
    return SocketStream(connection, patience.for_opening)


def ask(address: tuple[str, int], text: str, patience: Patience) -> str:
    """The server's own answer to a request.

    Raises:
        AdbServerError: It does not answer like an adb server.
        AdbRefusedError: It refuses the request.
    """
    with closing(connect(address, patience)) as stream, server_errors(address):
        try:
            request(stream, text)
            return _text(stream)
        except FailError as failure:
            raise AdbRefusedError(str(failure)) from failure


def request(stream: SocketStream, text: str) -> None:
    """Sends a request and reads the status.

    Raises:
        FailError: The answer is FAIL.
        AdbServerError: It is neither that nor OKAY.
        AdbError: No answer came.
    """
    data = text.encode()
    stream.send(b"%04x" % len(data) + data)
    status = receive_exactly(stream, 4)
    if status == b"FAIL":
        raise FailError(_text(stream))
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
def server_errors(address: tuple[str, int]) -> Iterator[None]:
    """Blames the server for what fails before it has reached a device."""
    try:
        yield
    except AdbTimeoutError as error:
        raise AdbServerError(f"{_named(address)} hangs: {error}") from error
    except AdbGoneError as error:
        raise AdbServerError(f"{_named(address)} hung up: {error}") from error


def _named(address: tuple[str, int]) -> str:
    return f"the adb server on {address[0]}:{address[1]}"
