"""The history in a SQLite file."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from etdeploy.core.commands import pip_command
from etdeploy.core.errors import StoreError
from etdeploy.history.location import HistoryLocation, resolve_location
from etdeploy.history.store.store import Filter, open_store
from tests.support.bench_values import make_device
from tests.support.histories import run_at

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
