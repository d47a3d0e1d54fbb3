"""Devices behind a running adb server.

The server gives its reasons in prose, so the state of a device is queried again.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from etdeploy.core import cancel
from etdeploy.devices.adb.errors import AdbError, AdbRefusedError, AdbStateError
from etdeploy.devices.adb.host import (
    FailError,
    ask,
    connect,
    request,
    server_address,
    server_errors,
    server_is_running,
)
from etdeploy.devices.adb.stream import Patience, SocketStream

USABLE = "device"
_ASKING = Patience()
# The server answers when it has connected or given up: after 10 s.
_CONNECTING = Patience(open_s=15.0)
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
    """The devices that the server knows, unusable ones too; none when no server runs.

    Raises:
        AdbServerError: The server does not answer like one.
    """
    if not server_is_running():
        return []
    return parse_devices(ask(server_address(), "host:devices-l", _ASKING))


def reconnect(serial: str) -> str | None:
    """Makes the server reconnect to a device on the network that is offline or that it let go of.

    After a restart of the device's adbd the server tries that by itself, but rarely.

    Args:
        serial: HOST:PORT, as the server lists it.

    Returns:
        None when the device can be used now; otherwise what the server said, or the state.

    Raises:
        AdbServerError: The server does not answer like one.
        Interrupted: The run was asked to stop.
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


def kick(serial: str) -> None:
    """Makes the server drop its connection to a device on a cable, and take it up again.

    Args:
        serial: As the server lists it.

    Raises:
        AdbServerError: The server does not answer like one.
        AdbRefusedError: It does not know the device.
    """
    ask(server_address(), f"host-serial:{serial}:reconnect", _CONNECTING)


def _state(address: tuple[str, int], serial: str, patience: Patience) -> str | None:
    listed = parse_devices(ask(address, "host:devices-l", patience))
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
    return _told_apart(found)


def _told_apart(devices: Sequence[ServerDevice]) -> list[ServerDevice]:
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

    def open(self, service: str, patience: Patience) -> SocketStream:
        stream = connect(self._address, patience)
        try:
            with server_errors(self._address):
                request(stream, f"host:transport:{self._serial}")
            # From here on the device answers; its silence is not the server's.
            request(stream, service)
        except FailError as failure:
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
        state = _state(self._address, self._serial, patience)
        return AdbRefusedError(said) if state == USABLE else AdbStateError(state)
