"""Starts of an app and how they end."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from etdeploy.core import cancel
from etdeploy.core.errors import DeviceError, Interrupted
from etdeploy.devices.base import AppLaunch, Bundle, DeviceState
from etdeploy.devices.ios import device, run
from etdeploy.devices.ios.command import PhoneCommand
from etdeploy.devices.ios.device import IosDevice
from etdeploy.devices.ios.run import IosRun, parse_processes
from tests.support.ios_command import IosCommand, logged
from tests.support.ios_phone import UDID

DATA = Path(__file__).parents[3] / "data" / "ios"
APP = "org.example.convnet"
FOLDER = "/private/var/containers/Bundle/Application/1/ConvNet.app"
HOME = "/private/var/mobile/Containers/Data/Application/1"
APPS = json.dumps({APP: {"Path": FOLDER, "Container": HOME, "CFBundleExecutable": "ConvNet"}})
BUNDLE = Bundle(files=(), launch=AppLaunch(id=APP, archive="app.ipa"))
ENDED = "etdeploy: run r-1 has ended\r\n"


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test waits for iOS to write a report, or for a tunnel."""
    monkeypatch.setattr(device, "_REPORT_S", 0.0)
    monkeypatch.setattr(run, "_START_S", 0.5)


@pytest.fixture
def started(tool: IosCommand) -> Iterator[IosRun]:
    with IosDevice(PhoneCommand(tool.program, UDID), "USB").open_run(BUNDLE, "r") as opened:
        yield opened


def left(status: str = "done", run_id: str = "r-1", **more: object) -> dict[str, str]:
    """Files that pulling the results gives."""
    results = {"schema_version": 1, "run_id": run_id, "status": status, "error": None, **more}
    return {"results.json": json.dumps({"results": {"samples_ms": [1.5]}, **results})}


def test_a_start_gives_the_runners_results(
    tool: IosCommand, started: IosRun, tmp_path: Path
) -> None:
    tool.answers("developer core-device launch", stdout=f"loading\r\n{ENDED}")
    tool.answers("apps query", stdout=APPS)
    thermal = {"status_before": "none", "status_after": "light", "headroom_before": None}
    tool.answers("apps pull", files=left(thermal=thermal))
    outcome = started.run(["iterations=3", "program={bundle}/program.pte"], 60)
    assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (0, "loading\n", "")
    assert [s.state for s in outcome.states] == [
        DeviceState(thermal_status="none"), DeviceState(thermal_status="light"),
    ]  # fmt: skip
    assert tool.lines[1] == (
        f"developer core-device launch-application --console {APP} -- iterations=3 "
        f"program={HOME}/Documents/bundle/program.pte run_id=r-1"
    )
    started.pull("timing.json", tmp_path / "out" / "timing.json")
    assert json.loads((tmp_path / "out" / "timing.json").read_text()) == {"samples_ms": [1.5]}


@pytest.mark.parametrize(
    ("files", "why"),
    [
        (left(run_id="earlier-1"), "earlier-1"),
        (left(results=None), "status is done"),
        ({"results.json": "what"}, "results cannot be used"),
    ],
)
def test_results_that_an_app_announces_have_to_be_its_own(
    tool: IosCommand, started: IosRun, files: dict[str, str], why: str
) -> None:
    tool.answers("developer core-device launch", stdout=ENDED)
    tool.answers("apps query", stdout=APPS)
    tool.answers("apps pull", files=files)
    with pytest.raises(DeviceError, match=why):
        started.run([], 60)
    assert not any(line.startswith("crash") for line in tool.lines)


def test_an_app_that_stays_is_waited_for_no_longer_than_its_results(
    tool: IosCommand, started: IosRun
) -> None:
    tool.answers("developer core-device launch", stdout=ENDED, seconds=60)
    tool.answers("apps pull", files=left())
    began = time.monotonic()
    assert started.run([], 60).exit_code == 0
    assert time.monotonic() - began < 30


def test_every_start_has_an_id_of_its_own(tool: IosCommand, started: IosRun) -> None:
    tool.answers("developer core-device launch")
    tool.answers("apps pull", files=left(run_id="r-1"))
    tool.answers("apps pull", files=left(run_id="r-2"))
    assert [started.run([], 60).exit_code for _ in range(2)] == [0, 0]


