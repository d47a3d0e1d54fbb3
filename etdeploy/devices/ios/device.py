"""An iPhone, on a cable or in the same Wi-Fi; it starts apps."""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from etdeploy.core.errors import DeviceError
from etdeploy.core.values import Progress, cached_property, silent
from etdeploy.devices.base import (
    AppLaunch,
    Bundle,
    BundleFile,
    Capabilities,
    DeviceFacts,
    DeviceState,
    Leftover,
    PushReport,
)
from etdeploy.devices.bundles import check_bundle, check_run_id
from etdeploy.devices.ios.apps import (
    Apps,
    Crash,
    InstalledApp,
    LaunchResult,
    candidates,
    clean_apps,
    parse_crash,
    push_bundle,
)
from etdeploy.devices.ios.command import PhoneCommand
from etdeploy.devices.ios.diagnostics import INSTALLING, explain
from etdeploy.devices.ios.run import IosRun, launch
from etdeploy.devices.sysfs import volts


class AppDevice:
    """What an iPhone and a simulator share as a Device: they run apps only."""

    capabilities = Capabilities(launches=("app",))

    def __init__(self, apps: Apps) -> None:
        self._apps = apps

    @property
    def name(self) -> str:
        return self._apps.name

    def push(self, bundle: Bundle, progress: Progress = silent) -> PushReport:
        self._require_app(bundle)
        check_bundle(bundle)
        return push_bundle(self._apps, bundle, progress)

    def end_leftovers(self) -> tuple[Leftover, ...]:
        """None: the start of an app ends an earlier one of it."""
        return ()

    @contextmanager
    def open_run(self, bundle: Bundle, run_id: str) -> Iterator[IosRun]:
        yield IosRun(self._apps, self._require_app(bundle), check_run_id(run_id))

    def clean(self) -> Mapping[str, int]:
        return clean_apps(self._apps)

    def close(self) -> None:
        """Nothing is held open."""

    def _require_app(self, bundle: Bundle) -> AppLaunch:
        if bundle.app is None:
            raise DeviceError(
                "an iPhone can run apps but not command-line programs",
                place=self.name,
                remedy=f"etdeploy run --as app --device {self.name} ...",
            )
        return bundle.app


class IosDevice(AppDevice):
    """A phone."""

    def __init__(
        self, command: PhoneCommand, connection: str | None, answer_s: float = 60.0
    ) -> None:
        super().__init__(PhoneApps(command))
        self._command = command
        self._connection = connection
        self._answer_s = answer_s

    @property
    def identity(self) -> str:
        return f"ios-{self._command.udid}"

    def facts(self) -> DeviceFacts:
        return phone_facts(self._values, self._command.udid, self._connection)

    def state(self) -> DeviceState:
        answer = self._command.ask(["diagnostics", "battery", "single"], self._answer_s)
        if not answer.ok:
            raise explain(answer, self._command, "reading its battery")
        try:
            return battery_state(parse_object(answer.stdout))
        except UnexpectedOutputError:
            return DeviceState()

    def push(self, bundle: Bundle, progress: Progress = silent) -> PushReport:
        self._require_app(bundle)
        self._require_system()
        return super().push(bundle, progress)

    @cached_property
    def _values(self) -> dict[str, Any]:
        answer = self._command.ask(["lockdown", "info"], self._answer_s)
        if not answer.ok:
            raise explain(answer, self._command, "reading its facts")
        try:
            return parse_object(answer.stdout)
        except UnexpectedOutputError as error:
            raise DeviceError(
                f"pymobiledevice3 answers with something unknown while reading its facts: {error}",
                place=self.name,
                remedy=f"See what this says:\n{self._command.manual_command('lockdown', 'info')}",
            ) from error

    def _require_system(self) -> None:
        version = system_version(self._values)
        if version and version < OLDEST_SYSTEM:
            system = ".".join(map(str, version))
            raise DeviceError(
                f"the phone has iOS {system}, and ExecuTorch's apps need iOS 17",
                place=self.name,
                remedy="Update it: Settings > General > Software Update. An iPhone XS, XR or "
                "newer can.",
            )


_MISSING = "OBJECT_NOT_FOUND"
# iOS writes a report a moment after the crash.
_REPORT_S = 3.0
_CLOCK_S = 5.0


