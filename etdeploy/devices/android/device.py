"""An Android phone or emulator, reached over adb."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from shlex import quote

from etdeploy.core.errors import DeviceError
from etdeploy.core.progress import Progress, silent
from etdeploy.devices.adb.stream import Patience, Transport
from etdeploy.devices.android import facts as android_facts
from etdeploy.devices.android import layout as android_layout
from etdeploy.devices.android import leftovers as android_leftovers
from etdeploy.devices.android.link import AndroidLink
from etdeploy.devices.android.push import push_bundle
from etdeploy.devices.android.run import AndroidRun
from etdeploy.devices.base import Bundle, DeviceFacts, DeviceState, Leftover, PushReport
from etdeploy.devices.bundles import bundle_digest, check_run_id
from etdeploy.targets.platforms import ANDROID_ABIS

# `dumpsys` waits up to 10 s for each service that hangs.
_DUMPSYS_S = 25.0
_REMOVE_S = 120.0
_OPEN_S = 10.0


class AndroidDevice:
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

    @property
    def name(self) -> str:
        return self._link.name

    @property
    def identity(self) -> str:
        return android_facts.android_identity(self._serial, self._facts_output)

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

    def push(self, bundle: Bundle, progress: Progress = silent) -> PushReport:
        return push_bundle(self._link, bundle, progress)

    def end_leftovers(self) -> tuple[Leftover, ...]:
        return android_leftovers.end_leftovers(self._link)

    @contextmanager
    def open_run(self, bundle: Bundle, run_id: str) -> Iterator[AndroidRun]:
        folder = android_layout.run_folder(check_run_id(run_id))
        parent = f"{android_layout.ROOT}/runs"
        digest = bundle_digest(bundle)
        command = (
            f"mkdir -p {parent} && mkdir {quote(folder)} && echo {digest} >{quote(folder)}/.bundle"
        )
        self._link.require(command, "making the run's folder")
        try:
            bundle_folder = android_layout.bundle_folder(digest)
            yield AndroidRun(self._link, bundle, bundle_folder, folder)
        finally:
            self._link.tidy(f"rm -rf {quote(folder)}")

    def clean(self) -> dict[str, int]:
        output = self._link.require(
            android_layout.clean_command(), "removing what etdeploy left", _REMOVE_S
        )
        return android_layout.parse_sizes(output)

    def close(self) -> None:
        self._link.close()

    @cached_property
    def _facts_output(self) -> str:
        return self._link.require(android_facts.FACTS_COMMAND, "reading its properties")
