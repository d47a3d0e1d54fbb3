"""The devices of a host: asked once, each once, and left alone while they are measured."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any, cast

import pytest

from etdeploy.cache.workspace import Workspace
from etdeploy.core import cancel
from etdeploy.core.errors import DeviceError, Interrupted
from etdeploy.devices.base import Capabilities, Device, DeviceFacts, DeviceListing, lock_name
from etdeploy.farm.work import local_devices
from etdeploy.farm.work.local_devices import (
    LocalDevices,
    derive_identity,
    merge_names,
    require_same,
)
from tests.support.parcels import make_offer
from tests.support.processes import eventually


class Phone:
    """A device that counts how often it is asked."""

    capabilities = Capabilities(launches=("process", "app"))

    def __init__(self, name: str, identity: str) -> None:
        self.name, self.identity = name, identity
        self.asked = 0
        self.error: DeviceError | None = None

    def facts(self) -> DeviceFacts:
        self.asked += 1
        if self.error:
            raise self.error
        return DeviceFacts(name=self.name, kind="android", target="android-arm64")

    def close(self) -> None:
        """Nothing is held."""


class Bench:
    """What is plugged in, and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **phones: str) -> None:
        self.phones = {
            f"android:{serial}": Phone(f"android:{serial}", identity)
            for serial, identity in phones.items()
        }
        self.states = dict.fromkeys(self.phones, "device")
        self.now = 0.0
        monkeypatch.setattr(local_devices, "plugged_in", lambda _: self.listed())
        monkeypatch.setattr(local_devices, "open_device", self.opened)

    def opened(self, name: str, _workspace: Workspace) -> Phone:
        if name.startswith("android:") and name not in self.states:
            raise DeviceError("the device is not connected", place=name)
        return self.phones[name]

    def listed(self) -> list[DeviceListing]:
        return [
            DeviceListing(name=name, kind="android", status=status, remedy="Look at it.")
            for name, status in self.states.items()
        ]

    def shelf(self, pools: Mapping[str, Any] | None = None) -> LocalDevices:
        return LocalDevices(Workspace.default(), "box", pools, lambda: self.now)

    @property
    def asked(self) -> list[int]:
        return [phone.asked for phone in self.phones.values()]


def test_a_phone_that_cannot_be_used_has_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, A1="android-A1")
    bench.states["android:A1"] = "unauthorized"
    shelf = bench.shelf()
    [offer] = shelf.look()
    assert (offer.identity, offer.facts.target) == ("android-A1", "")
    assert "unauthorized" in offer.problem
    assert offer.remedy == "Look at it."
    assert bench.asked == [0]
    bench.states["android:A1"] = "device"
    assert [o.problem for o in shelf.look()] == [""]


def test_a_phone_that_is_offline_is_still_the_same_phone(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, **{"10.0.0.7:5555": "android-A1"})
    shelf = bench.shelf()
    [before] = shelf.look()
    bench.states["android:10.0.0.7:5555"] = "offline"
    [offer] = shelf.look()
    assert (offer.identity, offer.facts) == ("android-A1", before.facts)
    assert offer.problem == "its state is offline"
    # Another phone may have the address then.
    bench.states["android:10.0.0.7:5555"] = "device"
    bench.phones["android:10.0.0.7:5555"].identity = "android-B2"
    assert [(o.identity, o.problem) for o in shelf.look()] == [("android-B2", "")]


def test_a_phone_that_the_adb_server_forgot_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "android:10.0.0.7:5555"
    bench = Bench(monkeypatch, **{"10.0.0.7:5555": "android-A1", "B2": "android-B2"})
    monkeypatch.setattr(bench, "opened", lambda name, _: bench.phones[name])
    monkeypatch.setattr(local_devices, "open_device", bench.opened)
    shelf = bench.shelf()
    shelf.look()
    # The server was restarted while they were away.
    bench.states.clear()
    shelf.expect(name)
    shelf.expect("android:B2")
    bench.phones[name].error = DeviceError("it cannot be reached")
    assert [(o.identity, o.problem) for o in shelf.look()] == [
        ("android-A1", "it cannot be reached")
    ]
    bench.phones[name].error = None
    bench.now += 60
    assert [(o.identity, o.problem) for o in shelf.look()] == [("android-A1", "")]