def test_a_failure_that_the_app_tells_is_the_outcomes_text(
    tool: IosCommand, started: IosRun, tmp_path: Path
) -> None:
    error = {"kind": "memory", "message": "out of memory while loading"}
    tool.answers("developer core-device launch", stdout=f"I executorch: log\r\n{ENDED}")
    tool.answers("apps pull", files=left("failed", error=error, results=None))
    outcome = started.run([], 60)
    assert (outcome.exit_code, outcome.out_of_memory) == (1, True)
    assert outcome.stderr.splitlines()[-1] == error["message"]
    with pytest.raises(DeviceError, match=r"timing\.json"):
        started.pull("timing.json", tmp_path / "timing.json")


def test_a_run_that_left_the_front_is_an_error_of_the_device_with_its_remedy(
    tool: IosCommand, started: IosRun, tmp_path: Path
) -> None:
    error = {"kind": "interrupted", "message": "The app was not in front until the end."}
    tool.answers("developer core-device launch", stdout=ENDED)
    tool.answers("apps pull", files=left("failed", error=error, results=None))
    with pytest.raises(DeviceError, match=f"{APP} was not in front") as caught:
        started.run([], 60)
    assert "keep the app on the screen" in (caught.value.remedy or "")
    # Nothing of it passes for a measurement.
    with pytest.raises(DeviceError, match=r"timing\.json"):
        started.pull("timing.json", tmp_path / "timing.json")


def crash_answers(tool: IosCommand, report: str, name: str, now: float) -> None:
    tool.answers("developer core-device launch", stdout="starting\r\n")
    tool.answers("apps query", stdout=APPS)
    tool.answers("lockdown info", stdout=json.dumps({"TimeIntervalSince1970": now}))
    tool.answers("crash flush")
    tool.answers("crash ls", stdout=f"/{name}\n/Retired\n")
    tool.answers("crash pull", files={name: report})


@pytest.fixture
def missing(tool: IosCommand) -> None:
    """The app leaves no results."""
    text = "Opcode: GET_FILE_INFO failed with status: 8 for file: x (AFC status OBJECT_NOT_FOUND)."
    tool.answers("apps pull", stderr=logged(text), exit_code=1)


@pytest.mark.parametrize(
    ("file", "name", "signal", "exit_code", "out_of_memory", "text"),
    [
        ("crash.ips", "ConvNet-2026-11-23-010203.ips", "SIGSEGV", 139, False, "EXC_BAD_ACCESS"),
        ("jetsam.ips", "JetsamEvent-2026-11-23-010204.ips", "SIGKILL", 137, True, "3.33 GB"),
    ],
)  # fmt: skip
def test_a_crash_is_named_from_its_report(
    tool: IosCommand, started: IosRun, missing: None, file: str, name: str, signal: str,
    exit_code: int, out_of_memory: bool, text: str,
) -> None:  # fmt: skip
    # By the phone's clock, the app was started just before its report.
    crash_answers(tool, (DATA / file).read_text(), name, 1795392123.0)
    outcome = started.run([], 60)
    assert (outcome.signal_name, outcome.exit_code) == (signal, exit_code)
    assert outcome.out_of_memory is out_of_memory
    assert outcome.stderr.startswith("starting\n")
    assert text in outcome.stderr
    assert name in outcome.stderr
    assert [line.split()[:2] for line in tool.lines[-3:]] == [
        ["crash", "flush"], ["crash", "ls"], ["crash", "pull"],
    ]  # fmt: skip


def test_a_report_of_an_earlier_crash_is_not_this_ones(
    tool: IosCommand, started: IosRun, missing: None
) -> None:
    name = "ConvNet-2026-11-23-010203.ips"
    crash_answers(tool, (DATA / "crash.ips").read_text(), name, 1795392123.0 + 600)
    outcome = started.run([], 60)
    assert (outcome.signal_name, outcome.exit_code, outcome.out_of_memory) == (None, 1, None)
    assert "no crash report" in outcome.stderr


def test_results_of_another_start_are_none(tool: IosCommand, started: IosRun) -> None:
    crash_answers(tool, "", "none", 0)
    tool.answers("apps pull", files=left(run_id="by-hand"))
    assert started.run([], 60).exit_code == 1


