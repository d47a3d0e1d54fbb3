"""Which Android device a name means, and how to reach it."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from shlex import quote

from etdeploy.core import cancel, console
from etdeploy.core.errors import DeviceError
from etdeploy.devices.adb import server as adb_server
from etdeploy.devices.adb.direct import tcp_transport, usb_transport
from etdeploy.devices.adb.errors import AdbError
from etdeploy.devices.adb.host import server_address, server_is_running
from etdeploy.devices.adb.pipes import usb_transports
from etdeploy.devices.adb.server import USABLE, ServerDevice, ServerTransport
from etdeploy.devices.adb.stream import Transport
from etdeploy.devices.android.device import AndroidDevice
from etdeploy.devices.android.errors import still_offline, unusable
from etdeploy.devices.base import DeviceListing
from etdeploy.devices.kinds import described, failed
from etdeploy.devices.spec import DeviceSpec

# How long a listing waits for each device.
_LIST_S = 10.0

CONNECT_STEPS = (
    "1. On the phone: Settings > About phone, tap Build number seven times;\n"
    "   then Settings > Developer options > turn on USB debugging.\n"
    "2. Plug it in and confirm the prompt `Allow USB debugging?`.\n"
    "3. adb devices    (starts the adb server; the phone's state must be `device`)\n"
    "A device on the network:  adb connect HOST:PORT   or   --device android:HOST:PORT"
)


def open_android(spec: DeviceSpec) -> AndroidDevice:
    """The device that `android`, `android:SERIAL` or `android:HOST:PORT` means.

    A running adb server is used when it has the device, because a phone's USB interface can have
    one owner only. No server is started.

    Raises:
        DeviceError: There is none, it cannot be used, or there are several and none is named.
    """
    known = known_devices()
    serial = spec.serial or os.environ.get("ANDROID_SERIAL") or None
    if serial is None:
        return _open_known(_only(known))
    for device in known:
        if serial in (device.serial, device.usb):
            return _open_known(device)
    address = DeviceSpec("android", serial).address
    if address:
        return AndroidDevice(serial, tcp_transport(*address))
    raise _unknown(serial, known)


def known_devices() -> list[ServerDevice]:
    """The devices of the adb server; where none runs, those that libusb finds.

    Raises:
        DeviceError: What runs on the adb server's port does not answer like one.
    """
    with _server_errors():
        if server_is_running():
            return adb_server.list_devices()
    return [
        ServerDevice(serial, USABLE if transport else "no permissions")
        for serial, transport in usb_transports().items()
    ]


@contextmanager
def _server_errors() -> Iterator[None]:
    try:
        yield
    except AdbError as error:
        host, port = server_address()
        raise DeviceError(
            f"what listens on {host}:{port} does not answer like an adb server: {error}",
            place="android",
            remedy="adb kill-server && adb start-server",
        ) from error


def list_android() -> list[DeviceListing]:
    """Every Android device that the adb server or libusb knows, with what to do about each.

    Raises:
        UsageError: The environment variables of the adb server do not hold an address.
    """
    try:
        known = known_devices()
    except DeviceError as error:
        return [failed("android", "android", "error", error)]
    usable = [d for d in known if remedy_for(d) is None]
    found = cancel.in_threads(lambda d: described(open_listed(d, _LIST_S), "android"), usable)
    listed = dict(zip([d.serial for d in usable], found, strict=True))
    return [
        listed.get(d.serial)
        or DeviceListing(
            name=f"android:{d.serial}", kind="android", status=d.state, remedy=remedy_for(d)
        )
        for d in known
    ]


def plugged_android() -> list[DeviceListing]:
    """The same devices, without asking them anything.

    Raises:
        UsageError: The environment variables of the adb server do not hold an address.
    """
    try:
        known = known_devices()
    except DeviceError as error:
        return [failed("android", "android", "error", error)]
    return [
        DeviceListing(
            name=f"android:{d.serial}", kind="android", status=d.state, remedy=remedy_for(d)
        )
        for d in known
    ]


def remedy_for(device: ServerDevice) -> str | None:
    """What to do about a device that cannot be used; None for one that can."""
    return None if device.state == USABLE else _unusable(device).remedy


def open_listed(device: ServerDevice, idle_s: float = 30.0) -> AndroidDevice:
    """A device of `known_devices`; `idle_s` is how long to wait for an answer."""
    transport: Transport
    if server_is_running():
        transport = ServerTransport(device.serial)
    else:
        transport = usb_transport(device.serial)
    return AndroidDevice(device.serial, transport, idle_s)


def _open_known(device: ServerDevice) -> AndroidDevice:
    if device.state == "offline" and DeviceSpec("android", device.serial).address:
        _reconnect(device.serial)
    elif device.state != USABLE:
        raise _unusable(device)
    return open_listed(device)


def _reconnect(serial: str) -> None:
    """Reconnects once, and says so: an adb server is slow to notice that a device is back."""
    name = f"android:{serial}"
    with _server_errors():
        problem = adb_server.reconnect(serial)
    if problem:
        raise still_offline(name, problem)
    console.message(f"{name}: the adb server listed it as offline, and has reconnected to it")


def _only(known: Sequence[ServerDevice]) -> ServerDevice:
    usable = [d for d in known if d.state == USABLE]
    if len(usable) == 1:
        return usable[0]
    if usable:
        names = "\n".join(f"{_option(d.serial)}{_model(d)}" for d in usable)
        raise DeviceError(
            f"{len(usable)} Android devices are connected, and none is chosen",
            place="android",
            remedy=f"Choose one:\n{names}",
        )
    if len(known) == 1:
        return known[0]
    if known:
        states = ", ".join(f"{d.serial} is {d.state}" for d in known)
        raise DeviceError(
            f"no Android device can be used: {states}",
            place="android",
            remedy="etdeploy devices    says what to do about each",
        )
    raise DeviceError("no Android device is connected", place="android", remedy=CONNECT_STEPS)


def _option(serial: str) -> str:
    return f"--device {quote(f'android:{serial}')}"


def _model(device: ServerDevice) -> str:
    return f"    ({device.model})" if device.model else ""


def _unknown(serial: str, known: Sequence[ServerDevice]) -> DeviceError:
    same = [device for device in known if device.shared == serial]
    if same:
        names = "\n".join(f"{_option(d.serial)}{_model(d)}" for d in same)
        return DeviceError(
            f"{len(same)} devices have this serial number",
            place=f"android:{serial}",
            remedy=f"Choose one by the port that it is plugged into:\n{names}",
        )
    close = difflib.get_close_matches(serial, [d.serial for d in known], n=1)
    if close:
        remedy = f"Did you mean {_option(close[0])}?"
    elif known:
        remedy = "Connected are:\n" + "\n".join(_option(d.serial) for d in known)
    else:
        remedy = CONNECT_STEPS
    return DeviceError("the device is not connected", place=f"android:{serial}", remedy=remedy)


def _unusable(device: ServerDevice) -> DeviceError:
    return unusable(f"android:{device.serial}", device.state)
