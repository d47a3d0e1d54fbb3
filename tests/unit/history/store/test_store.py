"""The history in a SQLite file."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import event

from etdeploy.core.commands import pip_command
from etdeploy.core.errors import StoreError
from etdeploy.history.location import HistoryLocation, resolve_location
from etdeploy.history.nights import device_health
from etdeploy.history.store.nights import device_days
from etdeploy.history.store.store import Filter, open_store
from tests.support.bench_values import make_device
from tests.support.histories import recipe_named, run_at
from tests.support.shelf_weeks import keep_weeks

ALL = Filter()


def test_runs_come_in_the_order_of_their_start_then_of_their_arrival(
    place: HistoryLocation,
) -> None:
    with open_store(place) as store:
        for run_id, second in (("late", 9), ("first", 1), ("b", 5), ("a", 5)):
            store.add(run_at(second, run_id=run_id))
        assert [entry.run_id for entry in store.entries(ALL, 10)] == ["first", "b", "a", "late"]
        assert [entry.run_id for entry in store.entries(ALL, 2)] == ["a", "late"]


def test_a_device_is_found_by_a_part_of_its_names(place: HistoryLocation) -> None:
    phone = make_device("android", name="android:A1", serial="A1", model="Pixel_9 100%")
    with open_store(place) as store:
        store.add(run_at(0))
        store.add(run_at(7, device=phone))
        for device, count in (("pixel", 1), ("100%", 1), ("A1", 1), ("host", 1), ("Pixel%9", 0)):
            assert len(store.series(Filter(device=device))) == count


def test_more_runs_than_a_statement_may_name(place: HistoryLocation) -> None:
    with open_store(place) as store:
        for number in range(510):
            store.add(run_at(number % 60, run_id=f"r{number}"))
        entries = store.entries(ALL, 600)
    assert len(entries) == 510
    assert all(entry.metrics for entry in entries)


def test_a_removed_run_leaves_nothing(place: HistoryLocation) -> None:
    with open_store(place) as store:
        store.add(run_at(0, run_id="x"))
        assert store.remove(["x", "y"]) == 1
        assert (store.count(), store.content("x")) == (0, None)
    assert place.file
    with closing(sqlite3.connect(place.file)) as connection:
        assert connection.execute("SELECT count(*) FROM etdeploy_metrics").fetchone() == (0,)


def test_another_programs_database_is_left_alone(place: HistoryLocation) -> None:
    assert place.file
    place.file.parent.mkdir(parents=True)
    with closing(sqlite3.connect(place.file)) as connection:
        connection.execute("CREATE TABLE songs (name TEXT)")
        connection.commit()
    with (
        pytest.raises(StoreError, match="table songs"),
        open_store(place),
    ):
        pass


@pytest.mark.parametrize("name", ["history.db", "passwd"])
def test_a_file_that_is_no_database_is_left_alone(place: HistoryLocation, name: str) -> None:
    assert place.file
    place.file.parent.mkdir(parents=True)
    file = place.file.with_name(name)
    file.write_text("my notes, which are longer than the header of a database" * 20)
    with (
        pytest.raises(StoreError, match="not a SQLite database") as caught,
        open_store(HistoryLocation(shown=str(file), file=file)),
    ):
        pass
    told = str(caught.value)
    # Only the default history is etdeploy's own file.
    assert ("mv " in told) == (file == place.file)
    assert "export ETDEPLOY_STORE=/path/to/history.db" in told
    assert file.read_text().startswith("my notes")
    assert list(file.parent.iterdir()) == [file]


def test_a_damaged_file_is_said_to_be_one(place: HistoryLocation) -> None:
    with open_store(place) as store:
        for number in range(40):
            store.add(run_at(number))
    assert place.file
    data = bytearray(place.file.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    place.file.write_bytes(data)
    with pytest.raises(StoreError, match="the file is damaged"), open_store(place) as store:
        store.entries(ALL, 10)


def test_a_driver_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "psycopg", None)
    place = resolve_location("postgresql://me:s3cret@127.0.0.1:1/bench")
    assert place
    with (
        pytest.raises(StoreError, match="driver for PostgreSQL") as caught,
        open_store(place),
    ):
        pass
    assert pip_command("etdeploy[postgres]") in str(caught.value)


@pytest.mark.parametrize("read_only", [True, False])
def test_a_folder_or_a_device_is_no_history(read_only: bool, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for path, what in ((tmp_path / "folder", "a folder"), (Path("/dev/null"), "a device")):
        with (
            pytest.raises(StoreError, match=f" is {what}"),
            open_store(HistoryLocation(str(path), path), read_only=read_only),
        ):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_all_runs_of_many_series_with_few_statements(
    place: HistoryLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(place) as store:
        for number in range(12):
            name = f"recipe-{number % 4}"
            store.add(run_at(number, 1.0 + number, run_id=f"r{number}", recipe=recipe_named(name)))
        keys = [each.series.key for each in store.series(ALL)]
        statements: list[str] = []
        monkeypatch.setattr("etdeploy.history.store.store._SERIES_AT_ONCE", 3)
        event.listen(store._engine, "before_cursor_execute", lambda *a: statements.append(a[2]))
        found = dict(store.entries_of_series([*keys, "0" * 16]))
        assert len([each for each in statements if each.startswith("SELECT")]) == 4
        assert list(found) == [*keys, "0" * 16]
        for key in keys:
            assert found[key] == store.entries(Filter(series=key), 100)
            assert [len(found[key]), len(found[key][0].metrics)] == [3, 5]
        since = run_at(8).started_at
        assert [e.run_id for _, of in store.entries_of_series(keys, since) for e in of] == [
            "r11", "r10", "r9", "r8",
        ]  # fmt: skip


def test_the_commits_of_all_runs(place: HistoryLocation) -> None:
    with open_store(place) as store:
        for second, revision in enumerate(("a" * 40, "b" * 40, "a" * 40, None)):
            store.add(run_at(second, recipe=recipe_named("mlp", git_revision=revision)))
        assert store.revisions() == {"a" * 40, "b" * 40}
        assert store.revisions(run_at(2).started_at) == {"a" * 40}


def test_the_health_of_devices_by_week(place: HistoryLocation) -> None:
    with open_store(place) as store:
        keep_weeks(store)
        with store.transaction() as connection:
            days, names = device_days(connection)
            later, _ = device_days(connection, "2026-11-09")
    phone, other = device_health(days, names, {"android-S2": "it is hot"})
    assert (phone.device, phone.identity, phone.quarantined) == ("android:S1", "android-S1", "")
    first, second = phone.weeks
    assert (first.week, second.week) == ("2026-11-02", "2026-11-09")
    assert (first.attempts, first.failed, first.device_failures) == (4, 2, 1)
    assert (first.lost, first.put_off) == (0, 0)
    assert (first.runs, first.disturbed, first.disturbed_percent) == (3, 1, 33.33)
    assert (first.failed_percent, first.nights, first.quarantined_percent) == (50.0, 2, 0.0)
    assert (second.attempts, second.lost, second.put_off, second.failed_percent) == (2, 1, 1, 0.0)
    assert (second.runs, second.disturbed_percent) == (0, None)
    assert (other.device, other.quarantined) == ("android:S2", "it is hot")
    [week] = other.weeks
    assert (week.nights, week.quarantined_nights, week.quarantined_percent) == (2, 1, 50.0)
    assert (week.attempts, week.failed_percent) == (0, None)
    assert {day.day for day in later} == {"2026-11-09"}