def test_a_start_that_takes_too_long_is_ended_on_the_phone(
    tool: IosCommand, started: IosRun
) -> None:
    tool.answers("developer core-device launch", stdout="working\n", seconds=60)
    processes = [
        {"processIdentifier": 1, "executableURL": {"relative": "file:///sbin/launchd"}},
        {"processIdentifier": 812, "executableURL": {"relative": f"file://{FOLDER}/ConvNet"}},
    ]
    tool.answers("developer core-device list-processes", stdout=json.dumps(processes))
    tool.answers("apps query", stdout=APPS)
    tool.answers("developer core-device send-signal-to-process")
    outcome = started.run([], 0.2)
    assert (outcome.timed_out, outcome.exit_code, outcome.stdout) == (True, None, "working\n")
    assert tool.lines[-1] == "developer core-device send-signal-to-process 812 9"


def test_a_stop_ends_the_app_on_the_phone(
    tool: IosCommand, started: IosRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool.answers("developer core-device launch", seconds=60)
    ended: list[str] = []
    monkeypatch.setattr(run, "end_app", lambda _command, app: ended.append(app))
    flag = cancel.Flag()
    with cancel.bound(flag):
        flag.set()
        with pytest.raises(Interrupted):
            started.run([], 60)
    assert ended == [APP]


def test_a_phone_without_its_image_gets_it_and_the_start_is_repeated(
    tool: IosCommand, started: IosRun
) -> None:
    missing = (DATA / "services-missing.txt").read_text()
    tool.answers("developer core-device launch", stderr=missing, exit_code=1)
    tool.answers("developer core-device launch", stdout=ENDED)
    tool.answers("amfi developer-mode-status", stdout="true\n")
    tool.answers("mounter auto-mount")
    tool.answers("apps pull", files=left())
    assert started.run([], 60).exit_code == 0
    assert [line.split(" -- ")[0].split()[0] for line in tool.lines] == [
        "developer", "amfi", "mounter", "developer", "apps",
    ]  # fmt: skip


def test_developer_mode_that_is_off_is_told(tool: IosCommand, started: IosRun) -> None:
    missing = (DATA / "services-missing.txt").read_text()
    tool.answers("developer core-device launch", stderr=missing, exit_code=1)
    tool.answers("amfi developer-mode-status", stdout="false\n")
    with pytest.raises(DeviceError, match="Developer Mode is off"):
        started.run([], 60)


def test_an_image_that_cannot_be_downloaded_is_told(tool: IosCommand, started: IosRun) -> None:
    missing = (DATA / "services-missing.txt").read_text()
    tool.answers("developer core-device launch", stderr=missing, exit_code=1)
    tool.answers("amfi developer-mode-status", stdout="true\n")
    tool.answers("mounter", stderr=(DATA / "mount-offline.txt").read_text(), exit_code=1)
    with pytest.raises(DeviceError, match="cannot download"):
        started.run([], 60)


def test_a_word_without_a_value_is_no_option(started: IosRun) -> None:
    with pytest.raises(DeviceError, match="'--threads'"):
        started.run(["--threads"], 60)


@pytest.mark.parametrize("path", ["../x.json", "/etc/passwd"])
def test_only_what_a_run_left_is_pulled(started: IosRun, tmp_path: Path, path: str) -> None:
    with pytest.raises(ValueError, match="path inside"):
        started.pull(path, tmp_path / "x")


def test_processes_are_found_by_the_apps_folder() -> None:
    def listed(path: str) -> str:
        return json.dumps([{"processIdentifier": 7, "executableURL": {"relative": path}}])

    assert parse_processes(listed(f"file://{FOLDER}/ConvNet"), FOLDER) == [7]
    assert parse_processes(listed(f"file://{FOLDER.removeprefix('/private')}/X"), FOLDER) == [7]
    spaced = FOLDER.replace("ConvNet.app", "Conv Net.app")
    assert parse_processes(listed("file://" + spaced.replace(" ", "%20") + "/X"), spaced) == [7]
    assert parse_processes(listed("file:///sbin/launchd"), FOLDER) == []
    assert parse_processes(listed(f"file://{FOLDER}2/X"), FOLDER) == []
    assert parse_processes(listed(f"file://{FOLDER}/X"), None) == []
    for nothing in ("", "{}", "[3]", '[{"processIdentifier": 7}]'):
        assert parse_processes(nothing, FOLDER) == []
