"""The simulator of a Mac, behind a stand-in for xcrun."""

from __future__ import annotations

import json
import plistlib
from pathlib import Path

import pytest

from etdeploy.core.errors import DeviceError
from etdeploy.core.hashing import sha256_file
from etdeploy.devices.base import AppLaunch, Bundle, BundleFile, lock_name
from etdeploy.devices.ios.choice import SimulatorDevice, parse_simulators, unpacked
from etdeploy.devices.registry import open_device
from tests.support.ios_command import IosCommand
from tests.support.ios_phone import archive

DATA = Path(__file__).parents[3] / "data" / "ios"
LISTED = (DATA / "simctl-list.json").read_text()
APP = "org.example.convnet"


@pytest.fixture
def xcrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> IosCommand:
    stand_in = IosCommand(tmp_path / "xcode", "xcrun")
    monkeypatch.setenv("PATH", str(stand_in.folder), prepend=":")
    stand_in.answers("simctl list", stdout=LISTED)
    return stand_in


def test_simulators_are_read_from_the_list() -> None:
    phone, tablet = parse_simulators(LISTED)
    assert (phone.udid, phone.name, phone.system, phone.is_booted) == (
        "A1", "iPhone 16", "iOS 18.1", True,
    )  # fmt: skip
    assert (tablet.name, tablet.is_booted) == ("iPad mini (A17 Pro)", False)
    assert phone.data == Path("/Users/x/Library/Developer/CoreSimulator/Devices/A1/data")
    for text in ("", "{}", '{"devices": {}}'):
        assert parse_simulators(text) == []


def test_the_one_that_runs_needs_no_name(xcrun: IosCommand) -> None:
    device = open_device("ios:simulator")
    assert device.name == "ios:simulator:A1"
    assert device.facts().target == "ios-simulator"
    assert device.facts().os == "iOS 18.1"
    assert device.capabilities.launches == ("app",)
    assert lock_name(device) == "host"
    assert xcrun.lines == ["simctl list devices available -j"]


def test_one_that_does_not_run_is_told_with_the_command(xcrun: IosCommand) -> None:
    with pytest.raises(DeviceError, match="no simulator runs") as caught:
        open_device("ios:simulator:B2")
    assert "xcrun simctl boot B2 " in str(caught.value)


def test_several_that_run_have_to_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    xcrun = IosCommand(tmp_path / "xcode", "xcrun")
    monkeypatch.setenv("PATH", str(xcrun.folder), prepend=":")
    xcrun.answers("simctl list", stdout=LISTED.replace("Shutdown", "Booted"))
    with pytest.raises(DeviceError, match="2 simulators"):
        open_device("ios:simulator")
    assert open_device("ios:simulator:B2").name == "ios:simulator:B2"


def test_no_xcode_and_no_simulator_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeviceError, match="xcode-select --install"):
        open_device("ios:simulator")
    xcrun = IosCommand(tmp_path / "xcode", "xcrun")
    monkeypatch.setenv("PATH", str(xcrun.folder))
    xcrun.answers("simctl list", stdout='{"devices": {}}')
    with pytest.raises(DeviceError, match="-downloadPlatform iOS"):
        open_device("ios:simulator")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """An app's data on the simulator."""
    folder = tmp_path / "devices" / "Containers" / "Data" / "Application" / "1"
    (folder / "Documents").mkdir(parents=True)
    metadata = folder / ".com.apple.mobile_container_manager.metadata.plist"
    metadata.write_bytes(plistlib.dumps({"MCMMetadataIdentifier": APP}))
    return folder


@pytest.fixture
def simulator(xcrun: IosCommand, tmp_path: Path, data: Path) -> SimulatorDevice:
    """A simulator on which the app is installed."""
    app = tmp_path / "ConvNet.app"
    app.mkdir()
    (app / "Info.plist").write_bytes(plistlib.dumps({"CFBundleExecutable": "ConvNet"}))
    xcrun.answers(f"simctl get_app_container A1 {APP} app", stdout=f"{app}\n")
    xcrun.answers(f"simctl get_app_container A1 {APP} data", stdout=f"{data}\n")
    [found, _] = parse_simulators(
        LISTED.replace("/Users/x/Library/Developer/CoreSimulator/Devices/A1/data",
                       str(tmp_path / "devices"))
    )  # fmt: skip
    return SimulatorDevice(found)


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    files = []
    (tmp_path / "values").write_text("values")
    for source, path in ((archive(tmp_path), "app.ipa"), (tmp_path / "values", "in/0.bin")):
        size = source.stat().st_size
        digest = sha256_file(source)
        files.append(BundleFile(source=str(source), path=path, sha256=digest, size_bytes=size))
    return Bundle(files=tuple(files), launch=AppLaunch(id=APP, archive="app.ipa"))