class PhoneApps:
    """The apps of one phone."""

    def __init__(self, command: PhoneCommand) -> None:
        self._command = command

    @property
    def name(self) -> str:
        return self._command.name

    def query(self, app: str) -> InstalledApp | None:
        found = self._listed(["apps", "query", app], "looking for the app")
        return next((one for one in found if one.id == app), None)

    def development_apps(self) -> list[InstalledApp]:
        found = self._listed(["apps", "list", "--type", "User"], "listing its apps")
        return [app for app in found if app.is_development]

    def install(self, archive: BundleFile) -> None:
        self._done(["apps", "install", "--developer", archive.source], INSTALLING, None)

    def put(self, app: str, source: Path, path: str) -> None:
        # A folder goes into the folder that is named, by its own name.
        target = str(PurePosixPath(path).parent) if source.is_dir() else path
        self._done(["apps", "push", app, str(source), target], f"sending {path}", None)

    def remove(self, app: str, path: str) -> bool:
        return self._tried(["apps", "rm", app, path], f"removing {path}")

    def pull(self, app: str, path: str, to: Path) -> bool:
        return self._tried(["apps", "pull", app, path, str(to)], f"reading {path}", None)

    def launch(self, app: str, words: Sequence[str], run_id: str, timeout_s: float) -> LaunchResult:
        return launch(self._command, app, words, run_id, timeout_s)

    def find_crash(self, app: str, since_unix_s: float) -> Crash | None:
        installed = self.query(app)
        process = installed.executable if installed else ""
        since = since_unix_s + self._clock_ahead_s() - _CLOCK_S
        found = self._reported(app, process, since)
        if found is None:
            # One more look, because iOS takes its time.
            time.sleep(_REPORT_S)
            found = self._reported(app, process, since)
        return found

    def _reported(self, app: str, process: str, since_unix_s: float) -> Crash | None:
        self._command.ask(["crash", "flush"])
        listed = self._command.ask(["crash", "ls"]).stdout.splitlines()
        with tempfile.TemporaryDirectory() as folder:
            for path in candidates(listed, process):
                self._command.ask(["crash", "pull", folder, path])
                copy = Path(folder) / Path(path).name
                text = copy.read_text(errors="replace") if copy.is_file() else ""
                crash = parse_crash(text, copy.name, process, app)
                if crash and (crash.unix_s is None or crash.unix_s >= since_unix_s):
                    return crash
        return None

    def _clock_ahead_s(self) -> float:
        """How far the phone's clock is ahead of this machine's."""
        answer = self._command.ask(["lockdown", "info"])
        try:
            now = parse_object(answer.stdout).get("TimeIntervalSince1970")
        except UnexpectedOutputError:
            return 0.0
        # Told a moment ago, so it is rather too little: a report is not missed for that.
        return float(now) - time.time() if isinstance(now, int | float) else 0.0

    def _done(self, words: list[str], activity: str, limit_s: float | None = 90.0) -> None:
        answer = self._command.ask(words, limit_s)
        if not answer.ok:
            raise explain(answer, self._command, activity)

    def _tried(self, words: list[str], activity: str, limit_s: float | None = 90.0) -> bool:
        """Whether it was done; False where what is named does not exist."""
        answer = self._command.ask(words, limit_s)
        if not answer.ok and _MISSING not in answer.said:
            raise explain(answer, self._command, activity)
        return answer.ok

    def _listed(self, words: list[str], activity: str) -> list[InstalledApp]:
        answer = self._command.ask(words)
        if not answer.ok:
            raise explain(answer, self._command, activity)
        try:
            return parse_apps(parse_object(answer.stdout))
        except UnexpectedOutputError as error:
            raise DeviceError(
                f"pymobiledevice3 answers with something unknown while {activity}: {error}",
                place=self.name,
            ) from error


def parse_apps(answer: dict[str, Any]) -> list[InstalledApp]:
    """The apps of an answer to `apps query` or `apps list`."""
    found = []
    for app, information in answer.items():
        if isinstance(information, dict) and isinstance(information.get("Path"), str):
            entitlements = information.get("Entitlements")
            allowed = isinstance(entitlements, dict) and entitlements.get("get-task-allow") is True
            container = information.get("Container")
            found.append(
                InstalledApp(
                    id=app,
                    path=information["Path"],
                    container=container if isinstance(container, str) else None,
                    executable=str(information.get("CFBundleExecutable") or ""),
                    is_development=allowed,
                )
            )
    return found


OLDEST_SYSTEM = (17, 0)
"""ExecuTorch's Swift package and the developer services that start apps need it."""

TARGET = "ios-arm64"


class UnexpectedOutputError(Exception):
    """An answer is not what pymobiledevice3 is known to print."""


