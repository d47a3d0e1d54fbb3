"""An iPhone, on a cable or in the same Wi-Fi; it starts apps."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from etdeploy.core.cached import cached_property
from etdeploy.core.errors import DeviceError
from etdeploy.core.progress import Progress, silent
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
from etdeploy.devices.ios.apps import Installed, clean_apps, push_bundle
from etdeploy.devices.ios.command import Command
from etdeploy.devices.ios.crashes import Crash, candidates, parse_crash
from etdeploy.devices.ios.errors import explained, too_old
from etdeploy.devices.ios.facts import (
    OLDEST_SYSTEM,
    UnreadableError,
    battery_state,
    parse_object,
    phone_facts,
    system_version,
)
from etdeploy.devices.ios.installing import INSTALLING
from etdeploy.devices.ios.launch import Heard, launch
from etdeploy.devices.ios.run import IosRun


class IosDevice:
    """A phone.

    Args:
        command: The way to it.
        connection: USB or Network, as usbmuxd says it.
        answer_s: How long it may take to answer; a phone that asks its owner whether to trust this
            computer takes as long as that.
    """

    def __init__(self, command: Command, connection: str | None, answer_s: float = 60.0) -> None:
        self._command = command
        self._connection = connection
        self._answer_s = answer_s

    @property
    def name(self) -> str:
        return self._command.name

    @property
    def identity(self) -> str:
        return f"ios-{self._command.udid}"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(launches=("app",))

    def facts(self) -> DeviceFacts:
        return phone_facts(self._values, self._command.udid, self._connection)

    def state(self) -> DeviceState:
        answer = self._command.ask(["diagnostics", "battery", "single"], self._answer_s)
        if not answer.ok:
            raise explained(answer, self._command, "reading its battery")
        try:
            return battery_state(parse_object(answer.stdout))
        except UnreadableError:
            return DeviceState()

    def push(self, bundle: Bundle, progress: Progress = silent) -> PushReport:
        required_app(bundle, self.name)
        check_bundle(bundle)
        self._require_system()
        return push_bundle(PhoneApps(self._command), bundle, progress)

    def end_leftovers(self) -> tuple[Leftover, ...]:
        """None: the start of an app ends an earlier one of it."""
        return ()

    @contextmanager
    def open_run(self, bundle: Bundle, run_id: str) -> Iterator[IosRun]:
        yield IosRun(
            PhoneApps(self._command), required_app(bundle, self.name), check_run_id(run_id)
        )

    def clean(self) -> Mapping[str, int]:
        return clean_apps(PhoneApps(self._command))

    def close(self) -> None:
        """Nothing is held open."""

    @cached_property
    def _values(self) -> dict[str, Any]:
        answer = self._command.ask(["lockdown", "info"], self._answer_s)
        if not answer.ok:
            raise explained(answer, self._command, "reading its facts")
        try:
            return parse_object(answer.stdout)
        except UnreadableError as error:
            raise DeviceError(
                f"pymobiledevice3 answers with something unknown while reading its facts: {error}",
                place=self.name,
                remedy=f"See what this says:\n{self._command.by_hand('lockdown', 'info')}",
            ) from error

    def _require_system(self) -> None:
        version = system_version(self._values)
        if version and version < OLDEST_SYSTEM:
            raise too_old(version, self.name)


def required_app(bundle: Bundle, name: str) -> AppLaunch:
    """The app that a bundle starts.

    Raises:
        DeviceError: It starts a program.
    """
    if bundle.app is None:
        raise DeviceError(
            "an iPhone starts apps, and no programs",
            place=name,
            remedy=f"etdeploy run --as app --device {name} ...",
        )
    return bundle.app


_MISSING = "OBJECT_NOT_FOUND"
# iOS writes a report a moment after the crash.
_REPORT_S = 3.0
_CLOCK_S = 5.0


class PhoneApps:
    """The apps of one phone.

    Args:
        command: The way to it.
    """

    def __init__(self, command: Command) -> None:
        self._command = command

    @property
    def name(self) -> str:
        return self._command.name

    def query(self, app: str) -> Installed | None:
        found = self._listed(["apps", "query", app], "looking for the app")
        return next((one for one in found if one.id == app), None)

    def development_apps(self) -> list[Installed]:
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

    def launch(self, app: str, words: Sequence[str], run_id: str, timeout_s: float) -> Heard:
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
        except UnreadableError:
            return 0.0
        # Told a moment ago, so it is rather too little: a report is not missed for that.
        return float(now) - time.time() if isinstance(now, int | float) else 0.0

    def _done(self, words: list[str], doing: str, limit_s: float | None = 90.0) -> None:
        answer = self._command.ask(words, limit_s)
        if not answer.ok:
            raise explained(answer, self._command, doing)

    def _tried(self, words: list[str], doing: str, limit_s: float | None = 90.0) -> bool:
        """Whether it was done; False where what is named does not exist."""
        answer = self._command.ask(words, limit_s)
        if not answer.ok and _MISSING not in answer.said:
            raise explained(answer, self._command, doing)
        return answer.ok

    def _listed(self, words: list[str], doing: str) -> list[Installed]:
        answer = self._command.ask(words)
        if not answer.ok:
            raise explained(answer, self._command, doing)
        try:
            return parse_apps(parse_object(answer.stdout))
        except UnreadableError as error:
            raise DeviceError(
                f"pymobiledevice3 answers with something unknown while {doing}: {error}",
                place=self.name,
            ) from error


def parse_apps(answer: dict[str, Any]) -> list[Installed]:
    """The apps of an answer to `apps query` or `apps list`."""
    found = []
    for app, information in answer.items():
        if isinstance(information, dict) and isinstance(information.get("Path"), str):
            entitlements = information.get("Entitlements")
            allowed = isinstance(entitlements, dict) and entitlements.get("get-task-allow") is True
            container = information.get("Container")
            found.append(
                Installed(
                    id=app,
                    path=information["Path"],
                    container=container if isinstance(container, str) else None,
                    executable=str(information.get("CFBundleExecutable") or ""),
                    is_development=allowed,
                )
            )
    return found
