"""`etdeploy farm reserve`, `release` and `quarantine`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from etdeploy.cli import main as cli_main
from etdeploy.device_pool import active_reservations, reserve, this_host
from etdeploy.history.location import require_location
from etdeploy.history.nights import KnownDevice

Capture = pytest.CaptureFixture[str]


def run(*arguments: str) -> int:
    return cli_main.run_cli(["farm", *arguments])


@pytest.fixture
def phone() -> KnownDevice:
    """A phone that is not plugged in, reserved by somebody."""
    found = KnownDevice(identity="android-R5", device="android:R5")
    reserve(require_location(None), found, "anna@owl", 3600.0, "tuning")
    return found


def test_reserving_listing_and_giving_back(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "me")
    assert run("reserve") == 0
    assert capsys.readouterr().out.startswith("no device")
    assert run("reserve", "--json") == 0
    assert json.loads(capsys.readouterr().out) == []
    assert run("reserve", "host", "--for", "90m", "--note", "tuning") == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("host ")
    assert f"me@{this_host()} for 1 hour 30" in shown.out
    assert "farm release host" in shown.err
    assert run("reserve") == 0
    assert capsys.readouterr().out.splitlines()[2].split()[:2] == ["host", f"me@{this_host()}"]
    assert run("release", "host") == 0
    assert capsys.readouterr().out == "host is free again\n"
    assert run("release", "host", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"released": None}


def test_somebody_elses(phone: KnownDevice, capsys: Capture) -> None:
    assert run("reserve", "R5") == 6
    assert "anna@owl" in capsys.readouterr().err
    assert run("release", "android:R5") == 6
    assert " release android:R5 --force" in capsys.readouterr().err
    assert run("release", "android-R5", "--force") == 0
    shown = capsys.readouterr().out
    assert shown.startswith("android:R5 ")
    assert "anna@owl" in shown
    assert shown.endswith(": tuning\n")


def test_for_somebody_else(capsys: Capture) -> None:
    assert run("reserve", "host", "--owner", "bob", "--json") == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["owner"], made["host"], made["measured_now_by"]) == ("bob", this_host(), None)


@pytest.mark.parametrize("time", ["0h", "2", "h", "400d", "-1h", "1 fortnight"])
def test_a_time_that_is_none(time: str, capsys: Capture) -> None:
    assert run("reserve", "host", f"--for={time}") == 2
    assert "30m, 2h" in capsys.readouterr().err


def test_quarantine(phone: KnownDevice, capsys: Capture) -> None:
    assert run("quarantine") == 0
    assert capsys.readouterr().out == "no device is quarantined\n"
    assert run("quarantine", "R5", "--reason", "too hot") == 0
    assert capsys.readouterr().out == "android:R5 is quarantined: too hot\n"
    assert run("quarantine", "--json") == 0
    [kept] = json.loads(capsys.readouterr().out)
    assert (kept["identity"], kept["reason"]) == ("android-R5", "too hot")
    assert run("quarantine") == 0
    assert capsys.readouterr().out.splitlines()[2].endswith("too hot")
    assert run("quarantine", "--release", "R5") == 0
    assert "android:R5" in capsys.readouterr().out
    assert run("quarantine", "--release", "R5") == 0
    assert capsys.readouterr().out == "android:R5 was not quarantined\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--reason", "x"), "--reason is for a device"),
        (("host", "--release", "host"), "either quarantined or released"),
        (("nothing",), "there is no device 'nothing'"),
    ],
)
def test_quarantine_asked_wrongly(arguments: tuple[str, ...], told: str, capsys: Capture) -> None:
    assert run("quarantine", *arguments) == 2
    assert told in capsys.readouterr().err


def test_without_a_history(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETDEPLOY_STORE", "none")
    for verb in ("reserve", "quarantine"):
        assert run(verb) == 2
        assert "no history is kept" in capsys.readouterr().err


@pytest.mark.parametrize("named", [(), ("-f", "lab/farm.yaml")], ids=["folder's", "-f"])
def test_a_farms_own_history(
    named: tuple[str, ...], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = tmp_path / "lab"
    lab.mkdir()
    text = "recipes: [xnnpack]\ndevices: {here: {name: host}}\nstore: lab.db\n"
    (lab / "farm.yaml").write_text(text)
    monkeypatch.chdir(tmp_path if named else lab)
    own = require_location(str(lab / "lab.db"))
    assert run("reserve", "host", *named) == 0
    back = f"etdeploy farm release host --store {lab / 'lab.db'}"
    assert back in capsys.readouterr().err
    assert [kept.device for kept in active_reservations(own)] == ["host"]
    assert active_reservations(require_location(None)) == ()
    assert run(*back.split()[2:]) == 0
    assert active_reservations(own) == ()
    reserve(own, KnownDevice(identity="android-R5", device="android:R5"), "anna@owl", 3600.0, "")
    assert run("release", "R5", *named) == 6
    assert f"release android:R5 --force --store {lab / 'lab.db'}" in capsys.readouterr().err
    assert run("quarantine", "host", *named) == 0
    assert f"--release host --store {lab / 'lab.db'}" in capsys.readouterr().err
    assert run("quarantine", "--release", "host", *named) == 0
    assert "host" in capsys.readouterr().out
