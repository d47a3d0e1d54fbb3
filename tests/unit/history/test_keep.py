"""Every record is kept, and a history that fails costs nothing but a warning."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from etdeploy.bench.records.record import RunRecord
from etdeploy.bench.records.stored import RECORD_FILE, StoredRun
from etdeploy.core import cancel
from etdeploy.core.errors import Interrupted, StoreError
from etdeploy.history import record_sink as module
from etdeploy.history import record_sink as pending
from etdeploy.history.location import HistoryLocation, require_location
from etdeploy.history.record_sink import import_pending, save_run
from etdeploy.history.store import errors
from etdeploy.history.store.store import Filter, open_store
from tests.support.histories import run_at


def stored(folder: Path, record: RunRecord) -> StoredRun:
    run = StoredRun(folder / record.run_id, record)
    record.save(run.record_path)
    return run


def kept(place: HistoryLocation) -> list[str]:
    with open_store(place, read_only=True) as store:
        return [entry.run_id for entry in store.entries(Filter(), 99)]


def break_it(place: HistoryLocation) -> None:
    """Puts something else in the history's place."""
    assert place.file
    place.file.parent.mkdir(parents=True, exist_ok=True)
    place.file.write_text("not a database at all, but long enough to be read as one" * 9)


def test_what_could_not_be_kept_is_brought_in_later(
    place: HistoryLocation,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    break_it(place)
    first, second, third = (stored(tmp_path, run_at(i)) for i in range(3))
    save_run(first)
    save_run(second)
    said = capsys.readouterr().err
    assert said.count("the history does not") == 1
    assert "a SQLite database" in said
    assert said.count("etdeploy history") == 1
    assert [entry.record for entry in pending.pending_records(place)] == [
        first.record_path, second.record_path,
    ]  # fmt: skip
    assert place.file
    place.file.unlink()
    monkeypatch.setattr(module, "_failed", set())
    save_run(third)
    assert kept(place) == [run.record.run_id for run in (first, second, third)]
    assert pending.pending_records(place) == []
    assert import_pending(place) == 0


def test_what_waits_for_one_history_goes_into_no_other(
    place: HistoryLocation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    break_it(place)
    save_run(stored(tmp_path, run_at(0)))
    capsys.readouterr()
    other = require_location(str(tmp_path / "other.db"))
    assert import_pending(other) == 0
    assert len(pending.pending_records(place)) == 1


def test_a_folder_that_was_moved_is_told_and_given_up(
    place: HistoryLocation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone, there = stored(tmp_path, run_at(0)), stored(tmp_path, run_at(1))
    pending.add_pending(gone.record_path, place)
    pending.add_pending(there.record_path, place)
    shutil.rmtree(gone.folder)
    assert import_pending(place) == 1
    assert str(gone.record_path) in capsys.readouterr().err
    assert kept(place) == [there.record.run_id]
    assert pending.pending_records(place) == []


def test_a_history_that_fails_half_way_keeps_the_rest_waiting(
    place: HistoryLocation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [stored(tmp_path, run_at(i)) for i in range(3)]
    for run in runs:
        pending.add_pending(run.record_path, place)
    from etdeploy.history.store.store import Store

    real = Store.add

    def fails(self: Store, record: RunRecord) -> bool:
        if record.run_id == runs[1].record.run_id:
            raise StoreError("it went away")
        return real(self, record)

    monkeypatch.setattr(Store, "add", fails)
    with pytest.raises(StoreError):
        import_pending(place)
    assert [entry.record for entry in pending.pending_records(place)] == [
        run.record_path for run in runs[1:]
    ]


def test_a_locked_history(
    place: HistoryLocation,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    save_run(stored(tmp_path, run_at(0)))
    monkeypatch.setattr(errors, "PATIENCE_S", 0.1)
    assert place.file
    with closing(sqlite3.connect(place.file, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        save_run(stored(tmp_path, run_at(1)))
    said = capsys.readouterr().err
    assert "has locked it" in said
    assert f"fuser -v {place.file}" in said
    assert len(pending.pending_records(place)) == 1


def test_no_place_for_the_list_either(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    run = stored(tmp_path, run_at(0))
    save_run(run)
    said = capsys.readouterr().err
    assert "Not a directory" in said
    assert f"etdeploy history import {run.record_path}" in said


def test_a_wrong_variable_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ETDEPLOY_STORE", "mysql://root:s3cret@db/bench")
    run = stored(tmp_path, run_at(0))
    save_run(run)
    said = capsys.readouterr().err
    assert "SQLite or PostgreSQL" in said
    assert f"etdeploy history import {run.record_path}" in said
    assert "s3cret" not in said


def test_no_history_is_wanted(
    data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ETDEPLOY_STORE", "none")
    save_run(stored(tmp_path, run_at(0)))
    assert not data_folder.exists()


def test_a_bug_is_no_failure_of_the_run(
    place: HistoryLocation,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def bug(*_: object) -> None:
        raise KeyError("oh")

    monkeypatch.setattr(module, "_save", bug)
    save_run(stored(tmp_path, run_at(0)))
    assert "KeyError: 'oh'" in capsys.readouterr().err
    assert len(pending.pending_records(place)) == 1


def test_a_stop_leaves_the_record_waiting(
    place: HistoryLocation,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = stored(tmp_path, run_at(0))
    with cancel.trapped_signals():
        cancel.current().set()
        # The tables have to be made, under a lock that looks for a stop.
        with pytest.raises(Interrupted):
            save_run(run)
    capsys.readouterr()
    assert [entry.record.name for entry in pending.pending_records(place)] == [RECORD_FILE]


def test_a_line_that_was_cut_off_is_passed_over(place: HistoryLocation, data_folder: Path) -> None:
    pending.add_pending(Path("/a/record.json"), place)
    with (data_folder / "pending.jsonl").open("a") as stream:
        stream.write('{"record": "/b/rec')
    assert [entry.record for entry in pending.pending_records(place)] == [Path("/a/record.json")]
