"""Steps to get back a phone that does not work; each is bounded in time."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from etdeploy.core import cancel
from etdeploy.core.errors import DeviceError
from etdeploy.core.processes import process
from etdeploy.devices.adb import server as adb_server
from etdeploy.devices.adb.server import USABLE, server_address, server_is_running
from etdeploy.devices.adb.stream import AdbError, AdbReconnectError
from etdeploy.devices.android.choice import known_devices, open_android
from etdeploy.devices.android.diagnostics import explain
from etdeploy.devices.kinds import DeviceSpec, Recovery

_BACK_S = 30.0
_REBOOT_S = 240.0
_ADB_S = 30.0
_POLL_S = 1.0
_HERE = ("127.0.0.1", "localhost", "::1")


def recover_android(spec: DeviceSpec, step: Recovery, tell: Callable[[str], None]) -> None:
    """Takes one step, and waits until the phone can be used again."""
    name, serial = f"android:{spec.serial}", spec.serial or ""
    if step is Recovery.RECONNECT:
        _reconnect(serial, name, tell)
    elif step is Recovery.RESTART:
        _restart_server(serial, name, tell)
    else:
        _reboot(spec, name, tell)


def _reconnect(serial: str, name: str, tell: Callable[[str], None]) -> None:
    if not server_is_running():
        tell(f"{name}: no adb server runs here; each attempt connects anew")
        return
    tell(f"{name}: adb reconnect")
    try:
        if DeviceSpec("android", serial).address:
            problem = adb_server.reconnect(serial)
            if problem:
                raise explain(AdbReconnectError(problem), name)
            return
        adb_server.kick(serial)
    except AdbError as error:
        raise _failed(name, "adb reconnect", str(error)) from error
    _wait_for(serial, name, _BACK_S)


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
    address = DeviceSpec("android", serial).address
    others = _on_the_network() - {serial}
    commands = [("kill-server",), ("start-server",), *([("connect", serial)] if address else [])]
    try:
        for words in commands:
            outcome = _adb(str(adb), port, *words)
            if not outcome.ok and words != ("kill-server",):
                said = "it hangs" if outcome.timed_out else outcome.stderr.strip()
                raise _failed(name, f"adb {' '.join(words)}", said)
    finally:
        # A new server finds what is on a cable, and nothing else.
        for other in sorted(others):
            _adb(str(adb), port, "connect", other)
    _wait_for(serial, name, _BACK_S)


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


def _wait_for(serial: str, name: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    state: str | None = None
    while time.monotonic() < deadline:
        cancel.checkpoint()
        with suppress(DeviceError):  # a server that is starting
            state = next((d.state for d in known_devices() if serial in (d.serial, d.usb)), None)
        if state == USABLE:
            return
        time.sleep(_POLL_S)
    raise _failed(name, "that", f"its state is {state}" if state else "it is not connected")


def _failed(name: str, command: str, said: str) -> DeviceError:
    return DeviceError(
        f"the phone is not back after {command}: {said or 'it does not say why'}",
        place=name,
        remedy="Look at its screen, cable and hub.",
    )
