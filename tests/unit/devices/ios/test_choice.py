"""Which iPhone is meant, and which are listed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from etdeploy.core.errors import DeviceError
from etdeploy.devices.ios import choice
from etdeploy.devices.ios.choice import list_ios, open_ios
from etdeploy.devices.ios.command import Attached, MuxError
from etdeploy.devices.kinds import DeviceSpec
from tests.support.ios_command import IosCommand, logged
from tests.support.ios_phone import UDID

DATA = Path(__file__).parents[3] / "data" / "ios"
OTHER = "00008110-000A2B3C4D5E6F70"


def connect(monkeypatch: pytest.MonkeyPatch, *udids: str) -> None:
    monkeypatch.setattr(choice, "list_attached", lambda: [Attached(udid, "USB") for udid in udids])


def message(serial: str | None) -> str:
    with pytest.raises(DeviceError) as caught:
        open_ios(DeviceSpec("ios", serial))
    return str(caught.value)


def test_the_only_phone_needs_no_name(tool: IosCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, UDID)
    assert open_ios(DeviceSpec("ios")).name == f"ios:{UDID}"
    for name in (UDID, UDID.lower(), UDID.replace("-", "")):
        assert open_ios(DeviceSpec("ios", name)).name == f"ios:{UDID}"
    assert tool.calls == []


def test_one_of_several_has_to_be_named(tool: IosCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, UDID, OTHER)
    text = message(None)
    assert text.startswith("ios: 2 iPhones")
    assert f"--device ios:{UDID}\n" in text
    assert f"--device ios:{OTHER}" in text
    assert open_ios(DeviceSpec("ios", OTHER)).name == f"ios:{OTHER}"


def test_a_name_that_is_nearly_one_is_suggested(
    tool: IosCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, UDID, OTHER)
    assert [UDID in message(UDID[:-1] + "1"), OTHER in message(UDID[:-1] + "1")] == [True, False]
    assert [UDID in message("x"), OTHER in message("x")] == [True, True]


def test_no_phone_is_told_with_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch)
    assert "no iPhone is connected" in message(None)
    assert "2. Tap Trust" in message(None)
    assert "2. Tap Trust" in message("x")


def test_a_missing_program_is_told_when_a_phone_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, UDID)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "is not installed" in message(None)
    [listed] = list_ios()
    assert (listed.name, listed.status) == (f"ios:{UDID}", "missing")
    assert "[ios]'" in (listed.remedy or "")


def test_a_phone_is_listed_with_what_it_reports(
    tool: IosCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, UDID)
    tool.answers("lockdown info", stdout=(DATA / "lockdown-info.json").read_text())
    tool.answers("diagnostics", stdout=(DATA / "battery.json").read_text())
    [listed] = list_ios()
    assert (listed.status, listed.kind) == ("device", "ios")
    assert listed.facts
    assert listed.facts.model == "iPhone 15 Pro (iPhone16,1)"
    assert listed.device_state
    assert listed.device_state.battery_percent == 81


@pytest.mark.parametrize(
    ("said", "status"),
    [("Device is not paired.", "unauthorized"), ("Connection was terminated abruptly.", "error")],
)
def test_a_phone_that_cannot_be_used_is_listed_with_a_remedy(
    tool: IosCommand, monkeypatch: pytest.MonkeyPatch, said: str, status: str
) -> None:
    connect(monkeypatch, UDID)
    tool.answers("lockdown info", stderr=logged(said), exit_code=1)
    [listed] = list_ios()
    assert listed.status == status
    assert listed.remedy


def test_another_server_on_the_socket_hides_no_other_devices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> None:
        raise MuxError("it hung up")

    monkeypatch.setattr(choice, "list_attached", fail)
    [listed] = list_ios()
    assert (listed.name, listed.status) == ("ios", "error")
    assert "it hung up" in (listed.remedy or "")
