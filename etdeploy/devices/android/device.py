"""An Android phone or emulator, reached over adb."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import replace

from etdeploy.core.cached import cached_property
from etdeploy.core.errors import DeviceError
from etdeploy.core.progress import Progress, silent
from etdeploy.devices.adb.stream import Patience, Transport
from etdeploy.devices.android import facts as android_facts
from etdeploy.devices.android.apps.install import archive_of, install
from etdeploy.devices.android.apps.leftovers import end_apps
from etdeploy.devices.android.apps.run import opened_app_run
from etdeploy.devices.android.link import AndroidLink
from etdeploy.devices.base import (
    Bundle,
    Capabilities,
    DeviceFacts,
    DeviceState,
    Leftover,
    PushReport,
    RunFolder,
)
from etdeploy.devices.remote.device import RemoteDevice
from etdeploy.targets.platforms import ANDROID_ABIS

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
        """Of this start of its kernel; another one after a restart.

        Raises:
            DeviceError: It cannot be reached.
        """
        return self._link.require(android_facts.BOOT_ID_COMMAND, "reading its boot id").strip()

    def has_booted(self) -> bool:
        """Whether Android has started, and not only its kernel.

        Raises:
            DeviceError: It cannot be reached.
        """
        said = self._link.require("getprop", "reading its properties")
        return android_facts.parse_getprop(said).get("sys.boot_completed") == "1"

    def restart(self) -> None:
        """Restarts the phone, as `adb reboot` does; the connection ends with it.

        Raises:
            DeviceError: It cannot be reached.
        """
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
