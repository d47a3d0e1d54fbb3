"""Which iPhone a name means, and which ones there are.

The simulator of a Mac with Xcode, by `xcrun simctl`: `ios:simulator[:UDID]`.

It runs apps that are built for ios-simulator on the Mac's own processor, so its times say nothing
about a phone. An app's files are a folder of the Mac.
"""

from __future__ import annotations

import json
import os
import platform
import plistlib
import shutil
import tempfile
import time
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etdeploy.core import cancel
from etdeploy.core.diagnostics import FailurePattern, FailureTable
from etdeploy.core.errors import DeviceError, Interrupted
from etdeploy.core.files.basic import inside
from etdeploy.core.processes import process
from etdeploy.devices.base import (
    BundleFile,
    Capabilities,
    DeviceFacts,
    DeviceListing,
    DeviceState,
)
from etdeploy.devices.ios.apps import (
    MARKER,
    Crash,
    InstalledApp,
    LaunchResult,
    candidates,
    parse_crash,
)
from etdeploy.devices.ios.command import (
    Attached,
    MuxError,
    PhoneCommand,
    format_udid,
    list_attached,
    require_program,
    socket_address,
)
from etdeploy.devices.ios.device import AppDevice, IosDevice
from etdeploy.devices.ios.diagnostics import CONNECT_STEPS, UntrustedError, phone_error
from etdeploy.devices.ios.run import announcement, has_failed, read_until
from etdeploy.devices.kinds import (
    DeviceSpec,
    describe_device,
    failed_listing,
    not_chosen,
    not_connected,
    present_listing,
)

SIMULATOR_FAILURES = FailureTable(
    "Simulators",
    DeviceError.exit_code,
    (
        FailurePattern(
            r"^no xcrun$",
            "simulators need a Mac with Xcode",
            "Install Xcode from the App Store, then: xcode-select --install",
        ),
        FailurePattern(r"^none runs$", "no simulator runs", "Start one:\n{boot}"),
        FailurePattern(
            r"^no simulator$",
            "Xcode has no simulator of iOS",
            "xcodebuild -downloadPlatform iOS   (several GB)",
        ),
        FailurePattern(
            r"^no app$",
            "{archive} is not an app",
            "An .ipa is a ZIP file with the folder Payload and the .app in it.",
        ),
        FailurePattern(
            r"",
            "simctl failed while {activity}: {error}",
            "The app has to be built with -destination 'generic/platform=iOS Simulator'. Start "
            "the\nsimulator again: xcrun simctl shutdown all",
        ),
    ),
)

TARGET = "ios-simulator"
_CLOCK_S = 2.0


def open_simulator(udid: str | None) -> SimulatorDevice:
    """The simulator with a UDID, or the one that runs."""
    place = f"ios:simulator:{udid}" if udid else "ios:simulator"
    if process.which("xcrun") is None:
        raise SIMULATOR_FAILURES.error(DeviceError, "no xcrun", place)
    answer = simctl(["list", "devices", "available", "-j"], place, "listing the simulators")
    known = parse_simulators(answer)
    found = [s for s in known if (s.udid == udid if udid else s.is_booted)]
    if len(found) == 1 and found[0].is_booted:
        return SimulatorDevice(found[0])
    raise _not_chosen(place, found or known)


def _not_chosen(place: str, known: Sequence[Simulator]) -> DeviceError:
    booted = [s for s in known if s.is_booted]
    if booted:
        lines = [f"--device ios:simulator:{s.udid}    ({s.name}, {s.system})" for s in booted]
        message = f"{len(booted)} simulators run, and none is chosen"
        return DeviceError(message, place=place, remedy="\n".join(["Choose one:", *lines]))
    lines = [f"xcrun simctl boot {s.udid}    ({s.name}, {s.system})" for s in known[:10]]
    failure = "none runs" if known else "no simulator"
    return SIMULATOR_FAILURES.error(DeviceError, failure, place, boot="\n".join(lines))


