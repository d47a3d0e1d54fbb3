"""An iPhone, on a cable or in the same Wi-Fi; it starts apps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from etdeploy.core.cached import cached_property
from etdeploy.core.errors import DeviceError
from etdeploy.core.progress import Progress, silent
from etdeploy.devices.base import (
    AppLaunch,
    Bundle,
    Capabilities,
    DeviceFacts,
    DeviceState,
    Leftover,
    PushReport,
)
from etdeploy.devices.bundles import check_bundle, check_run_id
from etdeploy.devices.ios.apps import clean_apps, push_bundle
from etdeploy.devices.ios.command import Command
from etdeploy.devices.ios.errors import explained, too_old
from etdeploy.devices.ios.facts import (
    OLDEST_SYSTEM,
    UnreadableError,
    battery_state,
    parse_object,
    phone_facts,
    system_version,
)
from etdeploy.devices.ios.phone import PhoneApps
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
