"""Devices behind a running adb server.

The server gives its reasons in prose, so the state of a device is queried again.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace

from etdeploy.core import cancel
from etdeploy.core.errors import UsageError
from etdeploy.devices.adb.stream import (
    AdbError,
    AdbGoneError,
    AdbRefusedError,
    AdbServerError,
    AdbStateError,
    AdbTimeoutError,
    SocketStream,
    Timeouts,
    receive_exactly,
)

USABLE = "device"
_ASKING = Timeouts()
# The server answers when it has connected or given up: after 10 s.
_CONNECTING = Timeouts(open_s=15.0)
# A device that is connected is offline until it has answered the greeting.
_SETTLE_S = 5.0
_POLL_S = 0.1


@dataclass(frozen=True)
class ServerDevice:
    """A line of `adb devices -l`.

    Attributes:
        serial: As the server names it.
        state: device, offline, unauthorized, authorizing, connecting, no permissions, recovery...
        model: The model's name, where the server knows it.
        usb: The port that it is plugged into, `usb:1-2`, which the server takes for a name, too.
        shared: Its serial number where another device has the same; then `serial` is the port.
    """

    serial: str
    state: str
    model: str | None = None
    usb: str | None = None
    shared: str | None = None


def list_devices() -> list[ServerDevice]:
    """The devices that the server knows, unusable ones too; none when no server runs."""
    if not server_is_running():
        return []
    return parse_devices(ask(server_address(), "host:devices-l", _ASKING))


def reconnect(serial: str) -> str | None:
    """Makes the server reconnect to a device on the network that is offline or that it let go of.

    After a restart of the device's adbd the server tries that by itself, but rarely.
    """
    address = server_address()
    with suppress(AdbRefusedError):  # it has let go of the device already
        ask(address, f"host:disconnect:{serial}", _ASKING)
    try:
        # The server answers OKAY to a connection that failed, too: the state counts.
        said = ask(address, f"host:connect:{serial}", _CONNECTING)
    except AdbRefusedError as error:
        return str(error)
    deadline = time.monotonic() + _SETTLE_S
    while (state := _state(address, serial, _ASKING)) != USABLE:
        late = time.monotonic() > deadline
        if state is None and said.startswith("already connected") and not late:
            # That was the old connection, which the server had not let go of yet.
            said = ask(address, f"host:connect:{serial}", _CONNECTING)
        elif state is None or late:
            return said if state is None else f"its state is {state}"
        cancel.checkpoint()
        time.sleep(_POLL_S)
    return None


def reconnect_usb(serial: str) -> None:
    """Makes the server drop its connection to a device on a cable, and take it up again."""
    ask(server_address(), f"host-serial:{serial}:reconnect", _CONNECTING)


def _state(address: tuple[str, int], serial: str, timeouts: Timeouts) -> str | None:
    listed = parse_devices(ask(address, "host:devices-l", timeouts))
    return next((d.state for d in listed if d.serial == serial), None)


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
            usb = re.search(r"\b(usb:\S+)", match["rest"])
            found.append(
                ServerDevice(
                    match["serial"],
                    match["state"],
                    model[1] if model else None,
                    usb[1] if usb else None,
                )
            )
    return _name_by_port(found)


def _name_by_port(devices: Sequence[ServerDevice]) -> list[ServerDevice]:
    """Names devices with one serial number by their ports: the server refuses to choose."""
    counts = Counter(device.serial for device in devices)
    return [
        replace(device, serial=device.usb, shared=device.serial)
        if device.usb and counts[device.serial] > 1
        else device
        for device in devices
    ]


class ServerTransport:
    """A device by its serial number at the adb server."""

    def __init__(self, serial: str) -> None:
        self._serial = serial
        self._address = server_address()

    @property
    def description(self) -> str:
        return "adb server"

    def open(self, service: str, timeouts: Timeouts) -> SocketStream:
        stream = connect(self._address, timeouts)
        try:
            with server_errors(self._address):
                request(stream, f"host:transport:{self._serial}")
            # From here on the device answers; its silence is not the server's.
            request(stream, service)
        except FailError as failure:
            stream.close()
            raise self._refusal(str(failure), timeouts) from failure
        except BaseException:
            stream.close()
            raise
        stream.timeouts = timeouts
        return stream

    def close(self) -> None:
        """The server keeps the device."""

    def _refusal(self, said: str, timeouts: Timeouts) -> AdbError:
        state = _state(self._address, self._serial, timeouts)
        return AdbRefusedError(said) if state == USABLE else AdbStateError(state)


_DEFAULT_PORT = 5037
_PROBE_S = 0.5
_CONNECT_S = 5.0


class FailError(Exception):
    """FAIL, with the reason that the server gave."""


def server_address() -> tuple[str, int]:
    """Where adb's own environment variables say that the server listens."""
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


def connect(address: tuple[str, int], timeouts: Timeouts) -> SocketStream:
    """A connection to the server, with the timeouts for opening."""
    try:
        connection = socket.create_connection(address, timeout=_CONNECT_S)
    except OSError as error:
        raise AdbServerError(f"{_named(address)} has ended: {error.strerror or error}") from error
    return SocketStream(connection, timeouts.for_opening)


def ask(address: tuple[str, int], text: str, timeouts: Timeouts) -> str:
    """The server's own answer to a request."""
    with closing(connect(address, timeouts)) as stream, server_errors(address):
        try:
            request(stream, text)
            return _text(stream)
        except FailError as failure:
            raise AdbRefusedError(str(failure)) from failure


def request(stream: SocketStream, text: str) -> None:
    """Sends a request and reads the status."""
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
