"""An Android device: which one a name means, what it does, and how to get it back."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from shlex import quote

from etdeploy.core import cancel, console
from etdeploy.core.errors import DeviceError
from etdeploy.core.processes import process
from etdeploy.core.values import Progress, cached_property, silent
from etdeploy.devices.adb import server as adb_server
from etdeploy.devices.adb.server import (
    USABLE,
    ServerDevice,
    ServerTransport,
    server_address,
    server_is_running,
)
from etdeploy.devices.adb.stream import (
    AdbError,
    AdbReconnectError,
    AdbStateError,
    Timeouts,
    Transport,
    usb_transports,
)
from etdeploy.devices.adb.wire import tcp_transport, usb_transport
from etdeploy.devices.android import facts as android_facts
from etdeploy.devices.android.app_run import find_archive, install, open_app_run
from etdeploy.devices.android.app_watch import end_apps
from etdeploy.devices.android.diagnostics import explain
from etdeploy.devices.android.link import AndroidLink
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
from etdeploy.devices.kinds import (
    DeviceSpec,
    Recovery,
    describe_device,
    failed_listing,
    not_chosen,
    not_connected,
)
from etdeploy.devices.remote.device import RemoteDevice
from etdeploy.devices.remote.shell import check_output
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


def list_android(*, ask: bool = True) -> list[DeviceListing]:
    """Every Android device that the adb server or libusb knows, with what to do about each."""
    try:
        known = known_devices()
    except DeviceError as error:
        return [failed_listing("android", "android", "error", error)]
    usable = [d for d in known if ask and d.state == USABLE]
    found = cancel.in_threads(lambda d: describe_device(open_listed(d, _LIST_S), "android"), usable)
    listed = dict(zip([d.serial for d in usable], found, strict=True))
    return [
        listed.get(d.serial)
        or DeviceListing(
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
        name = f"android:{device.serial}"
        _reconnect(device.serial, name)
        console.message(f"{name}: the adb server listed it as offline, and has reconnected to it")
    elif device.state != USABLE:
        raise _unusable(device)
    return open_listed(device)


def _reconnect(serial: str, name: str) -> None:
    with _server_errors():
        problem = adb_server.reconnect(serial)
    if problem:
        raise explain(AdbReconnectError(problem), name)


def _only(known: Sequence[ServerDevice]) -> ServerDevice:
    usable = [d for d in known if d.state == USABLE]
    if len(usable) == 1:
        return usable[0]
    if usable:
        raise not_chosen("android", f"{len(usable)} Android devices", _options(usable))
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


def _options(devices: Sequence[ServerDevice]) -> list[str]:
    return [
        f"--device {quote(f'android:{d.serial}')}" + (f"    ({d.model})" if d.model else "")
        for d in devices
    ]


def _unknown(serial: str, known: Sequence[ServerDevice]) -> DeviceError:
    same = [device for device in known if device.shared == serial]
    if same:
        names = "\n".join(_options(same))
        return DeviceError(
            f"{len(same)} devices have this serial number",
            place=f"android:{serial}",
            remedy=f"Choose one by the port that it is plugged into:\n{names}",
        )
    spec = DeviceSpec("android", serial)
    return not_connected(
        spec, "the device is not connected", [d.serial for d in known], CONNECT_STEPS
    )


def _unusable(device: ServerDevice) -> DeviceError:
    return explain(AdbStateError(device.state), f"android:{device.serial}")


# `dumpsys` waits up to 10 s for each service that hangs.
_DUMPSYS_S = 25.0
_OPEN_S = 10.0


class AndroidDevice(RemoteDevice):
    """An Android device."""

    def __init__(self, serial: str, transport: Transport, idle_s: float = 30.0) -> None:
        self._serial = serial
        timeouts = Timeouts(idle_s, open_s=min(idle_s, _OPEN_S))
        self._link = AndroidLink(f"android:{serial}", transport, timeouts)
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
        return check_output(
            self._link, android_facts.BOOT_ID_COMMAND, "reading its boot id"
        ).strip()

    def has_booted(self) -> bool:
        """Whether Android has started, and not only its kernel."""
        said = check_output(self._link, "getprop", "reading its properties")
        return android_facts.parse_getprop(said).get("sys.boot_completed") == "1"

    def restart(self) -> None:
        """Restarts the phone, as `adb reboot` does; the connection ends with it."""
        with self._link.errors("restarting it"):
            self._link.transport.open("reboot:", self._link.timeouts).close()

    def push(self, bundle: Bundle, progress: Progress = silent) -> PushReport:
        app = bundle.app
        if app is None:
            return super().push(bundle, progress)
        find_archive(bundle, app)
        started = time.monotonic()
        report = super().push(bundle, progress)
        install(self._link, bundle, app, progress)
        return replace(report, seconds=time.monotonic() - started)

    def end_leftovers(self) -> tuple[Leftover, ...]:
        return (*super().end_leftovers(), *end_apps(self._link))

    def open_run(self, bundle: Bundle, run_id: str) -> AbstractContextManager[RunFolder]:
        if bundle.app is None:
            return super().open_run(bundle, run_id)
        return open_app_run(self._link, bundle, bundle.app, run_id, android_facts.SAMPLING)

    @cached_property
    def _facts_output(self) -> str:
        return check_output(self._link, android_facts.FACTS_COMMAND, "reading its properties")


_BACK_S = 30.0
_REBOOT_S = 240.0
_ADB_S = 30.0
_POLL_S = 1.0
_HERE = ("127.0.0.1", "localhost", "::1")


def recover_android(spec: DeviceSpec, step: Recovery, tell: Callable[[str], None]) -> None:
    """Takes one step, and waits until the phone can be used again."""
    name, serial = f"android:{spec.serial}", spec.serial or ""
    if step is Recovery.RECONNECT:
        _recover_connection(serial, name, tell)
    elif step is Recovery.RESTART:
        _restart_server(serial, name, tell)
    else:
        _reboot(spec, name, tell)


def _recover_connection(serial: str, name: str, tell: Callable[[str], None]) -> None:
    if not server_is_running():
        tell(f"{name}: no adb server runs here; each attempt connects anew")
        return
    tell(f"{name}: adb reconnect")
    if DeviceSpec("android", serial).address:
        _reconnect(serial, name)
        return
    try:
        adb_server.reconnect_usb(serial)
    except AdbError as error:
        raise _failed(name, "adb reconnect", str(error)) from error
    _wait_for(serial, name, "adb reconnect")


def _restart_server(serial: str, name: str, tell: Callable[[str], None]) -> None:
    """Restarts the adb server of this machine."""
    adb = process.which("adb")
    host, port = server_address()
    if host not in _HERE:
        tell(f"{name}: the adb server is on {host}, and is not restarted from here")
        return
    if adb is None or not server_is_running():
        tell(f"{name}: there is no adb server here to restart")
        return
    tell(f"{name}: adb kill-server, adb start-server")
    others = _on_the_network() - {serial}
    try:
        for word in ("kill-server", "start-server"):
            outcome = _adb(str(adb), port, word)
            if not outcome.ok and word != "kill-server":
                said = "it hangs" if outcome.timed_out else outcome.stderr.strip()
                raise _failed(name, f"adb {word}", said)
    finally:
        # A new server finds only what is on a cable.
        for other in sorted(others):
            _adb(str(adb), port, "connect", other)
    _wait_for(serial, name, "adb start-server")


def _adb(adb: str, port: int, *words: str) -> process.Outcome:
    return process.run(process.Request((adb, "-P", str(port), *words), timeout_s=_ADB_S))


def _on_the_network() -> set[str]:
    """The addresses that the adb server has, reachable or not."""
    with suppress(DeviceError):  # a server that hangs
        return {d.serial for d in known_devices() if DeviceSpec("android", d.serial).address}
    return set()


def _reboot(spec: DeviceSpec, name: str, tell: Callable[[str], None]) -> None:
    tell(f"{name}: adb reboot; waits up to {_REBOOT_S:.0f} s for it")
    device = open_android(spec)
    try:
        before = device.boot_id()
        device.restart()
    finally:
        device.close()
    deadline = time.monotonic() + _REBOOT_S
    while time.monotonic() < deadline:
        cancel.checkpoint()
        time.sleep(_POLL_S)
        if _is_up(spec, before):
            tell(f"{name}: is up again")
            return
    raise _failed(name, "adb reboot", f"it is not up again after {_REBOOT_S:.0f} s")


def _is_up(spec: DeviceSpec, before: str) -> bool:
    try:
        device = open_android(spec)
        try:
            return device.boot_id() != before and device.has_booted()
        finally:
            device.close()
    except DeviceError:
        return False


def _wait_for(serial: str, name: str, command: str) -> None:
    """Waits until the server can use the device, and connects again to one on the network."""
    on_network = DeviceSpec("android", serial).address is not None
    deadline = time.monotonic() + _BACK_S
    state: str | None = None
    while time.monotonic() < deadline:
        cancel.checkpoint()
        with suppress(DeviceError):  # a server that is starting, a phone that refuses connections
            if on_network:  # the server tries only once
                _reconnect(serial, name)
            state = next((d.state for d in known_devices() if serial in (d.serial, d.usb)), None)
        if state == USABLE:
            return
        time.sleep(_POLL_S)
    raise _failed(name, command, f"its state is {state}" if state else "it is not connected")


def _failed(name: str, command: str, said: str) -> DeviceError:
    return DeviceError(
        f"the phone is not back after {command}: {said or 'no reason given'}",
        place=name,
        remedy="Look at its screen, cable and hub.",
    )