def test_a_board_is_looked_for_only_if_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    bench.phones["ssh:pi@board"] = Phone("ssh:pi@board", "ssh-1234")
    assert bench.shelf().look() == ()
    shelf = bench.shelf({"boards": ["ssh:pi@board"]})
    assert [(o.identity, o.pools) for o in shelf.look()] == [("ssh-1234", ("boards",))]
    # Only asking tells whether it is still there, and a measurement is not disturbed by that.
    bench.now += 60
    shelf.look(busy={"ssh-1234"})
    assert bench.asked == [1]
    shelf.look()
    assert bench.asked == [2]


def test_a_board_that_was_restarted_is_the_same_one(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    board = bench.phones["ssh:pi@board"] = Phone("ssh:pi@board", "ssh-1")
    shelf = bench.shelf({"boards": ["ssh:pi@board"]})
    [before] = shelf.look()
    require_same(cast(Device, board), before)
    board.error = DeviceError("the board cannot be reached")
    bench.now += 60
    [away] = shelf.look()
    assert (away.identity, away.problem) == ("ssh-1", "the board cannot be reached")
    # Its kernel was started anew.
    board.identity, board.error = "ssh-2", None
    bench.now += 60
    [offer] = shelf.look()
    assert (offer.identity, offer.problem) == (before.identity, "")
    # Runs lock it by its present start.
    assert offer.lock == "ssh-2"
    require_same(cast(Device, board), offer)
    with pytest.raises(DeviceError, match="ssh-2, not ssh-1"):
        require_same(cast(Device, board), before)


def test_what_is_forgotten_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, A1="android-A1", B2="android-B2")
    shelf = bench.shelf()
    shelf.look()
    shelf.forget("android-A1")
    shelf.look()
    assert bench.asked == [2, 1]


def test_forty_boards_are_asked_at_once_and_given_up_when_the_shelf_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    together = threading.Barrier(40, timeout=60)
    left: list[str] = []

    class Silent(Phone):
        def facts(self) -> DeviceFacts:
            together.wait()
            while not cancel.requested():
                time.sleep(0.01)
            left.append(self.name)
            raise Interrupted

    monkeypatch.setattr(local_devices, "_SOON_S", 0.2)
    bench = Bench(monkeypatch)
    names = [f"ssh:board-{number}" for number in range(40)]
    bench.phones = {name: Silent(name, name) for name in names}
    shelf = bench.shelf({"boards": names})
    offers = shelf.look()
    assert [offer.name for offer in offers] == names
    assert all("did not answer" in offer.problem for offer in offers)
    shelf.close()
    assert eventually(lambda: sorted(left) == sorted(names))


def test_two_names_of_one_phone_are_one_offer(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, A1="android-A1")
    bench.phones["android:10.0.0.7:5555"] = Phone("android:10.0.0.7:5555", "android-A1")
    bench.states = {"android:10.0.0.7:5555": "device", "android:A1": "device"}
    shelf = bench.shelf({"wifi": ["android:10.0.0.7:5555"], "usb": ["android:A1"]})
    [offer] = shelf.look()
    assert offer.name == "android:A1"
    assert set(offer.pools) == {"wifi", "usb"}
    assert offer.also == ("android:10.0.0.7:5555",)
    # The cable is pulled: the other name is left, and stays chosen when the cable is back.
    del bench.states["android:A1"]
    assert [o.name for o in shelf.look()] == ["android:10.0.0.7:5555"]
    bench.states["android:A1"] = "device"
    assert [o.name for o in shelf.look()] == ["android:10.0.0.7:5555"]


def test_a_name_without_a_problem_is_chosen() -> None:
    broken = make_offer("android:A1", identity="x", problem="offline")
    fine = make_offer("android:10.0.0.7:5555", identity="x")
    for offers in ((broken, fine), (fine, broken)):
        assert [o.name for o in merge_names(offers, {"x": "android:A1"})] == [fine.name]


def test_devices_that_are_their_hosts_processors_are_told_apart_by_the_host() -> None:
    device: Any = Phone("host", "host")
    device.capabilities = Capabilities(shares_cores=True)
    assert derive_identity(device, "box") == "host@box"
    offer = make_offer("host", identity="host@box", capabilities=device.capabilities)
    require_same(device, offer)
    assert offer.lock == lock_name(device) == "host"
    assert make_offer(identity="android-A1").lock == "android-A1"
    with pytest.raises(DeviceError, match="host@box, not host@other"):
        require_same(device, make_offer("host", identity="host@other"))
