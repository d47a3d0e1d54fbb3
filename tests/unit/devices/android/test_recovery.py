"""Steps to get back a phone, at an adb server that is played."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from etdeploy.core.errors import DeviceError
from etdeploy.devices.android import device
from etdeploy.devices.kinds import Recovery
from etdeploy.devices.registry import recover_device
from tests.support.adb_fakes import fake_server


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_POLL_S", 0.01)


def recovered(
    monkeypatch: pytest.MonkeyPatch, name: str, step: Recovery, devices: Any
) -> tuple[list[str], list[str]]:
    """What was told, and what the server was asked."""
    told: list[str] = []
    asked: list[str] = []
    with fake_server(devices, requests=asked) as port:
        monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(port))
        assert recover_device(name, step, told.append)
    return told, asked


def test_a_phone_on_a_cable_is_connected_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    states = ("A1 offline\n", "A1 connecting\n", "A1 device\n")
    told, asked = recovered(monkeypatch, "android:A1", Recovery.RECONNECT, states)
    assert told == ["android:A1: adb reconnect"]
    assert asked == ["host-serial:A1:reconnect", *["host:devices-l"] * 3]


def test_a_phone_on_the_network_is_connected_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    states = ("10.0.0.7:5555 device\n",)
    _, asked = recovered(monkeypatch, "android:10.0.0.7:5555", Recovery.RECONNECT, states)
    assert asked[:2] == ["host:disconnect:10.0.0.7:5555", "host:connect:10.0.0.7:5555"]


def test_a_phone_that_stays_away_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_BACK_S", 0.1)
    for states, why in (("A1 offline\n", "its state is offline"), ("", "it is not connected")):
        with pytest.raises(DeviceError, match=f"adb reconnect: {why}"):
            recovered(monkeypatch, "android:A1", Recovery.RECONNECT, states)


def test_without_a_server_there_is_nothing_to_reconnect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "server_is_running", lambda: False)
    told: list[str] = []
    recover_device("android:A1", Recovery.RECONNECT, told.append)
    recover_device("android:A1", Recovery.RESTART, told.append)
    assert [line.split()[0] for line in told] == ["android:A1:"] * 2


def test_a_server_elsewhere_is_not_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADB_SERVER_SOCKET", "tcp:10.0.0.9:5037")
    told: list[str] = []
    recover_device("android:A1", Recovery.RESTART, told.append)
    assert len(told) == 1
    assert "10.0.0.9" in told[0]


def test_the_server_is_restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    adb = tmp_path / "adb"
    adb.write_text(f'#!/bin/sh\nshift 2; echo "$@" >>{log}\n')
    adb.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    told, _ = recovered(monkeypatch, "android:A1", Recovery.RESTART, "A1 device\n")
    assert len(told) == 1
    assert log.read_text().splitlines() == ["kill-server", "start-server"]
    log.unlink()
    # A new server has no phone of the network.
    states = "10.0.0.7:5555 device\n10.0.0.8:5555 offline\nA1 device\n"
    _, asked = recovered(monkeypatch, "android:10.0.0.7:5555", Recovery.RESTART, states)
    assert "host:connect:10.0.0.7:5555" in asked
    others = ["connect 10.0.0.8:5555"]
    assert log.read_text().splitlines() == ["kill-server", "start-server", *others]


class Phone:
    """A phone that restarts when it is told to, and takes a few looks for it."""

    boots = 0
    looks = 0
    stays_down = False

    def boot_id(self) -> str:
        if self.boots:
            Phone.looks += 1
            if self.stays_down or Phone.looks < 3:
                raise DeviceError("it is not there", place="android:A1")
        return f"boot {self.boots}"

    def has_booted(self) -> bool:
        return self.looks > 3

    def restart(self) -> None:
        Phone.boots += 1

    def close(self) -> None:
        """Nothing is held."""


@pytest.fixture
def phone(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Phone]]:
    Phone.boots = Phone.looks = 0
    monkeypatch.setattr(device, "open_android", lambda _: Phone())
    yield Phone
    Phone.stays_down = False


def test_a_phone_is_waited_for_until_android_has_started(phone: type[Phone]) -> None:
    told: list[str] = []
    recover_device("android:A1", Recovery.REBOOT, told.append)
    assert (phone.boots, phone.looks) == (1, 4)
    assert told[-1] == "android:A1: is up again"


def test_a_phone_that_does_not_start_is_told(
    phone: type[Phone], monkeypatch: pytest.MonkeyPatch
) -> None:
    phone.stays_down = True
    monkeypatch.setattr(device, "_REBOOT_S", 0.1)
    with pytest.raises(DeviceError, match="adb reboot"):
        recover_device("android:A1", Recovery.REBOOT, lambda _: None)