def parse_object(text: str) -> dict[str, Any]:
    """An answer that is one JSON object."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UnexpectedOutputError(f"not JSON: {text[:80]!r}") from error
    if not isinstance(found, dict):
        raise UnexpectedOutputError(f"not an object: {text[:80]!r}")
    return found


def phone_facts(values: dict[str, Any], udid: str, connection: str | None) -> DeviceFacts:
    """Facts from the values of lockdownd (`lockdown info`)."""
    product = _text(values, "ProductType") or ""
    model = known_model(product)
    named = f"{model.name} ({product})" if model else product or None
    return DeviceFacts(
        name=f"ios:{udid}",
        kind="ios",
        target=TARGET,
        serial=udid,
        model=named,
        manufacturer="Apple",
        soc=_text(values, "HardwarePlatform"),
        abi="arm64-v8a",
        os=_system(values),
        fingerprint=_text(values, "BuildVersion"),
        cpu_count=CPU_COUNT if model else None,
        memory_bytes=model.memory_bytes if model else None,
        connection={"USB": "USB", "Network": "Wi-Fi"}.get(connection or "", connection),
    )


def system_version(values: dict[str, Any]) -> tuple[int, ...] | None:
    """The version of iOS; None where it is not reported."""
    found = re.match(r"\d+(\.\d+)*", _text(values, "ProductVersion") or "")
    return tuple(map(int, found[0].split("."))) if found else None


def battery_state(registry: dict[str, Any]) -> DeviceState:
    """State from the registry entry of the battery (`diagnostics battery single`).

    Temperature is in hundredths of a degree, current in mA (negative while discharging, at times as
    an unsigned number of 64 bits), voltage in mV.
    """
    capacity, most = _number(registry, "CurrentCapacity"), _number(registry, "MaxCapacity")
    percent = round(100 * capacity / most) if capacity is not None and most else None
    centi = _number(registry, "Temperature")
    current = _signed(_number(registry, "InstantAmperage"))
    charging = registry.get("IsCharging")
    return DeviceState(
        battery_percent=percent if percent is not None and 0 <= percent <= 100 else None,
        battery_celsius=centi / 100 if centi is not None and 0 < centi < 10_000 else None,
        charging=charging if isinstance(charging, bool) else None,
        battery_milliamps=None if current is None else float(-current),
        battery_volts=volts(_number(registry, "Voltage")),
    )


def _system(values: dict[str, Any]) -> str | None:
    version, build = _text(values, "ProductVersion"), _text(values, "BuildVersion")
    if version is None:
        return None
    name = "iPadOS" if _text(values, "DeviceClass") == "iPad" else "iOS"
    return f"{name} {version}" + (f" ({build})" if build else "")


def _text(values: dict[str, Any], key: str) -> str | None:
    found = values.get(key)
    return found if isinstance(found, str) and found else None


def _number(values: dict[str, Any], key: str) -> int | None:
    found = values.get(key)
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def _signed(value: int | None) -> int | None:
    return value - (1 << 64) if value is not None and value >= 1 << 63 else value


_GIB = 1 << 30
CPU_COUNT = 6
"""Of every model in this table: two fast cores and four efficient ones, from A12 to A19."""


@dataclass(frozen=True)
class PhoneModel:
    """A model: its name in shops, and the size of its memory.

    Apple does not publish memory; these are the sizes of the chips that teardowns found.
    """

    name: str
    memory_bytes: int


def known_model(product_type: str) -> PhoneModel | None:
    """The model with a product type, such as `iPhone16,1`; None for one that is not listed."""
    found = _MODELS.get(product_type)
    return PhoneModel(found[0], found[1] * _GIB) if found else None


_MODELS: dict[str, tuple[str, int]] = {
    "iPhone11,2": ("iPhone XS", 4),
    "iPhone11,4": ("iPhone XS Max", 4),
    "iPhone11,6": ("iPhone XS Max", 4),
    "iPhone11,8": ("iPhone XR", 3),
    "iPhone12,1": ("iPhone 11", 4),
    "iPhone12,3": ("iPhone 11 Pro", 4),
    "iPhone12,5": ("iPhone 11 Pro Max", 4),
    "iPhone12,8": ("iPhone SE (2nd generation)", 3),
    "iPhone13,1": ("iPhone 12 mini", 4),
    "iPhone13,2": ("iPhone 12", 4),
    "iPhone13,3": ("iPhone 12 Pro", 6),
    "iPhone13,4": ("iPhone 12 Pro Max", 6),
    "iPhone14,2": ("iPhone 13 Pro", 6),
    "iPhone14,3": ("iPhone 13 Pro Max", 6),
    "iPhone14,4": ("iPhone 13 mini", 4),
    "iPhone14,5": ("iPhone 13", 4),
    "iPhone14,6": ("iPhone SE (3rd generation)", 4),
    "iPhone14,7": ("iPhone 14", 6),
    "iPhone14,8": ("iPhone 14 Plus", 6),
    "iPhone15,2": ("iPhone 14 Pro", 6),
    "iPhone15,3": ("iPhone 14 Pro Max", 6),
    "iPhone15,4": ("iPhone 15", 6),
    "iPhone15,5": ("iPhone 15 Plus", 6),
    "iPhone16,1": ("iPhone 15 Pro", 8),
    "iPhone16,2": ("iPhone 15 Pro Max", 8),
    "iPhone17,1": ("iPhone 16 Pro", 8),
    "iPhone17,2": ("iPhone 16 Pro Max", 8),
    "iPhone17,3": ("iPhone 16", 8),
    "iPhone17,4": ("iPhone 16 Plus", 8),
    "iPhone17,5": ("iPhone 16e", 8),
}