def test_an_app_is_installed_started_and_cleaned(
    xcrun: IosCommand, simulator: SimulatorDevice, bundle: Bundle, data: Path, tmp_path: Path
) -> None:
    xcrun.answers("simctl install")
    assert simulator.push(bundle).pushed_files == 2
    assert (data / "Documents" / "bundle" / "in" / "0.bin").read_text() == "values"
    assert simulator.push(bundle).pushed_files == 0
    [installed] = [words for words, _ in xcrun.calls if words[1] == "install"]
    assert installed[3].endswith("/Payload/ConvNet.app")

    results = {"schema_version": 1, "run_id": "r-1", "status": "done", "results": {"a": 1}}
    (data / "Documents" / "results.json").write_text(json.dumps(results))
    (data / "Documents" / "outputs").mkdir()
    (data / "Documents" / "outputs" / "output-0.bin").write_text("0")
    xcrun.answers("simctl launch", stdout=f"{APP}: 812\r\netdeploy: run r-1 has ended\r\n")
    with simulator.open_run(bundle, "r") as run:
        outcome = run.run(["program={bundle}/program.pte"], 60)
        run.pull("timing.json", tmp_path / "timing.json")
        run.pull("outputs", tmp_path / "outputs")
    assert outcome.exit_code == 0
    assert json.loads((tmp_path / "timing.json").read_text()) == {"a": 1}
    assert (tmp_path / "outputs" / "output-0.bin").read_text() == "0"
    [started] = [line for line in xcrun.lines if line.startswith("simctl launch")]
    assert started == (
        f"simctl launch --console-pty --terminate-running-process A1 {APP} "
        f"program={data}/Documents/bundle/program.pte run_id=r-1"
    )
    assert simulator.clean() == {APP: 6}
    assert not (data / "Documents" / "bundle").exists()
    assert (data / "Documents" / "results.json").exists()


def test_a_crash_is_named_from_the_macs_reports(
    xcrun: IosCommand, simulator: SimulatorDevice, bundle: Bundle, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("etdeploy.devices.ios.choice._CLOCK_S", 1e9)
    reports = tmp_path / "Library" / "Logs" / "DiagnosticReports"
    reports.mkdir(parents=True)
    text = (DATA / "crash.ips").read_text()
    (reports / "ConvNet-2026-11-23-010203.ips").write_text(text)
    xcrun.answers("simctl launch", stdout=f"{APP}: 812\r\n")
    with simulator.open_run(bundle, "r") as run:
        outcome = run.run([], 60)
    assert (outcome.signal_name, outcome.exit_code) == ("SIGSEGV", 139)


def test_a_start_that_takes_too_long_is_ended(
    xcrun: IosCommand, simulator: SimulatorDevice, bundle: Bundle
) -> None:
    xcrun.answers("simctl launch", stdout=f"{APP}: 812\r\n", seconds=60)
    xcrun.answers("simctl terminate")
    with simulator.open_run(bundle, "r") as run:
        assert run.run([], 0.3).timed_out
    assert xcrun.lines[-1] == f"simctl terminate A1 {APP}"


def test_what_simctl_refuses_is_told(
    xcrun: IosCommand, simulator: SimulatorDevice, bundle: Bundle
) -> None:
    said = (
        "An error was encountered processing the command (domain=FBSOpenApplicationServiceError"
        "Domain, code=4):\nSimulator device failed to launch org.example.convnet.\n"
    )
    xcrun.answers("simctl launch", stderr=said, exit_code=4)
    with (
        simulator.open_run(bundle, "r") as run,
        pytest.raises(DeviceError, match="starting the app: "),
    ):
        run.run([], 60)


def test_what_is_no_archive_is_told(tmp_path: Path) -> None:
    broken, empty = tmp_path / "broken.ipa", tmp_path / "empty.ipa"
    broken.write_text("no archive")
    empty.write_bytes(b"PK\5\6" + bytes(18))
    with pytest.raises(DeviceError, match=r"broken\.ipa"):
        unpacked(broken, tmp_path / "1", "ios:simulator")
    with pytest.raises(DeviceError, match=r"empty\.ipa is not"):
        unpacked(empty, tmp_path / "2", "ios:simulator")