class SimulatorApps:
    """The apps of a simulator."""

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator

    @property
    def name(self) -> str:
        return f"ios:simulator:{self._simulator.udid}"

    def query(self, app: str) -> InstalledApp | None:
        path, data = self._container(app, "app"), self._container(app, "data")
        if path is None or data is None:
            return None
        information = property_list(path / "Info.plist")
        executable = str(information.get("CFBundleExecutable", ""))
        return InstalledApp(app, str(path), str(data), executable, is_development=True)

    def development_apps(self) -> list[InstalledApp]:
        found = []
        for marker in self._simulator.data.glob(f"Containers/Data/Application/*/{MARKER}"):
            metadata = marker.parents[1] / ".com.apple.mobile_container_manager.metadata.plist"
            app = self.query(str(property_list(metadata).get("MCMMetadataIdentifier", "")))
            found += [app] if app else []
        return found

    def install(self, archive: BundleFile) -> None:
        with tempfile.TemporaryDirectory() as folder:
            app = unpacked(Path(archive.source), Path(folder), self.name)
            simctl(["install", self._simulator.udid, str(app)], self.name, "installing the app")

    def put(self, app: str, source: Path, path: str) -> None:
        target = inside(self._home(app), path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        else:
            shutil.copyfile(source, target)

    def remove(self, app: str, path: str) -> bool:
        target = inside(self._home(app), path)
        if target.is_dir():
            shutil.rmtree(target)
        elif target.exists():
            target.unlink()
        else:
            return False
        return True

    def pull(self, app: str, path: str, to: Path) -> bool:
        source = inside(self._home(app), path)
        if source.is_dir():
            shutil.copytree(source, to / source.name, dirs_exist_ok=True)
        elif source.exists():
            shutil.copyfile(source, to)
        else:
            return False
        return True

    def launch(self, app: str, words: Sequence[str], run_id: str, timeout_s: float) -> LaunchResult:
        udid = self._simulator.udid
        argv = command_line(
            "launch", "--console-pty", "--terminate-running-process", udid, app, *words
        )
        started = time.monotonic()
        try:
            with process.talking(process.Request(argv)) as conversation:
                text, ended = read_until(conversation, announcement(run_id), timeout_s)
                if ended and not text and has_failed(conversation):
                    raise failure(conversation.errors(), self.name, "starting the app")
        except Interrupted:
            self._end(app)
            raise
        announced = f"{announcement(run_id)}\n" in text
        seconds = time.monotonic() - started
        launched = LaunchResult(text, seconds, not (ended or announced), announced)
        if launched.timed_out:
            self._end(app)
        return launched

    def find_crash(self, app: str, since_unix_s: float) -> Crash | None:
        installed = self.query(app)
        executable = installed.executable if installed else ""
        folder = Path.home() / "Library" / "Logs" / "DiagnosticReports"
        paths = [str(path) for path in folder.glob("*.ips")]
        for path in candidates(paths, executable):
            text = Path(path).read_text(errors="replace")
            crash = parse_crash(text, Path(path).name, executable, app)
            if crash and (crash.unix_s or 0) >= since_unix_s - _CLOCK_S:
                return crash
        return None

    def _end(self, app: str) -> None:
        argv = command_line("terminate", self._simulator.udid, app)
        with process.talking(process.Request(argv, outlives_stop=True)) as conversation:
            while conversation.read(1 << 16, REQUEST_S, heed_stop=False):
                pass

    def _home(self, app: str) -> Path:
        found = self._container(app, "data")
        if found is None:
            raise DeviceError(
                f"the app {app} is not installed any more",
                place=self.name,
                remedy="Run the same command again: it installs the app.",
            )
        return found

    def _container(self, app: str, kind: str) -> Path | None:
        argv = command_line("get_app_container", self._simulator.udid, app, kind)
        outcome = process.run(process.Request(argv, timeout_s=REQUEST_S))
        return Path(outcome.stdout.strip()) if outcome.ok and outcome.stdout.strip() else None


class SimulatorDevice(AppDevice):
    """A simulator as a device."""

    capabilities = Capabilities(launches=("app",), shares_cores=True)

    def __init__(self, simulator: Simulator) -> None:
        super().__init__(SimulatorApps(simulator))
        self._simulator = simulator

    @property
    def identity(self) -> str:
        return f"ios-simulator-{self._simulator.udid}"

    def facts(self) -> DeviceFacts:
        return DeviceFacts(
            name=self.name,
            kind="ios",
            target=TARGET,
            model=self._simulator.name,
            manufacturer="Apple",
            abi=platform.machine(),
            os=self._simulator.system,
            cpu_count=os.cpu_count(),
            connection="this machine, simulated",
            emulator="the iOS simulator of Xcode",
        )

    def state(self) -> DeviceState:
        return DeviceState()


REQUEST_S = 120.0
"""How long a request may take; the first one starts a service of Xcode's."""

_RUNTIME = "com.apple.CoreSimulator.SimRuntime."


@dataclass(frozen=True)
class Simulator:
    """A simulated phone."""

    udid: str
    name: str
    system: str
    is_booted: bool
    data: Path


def parse_simulators(text: str) -> list[Simulator]:
    """The iPhones and iPads of `simctl list devices -j`."""
    try:
        by_runtime = json.loads(text)["devices"]
    except (ValueError, KeyError, TypeError):
        return []
    return [
        Simulator(
            udid=str(device["udid"]),
            name=str(device["name"]),
            system=_system(runtime),
            is_booted=device.get("state") == "Booted",
            data=Path(str(device.get("dataPath", ""))),
        )
        for runtime, devices in by_runtime.items()
        if runtime.startswith(f"{_RUNTIME}iOS-")
        for device in devices
    ]


def _system(runtime: str) -> str:
    """`...SimRuntime.iOS-18-1` is iOS 18.1."""
    name, *version = runtime.removeprefix(_RUNTIME).split("-")
    return f"{name} {'.'.join(version)}"


def unpacked(archive: Path, folder: Path, place: str) -> Path:
    """The .app of an .ipa, unpacked into a folder with its files' modes."""
    try:
        with zipfile.ZipFile(archive) as file:
            for member in file.infolist():
                written = Path(file.extract(member, folder))
                mode = member.external_attr >> 16
                if mode & 0o100 and not written.is_dir():
                    written.chmod(0o755)
    except (zipfile.BadZipFile, OSError) as error:
        raise DeviceError(f"{archive.name} cannot be unpacked: {error}", place=place) from error
    found = sorted(folder.glob("Payload/*.app"))
    if not found:
        raise SIMULATOR_FAILURES.error(DeviceError, "no app", place, archive=archive.name)
    return found[0]


def simctl(words: Sequence[str], place: str, activity: str) -> str:
    """What simctl prints."""
    outcome = process.run(process.Request(command_line(*words), timeout_s=REQUEST_S))
    if not outcome.ok:
        raise failure(outcome.stderr, place, activity)
    return outcome.stdout


def failure(said: str, place: str, activity: str) -> DeviceError:
    """The error for what simctl wrote to stderr."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    last = lines[-1].rstrip(".") if lines else "it says nothing"
    return SIMULATOR_FAILURES.error(DeviceError, last, place, activity=activity)


def command_line(*words: str) -> tuple[str, ...]:
    """The words that run simctl."""
    return (str(process.which("xcrun") or "xcrun"), "simctl", *words)


def property_list(path: Path) -> dict[str, Any]:
    """What a file of properties says; nothing where it cannot be read."""
    try:
        found = plistlib.loads(path.read_bytes())
    except (OSError, ValueError, plistlib.InvalidFileException):
        return {}
    return found if isinstance(found, dict) else {}


# How long a listing waits for each request to a phone.
_LIST_S = 30.0


def open_ios(spec: DeviceSpec) -> IosDevice | SimulatorDevice:
    """The phone or simulator that `ios`, `ios:UDID` or `ios:simulator[:UDID]` means."""
    kind, _, udid = (spec.serial or "").partition(":")
    if kind == "simulator":
        return open_simulator(udid or None)
    place = f"ios:{spec.serial}" if spec.serial else "ios"
    known = _known(place)
    if known is None:
        raise phone_error("connect to usbmuxd", place)
    phone = _named(spec, known) if spec.serial else _only(known)
    return IosDevice(PhoneCommand(require_program(place), phone.udid), phone.connection)


def list_ios(*, ask: bool = True) -> list[DeviceListing]:
    """Every iPhone that usbmuxd knows, with what to do about each.

    No process is started where no phone is connected, or where none is asked anything.
    """
    try:
        known = _known("ios") or []
    except DeviceError as error:
        return [failed_listing("ios", "ios", "error", error)]
    if not ask:
        return [present_listing(f"ios:{phone.udid}", "ios") for phone in known]
    return cancel.in_threads(_listing, known) if known else []


def _listing(phone: Attached) -> DeviceListing:
    name = f"ios:{phone.udid}"
    try:
        program = require_program(name)
    except DeviceError as error:
        return failed_listing(name, "ios", "missing", error)
    device = IosDevice(PhoneCommand(program, phone.udid), phone.connection, _LIST_S)
    try:
        device.facts()
    except DeviceError as error:
        status = "unauthorized" if isinstance(error, UntrustedError) else "error"
        return failed_listing(name, "ios", status, error)
    return describe_device(device, "ios")


def _known(place: str) -> list[Attached] | None:
    try:
        return list_attached()
    except MuxError as error:
        raise DeviceError(
            f"what listens on {socket_address()} does not answer like usbmuxd: {error}",
            place=place,
            remedy="sudo systemctl restart usbmuxd   (on a Mac: restart it), then plug the phone "
            "in again.",
        ) from error


def _only(known: Sequence[Attached]) -> Attached:
    if len(known) == 1:
        return known[0]
    if known:
        options = [f"--device ios:{phone.udid}" for phone in known]
        raise not_chosen("ios", f"{len(known)} iPhones", options)
    raise DeviceError("no iPhone is connected", place="ios", remedy=CONNECT_STEPS)


def _named(spec: DeviceSpec, known: Sequence[Attached]) -> Attached:
    udid = format_udid(spec.serial or "")
    for phone in known:
        if phone.udid.lower() == udid.lower():
            return phone
    serials = [phone.udid for phone in known]
    raise not_connected(
        DeviceSpec("ios", udid), "the phone is not connected", serials, CONNECT_STEPS
    )
