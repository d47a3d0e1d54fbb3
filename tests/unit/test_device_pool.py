"""Reservations and quarantine in a SQLite file, and what a run sees of them."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from etdeploy import device_pool
from etdeploy.core.errors import DeviceError, UsageError
from etdeploy.core.files.locks import exclusive
from etdeploy.device_pool import (
    active_reservations,
    current_user,
    find_device,
    find_known_device,
    is_owner,
    known_devices,
    lock_device,
    release,
    require_unreserved,
    reserve,
    select_device,
    this_host,
)
from etdeploy.farm.night.ledger import Ledger
from etdeploy.history.location import HistoryLocation, require_location
from etdeploy.history.nights import KnownDevice, Reservation, host_of
from etdeploy.history.store.store import open_store
from tests.support.bench_values import make_device
from tests.support.histories import fill
from tests.support.nights import NOW, make_visit

PHONE = KnownDevice(identity="android-A1", device="android:A1")
ANNA = "anna@wolf"


@pytest.fixture
def place(data_folder: Path) -> HistoryLocation:
    return require_location(None)


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_pool, "_unreadable", False)


def reservation(**changes: str) -> Reservation:
    return Reservation(**PHONE.model_dump(), owner=ANNA, until=NOW).model_copy(update=changes)


def test_a_reservation_from_its_beginning_to_its_end(place: HistoryLocation) -> None:
    assert active_reservations(place) == ()
    assert place.file
    assert not place.file.exists()
    before = datetime.now(timezone.utc)
    made, farm = reserve(place, PHONE, ANNA, 3600.0, "tuning")
    assert farm is None
    assert timedelta(minutes=59) < made.until - before < timedelta(minutes=61)
    assert active_reservations(place) == (made,)
    with pytest.raises(DeviceError, match=f"{ANNA} has reserved .*: tuning"):
        reserve(place, PHONE, "bob@owl", 60.0)
    longer, _ = reserve(place, PHONE, ANNA, 7200.0)
    assert active_reservations(place) == (longer,)
    with pytest.raises(DeviceError, match=f"{ANNA} has reserved") as caught:
        release(place, PHONE, "bob@owl")
    assert "release android:A1 --force" in str(caught.value)
    assert release(place, PHONE, "bob@owl", force=True) == longer
    assert release(place, PHONE, ANNA) is None
    assert active_reservations(place) == ()


def test_it_ends_by_itself(place: HistoryLocation) -> None:
    reserve(place, PHONE, ANNA, 3600.0)
    assert place.file
    with closing(sqlite3.connect(place.file)) as connection:
        connection.execute("UPDATE etdeploy_reservations SET until = '2026-01-01T00:00:00+00:00'")
        connection.commit()
    assert active_reservations(place) == ()
    made, _ = reserve(place, PHONE, "bob@owl", 60.0)
    assert active_reservations(place) == (made,)


def test_a_host_is_reserved_for_itself_only(place: HistoryLocation) -> None:
    here = KnownDevice(identity="host", device="host", host="wolf")
    there = KnownDevice(identity="host", device="host", host="owl")
    made, _ = reserve(place, here, ANNA, 60.0)
    reserve(place, there, "bob@owl", 60.0)
    with pytest.raises(DeviceError, match=ANNA):
        reserve(place, here, "bob@owl", 60.0)
    assert made in active_reservations(place)
    assert (host_of("host", "wolf"), host_of("android-A1", "wolf")) == ("wolf", "")


def test_a_board_is_the_same_after_it_was_started_again(place: HistoryLocation) -> None:
    before = KnownDevice(identity="ssh-boot1", device="ssh:me@board")
    reserve(place, before, ANNA, 60.0)
    with pytest.raises(DeviceError, match=ANNA):
        require_unreserved("ssh-boot2", "ssh:me@board")
    require_unreserved("ssh-boot2", "ssh:me@other")
    after = before.model_copy(update={"identity": "ssh-boot2"})
    again, _ = reserve(place, after, ANNA, 90.0)
    assert active_reservations(place) == (again,)


def test_an_owner_is_a_user_on_one_host_or_on_all() -> None:
    assert [is_owner(ANNA, each) for each in (ANNA, "anna", "anna@owl", "ann")] == [
        True, True, False, False,
    ]  # fmt: skip


def test_quarantine(place: HistoryLocation) -> None:
    assert device_pool.quarantined_devices(place) == ()
    assert place.file
    assert not place.file.exists()
    first = device_pool.quarantine_device(place, PHONE, "hot", "night 1")
    assert device_pool.quarantined_devices(place) == (first,)
    assert (first.reason, first.by) == ("hot", "night 1")
    second = device_pool.quarantine_device(place, PHONE, "unauthorised", ANNA)
    assert device_pool.quarantined_devices(place) == (second,)
    assert device_pool.end_quarantine(place, PHONE) == second
    assert device_pool.end_quarantine(place, PHONE) is None


def test_a_night_that_measures_on_it_is_named(place: HistoryLocation) -> None:
    with Ledger(place) as ledger:
        night = ledger.open_night("nightly", "d", NOW).night
        ledger.plan([make_visit(night, 1)])
        ledger.running(f"{night}-1", 1, PHONE.identity, "wolf", PHONE.device)
        assert reserve(place, PHONE, ANNA, 60.0)[1] == "nightly"
        other = KnownDevice(identity="android-B", device="android:B")
        assert reserve(place, other, ANNA, 60.0)[1] is None
        ledger.finish(night)
        assert reserve(place, PHONE, ANNA, 60.0)[1] is None


def test_the_host_that_a_night_measures_on_is_the_same(
    place: HistoryLocation, tmp_path: Path
) -> None:
    here = KnownDevice(identity="host", device="host", host=this_host())
    with Ledger(place, folder=tmp_path) as ledger:
        night = ledger.open_night("nightly", "d", NOW).night
        ledger.plan([make_visit(night, number) for number in (1, 2)])
        ledger.running(f"{night}-1", 1, f"host@{this_host()}", this_host(), "host")
        ledger.running(f"{night}-2", 1, "host@owl", "owl", "host")
        assert reserve(place, here, ANNA, 60.0)[1] == "nightly"
        ledger.finish(night)
    assert find_known_device("host", place) == here
    assert find_known_device("host@owl", place).host == "owl"
    assert release(place, find_known_device("host", place), ANNA)
    assert not active_reservations(place)


def test_devices_that_the_history_knows(place: HistoryLocation) -> None:
    assert known_devices(place) == []
    with open_store(place) as store:
        fill(store, [1.0], device=make_device("android", name="android:R5", serial="R5"))
    reserve(place, PHONE, ANNA, 60.0)
    known = {each.identity for each in known_devices(place)}
    assert known == {"android-A1", "android-R5"}
    assert find_known_device("R5", place) == KnownDevice(identity="android-R5", device="android:R5")
    assert find_device("A1", place) == find_device("android-A1", place) == PHONE
    with pytest.raises(UsageError, match="there is no device 'R6'") as caught:
        find_device("R6", place)
    assert "android:A1, android:R5" in str(caught.value)


def test_names_that_several_devices_have() -> None:
    emulators = [
        KnownDevice(identity=f"android-boot{i}", device="android:emulator-5554") for i in (1, 2)
    ]
    with pytest.raises(UsageError, match="may be one of 2 devices") as caught:
        select_device(emulators, "android:emulator-5554", "wolf")
    assert all(each.identity in str(caught.value) for each in emulators)
    hosts = [KnownDevice(identity="host", device="host", host=name) for name in ("wolf", "owl")]
    assert select_device(hosts, "host", "wolf") == hosts[0]
    assert select_device(hosts, "host@owl", "wolf") == hosts[1]
    assert select_device(hosts, "owl", "wolf") is None


def test_this_host_by_its_name(place: HistoryLocation) -> None:
    here = KnownDevice(identity="host", device="host", host=this_host())
    assert find_device("host", place) == here


def test_a_run_is_refused_and_the_owner_is_not(place: HistoryLocation) -> None:
    require_unreserved("android-A1", "android:A1")
    reserve(place, PHONE, ANNA, 60.0)
    with pytest.raises(DeviceError, match=ANNA):
        require_unreserved("android-A1", "android:A1")
    require_unreserved("android-B2", "android:B2")
    release(place, PHONE, ANNA)
    reserve(place, PHONE, current_user(), 60.0)
    require_unreserved("android-A1", "android:A1")


def test_without_a_history_there_are_no_reservations(
    place: HistoryLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve(place, PHONE, ANNA, 60.0)
    monkeypatch.setenv("ETDEPLOY_STORE", "none")
    require_unreserved("android-A1", "android:A1")


@pytest.mark.parametrize("content", [b"my notes, not a database" * 99, None])
def test_a_history_that_cannot_be_read_stops_no_run(
    content: bytes | None, place: HistoryLocation, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert place.file
    place.file.parent.mkdir(parents=True)
    if content:
        place.file.write_bytes(content)
    else:
        monkeypatch.setenv("ETDEPLOY_STORE", "mysql://somewhere")
    require_unreserved("android-A1", "android:A1")
    require_unreserved("android-A1", "android:A1")
    said = capsys.readouterr().err
    assert said.count("warning:") == 1


def test_a_file_without_tables_has_no_reservations(place: HistoryLocation) -> None:
    assert place.file
    place.file.parent.mkdir(parents=True)
    place.file.touch()
    require_unreserved("android-A1", "android:A1")
    assert active_reservations(place) == ()


def test_who_waited_for_a_device_is_asked_again(place: HistoryLocation, tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    told: list[str] = []

    @contextmanager
    def other() -> Iterator[None]:
        with exclusive(lock, "it"):
            yield

    held = other()
    held.__enter__()

    def progress(text: str, fraction: float | None = None) -> None:
        told.append(text)
        reserve(place, PHONE, ANNA, 60.0)
        held.__exit__(None, None, None)

    with (
        pytest.raises(DeviceError, match=ANNA),
        lock_device(lock, "android-A1", "android:A1", progress),
    ):
        pytest.fail("it is reserved")
    assert "android:A1" in told[0]
    with exclusive(lock, "it"):
        pass


_CHILD = """
import sys
from etdeploy.device_pool import require_unreserved
require_unreserved("android-A1", "android:A1")
print(sorted({"sqlalchemy", "alembic"} & set(sys.modules)))
"""


@pytest.mark.parametrize("kept", ["nothing", "a history", "a reservation"])
def test_a_glance_at_a_file_needs_no_sqlalchemy(
    kept: str, place: HistoryLocation, real_processes: None
) -> None:
    if kept == "a history":
        with open_store(place) as store:
            fill(store, [1.0])
    elif kept == "a reservation":
        reserve(place, PHONE, current_user(), 60.0)
    done = subprocess.run(
        [sys.executable, "-c", _CHILD], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")
