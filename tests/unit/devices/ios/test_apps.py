"""Crash reports, written as Apple documents them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from etdeploy.devices.ios.apps import candidates, parse_crash

DATA = Path(__file__).parents[3] / "data" / "ios"
APP = "org.example.convnet"


def report(header: dict[str, object], body: dict[str, object]) -> str:
    return f"{json.dumps(header)}\n{json.dumps(body, indent=2)}"


def test_reports_of_the_process_come_newest_first() -> None:
    paths = [
        "/ConvNet-2026-11-23-010203.ips",
        "/ConvNet-2026-11-24-010203.000.ips",
        "/ConvNetOther-2026-11-25-010203.ips",
        "/JetsamEvent-2026-11-23-120000.ips",
        "/Retired",
        "/stacks-2026-11-25-010203.ips",
        "/Conv.Net-2026-11-25-010203.ips",
    ]
    assert candidates(paths, "ConvNet") == [paths[1], paths[3], paths[0]]
    assert candidates(paths, "ConvNet", most=1) == [paths[1]]
    assert candidates(paths, "Conv.et") == [paths[3]]


def test_a_crash_says_how_and_where() -> None:
    text = (DATA / "crash.ips").read_text()
    crash = parse_crash(text, "ConvNet-2026-11-23-010203.ips", "ConvNet", APP)
    assert crash
    assert (crash.signal, crash.out_of_memory) == ("SIGSEGV", False)
    assert crash.unix_s == 1795392123.0
    cause, _, *frames, report = crash.text.splitlines()
    assert "EXC_BAD_ACCESS" in cause
    assert [frame.split()[-1] for frame in frames] == [
        "executorch::runtime::Method::execute()", "+9216", "+12",
    ]  # fmt: skip
    assert report.split()[-1] == "ConvNet-2026-11-23-010203.ips"


def test_an_event_that_ended_other_processes_is_not_the_apps() -> None:
    assert parse_crash((DATA / "jetsam.ips").read_text(), "J.ips", "Other", "org.other") is None


def test_a_watchdog_is_named() -> None:
    body: dict[str, object] = {
        "exception": {"type": "EXC_CRASH", "signal": "SIGKILL"},
        "termination": {
            "namespace": "FRONTBOARD", "code": 0x8BADF00D,
            "reasons": ["scene-update watchdog transgression"],
        },
    }  # fmt: skip
    crash = parse_crash(report({"bug_type": "309"}, body), "R", "ConvNet", APP)
    assert crash
    assert (crash.signal, crash.out_of_memory, crash.unix_s) == ("SIGKILL", False, None)
    assert "0x8badf00d" in crash.text


def test_a_library_that_is_missing_is_named() -> None:
    body: dict[str, object] = {
        "termination": {
            "namespace": "DYLD", "code": 1, "indicator": "Library missing",
            "details": ["(terminated at launch; ignore backtrace)"],
        },
        "asi": {"dyld": ["Symbol not found: _x"]},
    }  # fmt: skip
    crash = parse_crash(report({"bug_type": "309", "timestamp": "soon"}, body), "R", "C", APP)
    assert crash
    assert crash.signal == "SIGABRT"
    assert all(word in crash.text for word in ("DYLD", "Library missing", "Symbol not found: _x"))


@pytest.mark.parametrize("text", ["", "{}", "{}\n", "[]\n[]", "{}\n3", "no\njson"])
def test_what_is_no_report(text: str) -> None:
    assert parse_crash(text, "R", "ConvNet", APP) is None


def test_a_report_of_another_shape_is_still_a_crash() -> None:
    body: dict[str, object] = {
        "exception": 3, "termination": [], "threads": [{"triggered": True, "frames": [1, {}]}],
        "usedImages": None, "asi": 4,
    }  # fmt: skip
    crash = parse_crash(report({}, body), "R", "ConvNet", APP)
    assert crash
    assert "SIGABRT" in crash.text
