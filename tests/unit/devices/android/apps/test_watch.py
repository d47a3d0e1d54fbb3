"""The script that waits for an app, and what it says."""

from __future__ import annotations

import pytest

from etdeploy.devices.android.app_watch import (
    LaunchReport,
    check_app_id,
    extras,
    parse_front,
    parse_marker,
    parse_report,
)
from etdeploy.devices.app_results import Option


def test_options_become_typed_extras_in_quotes() -> None:
    options: dict[str, Option] = {
        "warmup": -1,
        "outputs": True,
        "size": "it's; $(x)",
        "program": "",
    }
    assert extras("ab12", options) == (
        "--es run_id ab12 --ei warmup -1 --ez outputs true --es size 'it'\"'\"'s; $(x)' "
        "--es program ''"
    )


def test_a_report_that_was_cut_off_is_read() -> None:
    assert parse_report("#since\ndate: bad\n#start\n") == LaunchReport(None, "", None, None, None)
    assert parse_report("") == LaunchReport(None, "", None, None, None)
    assert parse_report("#start\nx\n#pid\n\n#ended\ngone\n").pid is None


@pytest.mark.parametrize(
    ("text", "package"),
    [
        # Android 9 and 15.
        ("  mResumedActivity: ActivityRecord{a3ae8dd u0 com.a.test/.BActivity t878}", "com.a.test"),
        ("  ResumedActivity: ActivityRecord{1a70f4a u10 com.d/com.e.Home} t6294}", "com.d"),
        ("  mResumedActivity: null", None),
        ("", None),
    ],
)
def test_the_activity_in_front_is_found(text: str, package: str | None) -> None:
    assert parse_front(text) == package


def test_a_marker_is_read() -> None:
    assert parse_marker("org.example.a 42\n") == ("org.example.a", 42)
    assert parse_marker("org.example.a 0\n") is None
    assert parse_marker("org.example.a\n") is None


@pytest.mark.parametrize("name", ["", "a", "a.b;reboot", "a..b", ".a.b", "1a.b", "a.b\n", "a.-b"])
def test_what_is_no_application_id_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="application id"):
        check_app_id(name)
    assert check_app_id("org.example_1.App2") == "org.example_1.App2"
