"""Which Android device a name means, and how to reach it."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from shlex import quote
from typing import Any

from etdeploy.core import cancel, console
from etdeploy.core.cached import cached_property
from etdeploy.core.errors import DeviceError
from etdeploy.core.values import Progress, silent
from etdeploy.devices.adb import server as adb_server
from etdeploy.devices.adb.server import (
    USABLE,
    ServerDevice,
    ServerTransport,
    server_address,
    server_is_running,
)
from etdeploy.devices.adb.stream import (
    AdbDroppedError,
    AdbError,
    AdbGoneError,
    AdbReconnectError,
    AdbStateError,
    AdbUnreachableError,
    Buffer,
    Patience,
    Pipe,
    Stream,
    TcpPipe,
    Transport,
    UsbPipe,
    usb_transport_of,
    usb_transports,
)
from etdeploy.devices.adb.wire import Signer, WireConnection, WireStream, key_path, user_signer
from etdeploy.devices.android import facts as android_facts
from etdeploy.devices.android.app_run import opened_app_run
from etdeploy.devices.android.app_watch import MARKER, parse_marker
from etdeploy.devices.android.diagnostics import explain
from etdeploy.devices.android.install import archive_of, install
from etdeploy.devices.android.link import AndroidLink
from etdeploy.devices.android.logs import stop_command
from etdeploy.devices.base import (
    Bundle,
    Capabilities,
    DeviceFacts,
    DeviceListing,
    DeviceState,
    Leftover,
    PushReport,
    RunFolder,
)
from etdeploy.devices.kinds import DeviceSpec, described, failed
from etdeploy.devices.leftovers import seconds_since_start
from etdeploy.devices.remote import leftovers
from etdeploy.devices.remote.device import RemoteDevice
from etdeploy.devices.remote.shell import DevicePaths, RemoteShell
from etdeploy.devices.shell import sections
from etdeploy.targets.platforms import ANDROID_ABIS

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
    """The devices of the adb server; where none runs, those that libusb finds."""
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
    """Every Android device that the adb server or libusb knows, with what to do about each."""
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
    """The same devices, without asking them anything."""
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
        raise explain(AdbReconnectError(problem), name)
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
    return explain(AdbStateError(device.state), f"android:{device.serial}")


# `dumpsys` waits up to 10 s for each service that hangs.
_DUMPSYS_S = 25.0
_OPEN_S = 10.0


class AndroidDevice(RemoteDevice):
    """An Android device.

    Args:
        serial: Its serial number or HOST:PORT.
        transport: How to reach it; connects on first use.
        idle_s: How long to wait for an answer.
    """

    def __init__(self, serial: str, transport: Transport, idle_s: float = 30.0) -> None:
        self._serial = serial
        patience = Patience(idle_s, open_s=min(idle_s, _OPEN_S))
        self._link = AndroidLink(f"android:{serial}", transport, patience)
        super().__init__(self._link, android_facts.SAMPLING)

    @property
    def identity(self) -> str:
        return android_facts.android_identity(self._serial, self._facts_output)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(launches=("process", "app"), streams=True, converses=True)

    def facts(self) -> DeviceFacts:
        output = self._facts_output
        facts = android_facts.android_facts(self.name, self._link.transport.description, output)
        if facts is None:
            abi = android_facts.android_abi(output)
            raise DeviceError(
                f"the device's ABI is {abi or 'unknown'}, and ExecuTorch runs on "
                f"{' and '.join(ANDROID_ABIS)} only",
                place=self.name,
            )
        return facts

    def state(self) -> DeviceState:
        command = android_facts.STATE_COMMAND
        result = self._link.shell(command, "reading its battery state", _DUMPSYS_S)
        return android_facts.android_state(result.output)

    def boot_id(self) -> str:
        """Of this start of its kernel; another one after a restart."""
        return self._link.require(android_facts.BOOT_ID_COMMAND, "reading its boot id").strip()

    def has_booted(self) -> bool:
        """Whether Android has started, and not only its kernel."""
        said = self._link.require("getprop", "reading its properties")
        return android_facts.parse_getprop(said).get("sys.boot_completed") == "1"

    def restart(self) -> None:
        """Restarts the phone, as `adb reboot` does; the connection ends with it."""
        with self._link.errors("restarting it"):
            self._link.transport.open("reboot:", self._link.patience).close()

    def push(self, bundle: Bundle, progress: Progress = silent) -> PushReport:
        app = bundle.app
        if app is None:
            return super().push(bundle, progress)
        archive_of(bundle, app)
        started = time.monotonic()
        report = super().push(bundle, progress)
        install(self._link, bundle, app, progress)
        return replace(report, seconds=time.monotonic() - started)

    def end_leftovers(self) -> tuple[Leftover, ...]:
        return (*super().end_leftovers(), *end_apps(self._link))

    def open_run(self, bundle: Bundle, run_id: str) -> AbstractContextManager[RunFolder]:
        if bundle.app is None:
            return super().open_run(bundle, run_id)
        return opened_app_run(self._link, bundle, bundle.app, run_id, android_facts.SAMPLING)

    @cached_property
    def _facts_output(self) -> str:
        return self._link.require(android_facts.FACTS_COMMAND, "reading its properties")


_DOING = "looking for apps of earlier runs"
_END_S = 5.0
_POLL_S = 0.2


@dataclass(frozen=True)
class RunningApp:
    """An app that a run started and that still runs."""

    app_id: str
    leftover: Leftover


def end_apps(shell: RemoteShell) -> tuple[Leftover, ...]:
    """Ends them, and returns them.

    An app that its user started is no leftover: a run notes the process that it started.
    """
    found = _find(shell)
    for app in found:
        if leftovers.is_watched(shell, app.leftover):
            raise leftovers.in_use(shell, app.leftover)
    deadline = time.monotonic() + _END_S
    left = found
    while left:
        if time.monotonic() > deadline:
            raise leftovers.immortal(shell, left[0].leftover)
        stops = "\n".join(stop_command(app.app_id) for app in left)
        shell.shell(stops, "ending an app of an earlier run")
        time.sleep(_POLL_S)
        left = _find(shell)
    return tuple(app.leftover for app in found)


def _find(shell: RemoteShell) -> tuple[RunningApp, ...]:
    return parse_apps(shell.shell(apps_command(shell.place), _DOING).output)


def apps_command(place: DevicePaths) -> str:
    """Prints the apps that runs noted, each with what /proc has of its process."""
    return "\n".join(
        (
            "echo '#uptime'; cat /proc/uptime; n=0",
            f"for f in {quote(place.root)}/runs/*/{MARKER}; do",
            '  read -r id pid <"$f" || continue; [ "$pid" != 0 ] || continue',
            "  read -r stat </proc/$pid/stat || continue",
            '  n=$((n + 1)); echo "#a$n"; f=${f%/*}; echo "${f##*/}"',
            '  echo "$id $pid"; echo "$stat"',
            '  IFS= read -r -d "" name </proc/$pid/cmdline; echo "$name"',
            "done 2>/dev/null; true",
        )
    )


def parse_apps(output: str) -> tuple[RunningApp, ...]:
    """The running apps in the output of `apps_command`."""
    parts = sections(output)
    found = (
        _running(text, parts.get("uptime", ""))
        for name, text in parts.items()
        if re.fullmatch(r"a\d+", name)
    )
    return tuple(app for app in found if app)


def _running(text: str, uptime: str) -> RunningApp | None:
    lines = text.splitlines()
    marker = parse_marker(lines[1]) if len(lines) > 3 else None
    # The number may be another process's by now.
    if marker is None or lines[3] != marker[0]:
        return None
    try:
        seconds = seconds_since_start(lines[2], uptime)
    except ValueError:
        return None
    return RunningApp(marker[0], Leftover(pid=marker[1], run_id=lines[0], seconds=seconds))


_CONFIRM_S = 10.0
# adbd names a connection after its file descriptor, and drops a new one while the last one with
# that number is being taken apart: now and then when one follows another at once.
_MORE_GREETINGS, _PAUSE_S = 2, 0.1


def _user_key() -> Signer:
    return user_signer(key_path())


class DirectTransport:
    """A connection to a device, made on first use, and again after it broke.

    Args:
        connect: Opens the pipe.
        description: How the device is reached, for people.
        signer: Returns the user's key.
        confirm_s: How long to wait for the user's consent on the device's screen.
    """

    def __init__(
        self,
        connect: Callable[[Patience], Pipe],
        description: str,
        signer: Callable[[], Signer] = _user_key,
        confirm_s: float = _CONFIRM_S,
    ) -> None:
        self._connect = connect
        self._signer = signer
        self._confirm_s = confirm_s
        self._connection: WireConnection | None = None
        self._was_connected = False
        self.description = description

    def open(self, service: str, patience: Patience) -> Stream:
        with self._broken_on_error():
            connection = self._connection or self._connected(patience)
            return _GuardedStream(self, connection.open(service, patience))

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection:
            connection.close()

    def _connected(self, patience: Patience) -> WireConnection:
        for _ in range(_MORE_GREETINGS):
            with contextlib.suppress(AdbDroppedError):
                return self._greeted(patience)
            self.close()
            time.sleep(_PAUSE_S)
        return self._greeted(patience)

    def _greeted(self, patience: Patience) -> WireConnection:
        connection = WireConnection(self._pipe(patience), self._signer, self._confirm_s)
        self._connection = connection
        connection.connect()
        self._was_connected = True
        return connection

    def _pipe(self, patience: Patience) -> Pipe:
        try:
            return self._connect(patience.for_opening)
        except AdbUnreachableError as error:
            if not self._was_connected:
                raise
            raise AdbGoneError(str(error)) from error

    @contextlib.contextmanager
    def _broken_on_error(self) -> Iterator[None]:
        # After an error or a stop, half a packet may be under way: only a new connection is clean.
        try:
            yield
        except BaseException:
            self.close()
            raise

    def guarded(self, stream: WireStream) -> contextlib.AbstractContextManager[None]:
        """Drops the connection when the block fails, if the stream is still in it."""
        if stream.connection is self._connection:
            return self._broken_on_error()
        raise AdbGoneError("the connection was closed")


@dataclass
class _GuardedStream:
    """A stream whose failure drops the connection that it is in."""

    transport: DirectTransport
    stream: WireStream

    @property
    def patience(self) -> Patience:
        return self.stream.patience

    @patience.setter
    def patience(self, patience: Patience) -> None:
        self.stream.patience = patience

    @property
    def block_bytes(self) -> int:
        return self.stream.block_bytes

    def send(self, data: Buffer) -> None:
        with self.transport.guarded(self.stream):
            self.stream.send(data)

    def receive(self, size: int) -> bytes:
        with self.transport.guarded(self.stream):
            return self.stream.receive(size)

    def has_input(self) -> bool:
        with self.transport.guarded(self.stream):
            return self.stream.has_input()

    def close(self) -> None:
        with contextlib.suppress(AdbError), self.transport.guarded(self.stream):
            self.stream.close()


def tcp_transport(host: str, port: int) -> DirectTransport:
    """The adbd that listens on a TCP port."""
    return DirectTransport(lambda patience: TcpPipe(host, port, patience), "TCP")


def usb_transport(serial: str, find: Callable[[str], Any] = usb_transport_of) -> DirectTransport:
    """A phone on USB; `find` gives the adb_shell UsbTransport that it has now."""
    return DirectTransport(lambda patience: UsbPipe(find(serial), patience), "USB")
