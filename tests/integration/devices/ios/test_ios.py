"""A stand-in for an iPhone, and the real pymobiledevice3 that talks to it.

Each request starts that program, which takes 1 to 2 s, so a test does many things with one phone.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from etdeploy.core.errors import DeviceError
from etdeploy.core.hashing import sha256_file
from etdeploy.core.processes.conversation import InteractiveProcess
from etdeploy.devices.base import AppLaunch, Bundle, BundleFile, DeviceState
from etdeploy.devices.ios import device as phone_module
from etdeploy.devices.ios import run
from etdeploy.devices.registry import list_devices, open_device
from tests.support.ios_phone import UDID, IosPhone, Start, archive
from tests.support.pymobiledevice3 import pymobiledevice3

pytestmark = pytest.mark.integration

__all__ = ["pymobiledevice3"]

DATA = Path(__file__).parents[3] / "data" / "ios"
APP = "org.example.convnet"


@pytest.fixture
def phone(
    pymobiledevice3: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[IosPhone]:
    folder = tmp_path / "phone"
    folder.mkdir()
    monkeypatch.setenv("ETDEPLOY_PYMOBILEDEVICE3", str(pymobiledevice3))
    with IosPhone(folder) as found:
        for name, value in found.environment.items():
            monkeypatch.setenv(name, value)
        yield found


def bundle_file(source: Path, path: str) -> BundleFile:
    digest = sha256_file(source)
    return BundleFile(
        source=str(source), path=path, sha256=digest, size_bytes=source.stat().st_size
    )


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    program, values = tmp_path / "source.pte", tmp_path / "values"
    program.write_bytes(b"program" * 100)
    values.write_bytes(b"\1\2\3")
    return Bundle(
        files=(
            bundle_file(archive(tmp_path), "ConvNet.ipa"),
            bundle_file(program, "program.pte"),
            bundle_file(values, "inputs/0.bin"),
        ),
        launch=AppLaunch(id=APP, archive="ConvNet.ipa"),
    )


def test_it_is_listed(phone: IosPhone) -> None:
    [listed] = [device for device in list_devices() if device.kind == "ios"]
    assert (listed.name, listed.status) == (f"ios:{UDID}", "device")
    assert listed.facts
    assert listed.facts.model == "iPhone 15 Pro (iPhone16,1)"
    assert listed.facts.os == "iOS 18.1 (22B83)"
    assert listed.device_state == DeviceState(
        battery_percent=81, battery_celsius=30.49, charging=True, battery_milliamps=-412.0,
        battery_volts=4.211,
    )  # fmt: skip
    phone.attached = False
    assert [device for device in list_devices() if device.kind == "ios"] == []


def test_an_app_goes_there_and_gives_results(
    phone: IosPhone, bundle: Bundle, tmp_path: Path
) -> None:
    device = open_device("ios")
    first = device.push(bundle)
    assert (first.pushed_files, phone.installs) == (3, 1)
    kept = phone.container(APP) / "Documents" / "bundle"
    assert (kept / "program.pte").read_bytes() == b"program" * 100
    assert (kept / "inputs" / "0.bin").read_bytes() == b"\1\2\3"
    sent = list(phone.written)

    again = device.push(bundle)
    assert (again.pushed_files, again.kept_files, phone.installs) == (0, 3, 1)
    assert phone.written == sent

    with device.open_run(bundle, "r") as opened:
        outcome = opened.run(["iterations=3", "program={bundle}/program.pte", "outputs=true"], 60)
        assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (0, "", "")
        opened.pull("timing.json", tmp_path / "timing.json")
        opened.pull("outputs", tmp_path / "outputs")
    [start] = phone.starts
    assert start.options == {
        "iterations": "3",
        "program": f"/private/var/mobile/Containers/Data/Application/{APP}/Documents/bundle/"
        "program.pte",
        "outputs": "true",
        "run_id": "r-1",
    }
    assert json.loads((tmp_path / "timing.json").read_text())["options"] == start.options
    assert (tmp_path / "outputs" / "output-0.bin").read_bytes() == b"\1\2\3\4"

    assert device.clean() == {APP: 703}
    assert list(phone.installed) == [APP]


@pytest.mark.nightly
def test_a_crash_is_named_from_the_phones_report(
    phone: IosPhone, bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(phone_module, "_CLOCK_S", 1e9)  # the report has a date of its own

    def crashing(start: Start) -> None:
        start.show("loading")
        shutil.copyfile(DATA / "crash.ips", phone.crashes / "ConvNet-2026-11-23-010203.ips")

    phone.app = crashing
    phone.install(Path(bundle.files[0].source))
    with open_device("ios").open_run(bundle, "r") as opened:
        outcome = opened.run([], 60)
    assert (outcome.exit_code, outcome.signal_name, outcome.stdout) == (139, "SIGSEGV", "loading\n")
    assert "executorch::runtime::Method::execute()" in outcome.stderr


@pytest.mark.nightly
def test_a_start_that_takes_too_long_is_ended_on_the_phone(
    phone: IosPhone, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def endless(start: Start) -> None:
        start.show("working")
        start.killed.wait()

    phone.app = endless
    phone.install(Path(bundle.files[0].source))

    def read_until(
        conversation: InteractiveProcess, _mark: str, _limit_s: float
    ) -> tuple[str, bool]:
        """Waits for the app's first line, not for a time that a busy machine may need for it."""
        return conversation.read(100, 120).decode(), False

    monkeypatch.setattr(run, "read_until", read_until)
    with open_device("ios").open_run(bundle, "r") as opened:
        outcome = opened.run([], 60)
    assert (outcome.timed_out, outcome.exit_code) == (True, None)
    assert phone.signals == [(1000, 9)]


@pytest.mark.nightly
def test_a_phone_that_starts_no_apps_says_why(phone: IosPhone, bundle: Bundle) -> None:
    phone.install(Path(bundle.files[0].source))
    device = open_device(f"ios:{UDID}")
    said = f"Unable to launch {APP} because the device was not, or could not be, unlocked."
    phone.launch_error = said
    with device.open_run(bundle, "r") as opened:
        with pytest.raises(DeviceError, match="the phone is locked"):
            opened.run([], 60)
        phone.developer_mode = False
        with pytest.raises(DeviceError, match="Developer Mode is off"):
            opened.run([], 60)


@pytest.mark.nightly
def test_a_push_that_the_phone_refuses_says_why(phone: IosPhone, bundle: Bundle) -> None:
    device = open_device("ios")
    phone.install_error = (
        "ApplicationVerificationFailed",
        "Failed to verify code signature of /private/var/x.app : 0xe8008015 (A valid provisioning "
        "profile for this executable was not found.)",
    )
    with pytest.raises(DeviceError, match="0xe8008015"):
        device.push(bundle)
    phone.install_error = None
    phone.room_bytes = 10
    with pytest.raises(DeviceError, match="storage is full"):
        device.push(bundle)
    phone.paired = False
    with pytest.raises(DeviceError, match="declined to trust"):
        device.state()
    phone.attached = False
    with pytest.raises(DeviceError, match="not connected"):
        device.state()
