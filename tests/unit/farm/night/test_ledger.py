"""The ledger with a SQLite file, and with a database that comes and goes."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from etdeploy.farm.model import AttemptFailure, Fate, Standing
from etdeploy.farm.night import ledger as module
from etdeploy.farm.night import outbox
from etdeploy.farm.night.dependencies import earlier_times
from etdeploy.farm.night.lease import Lease, TakenError
from etdeploy.farm.night.ledger import Ledger
from etdeploy.farm.night.outbox import Outbox
from etdeploy.farm.night.scheduler import UNKNOWN_S
from etdeploy.history.location import HistoryLocation, require_location
from etdeploy.history.store.store import Filter, open_store
from tests.support.judged_nights import farm
from tests.support.nights import NOW, make_ending, make_visit, measured
from tests.support.processes import eventually


@pytest.fixture
def place(data_folder: Path) -> HistoryLocation:
    return require_location(None)


class Said(list[str]):
    """What a ledger told."""

    @property
    def text(self) -> str:
        return "\n".join(self)


@pytest.fixture
def said() -> Said:
    return Said()


@contextmanager
def opened(place: HistoryLocation, said: Said, digest: str = "d", **options: Any) -> Iterator[Any]:
    """A ledger with an open night, and its id."""
    with Ledger(place, tell=said.append, now=lambda: NOW, **options) as ledger:
        night = ledger.open_night("nightly", digest, NOW).night
        yield ledger, night


def kept_runs(place: HistoryLocation) -> list[str]:
    with open_store(place, read_only=True) as store:
        return [entry.run_id for entry in store.entries(Filter(), 99)]


class Down:
    """A database that can be taken away, and that answers nothing then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from etdeploy.history.store import store
        from etdeploy.history.store.errors import UnreachableError

        self.now = False
        real = store.Store.transaction

        def transaction(own: Any, *, writes: bool = False) -> Any:
            if self.now:
                raise UnreachableError("it is gone")
            return real(own, writes=writes)

        monkeypatch.setattr(store.Store, "transaction", transaction)
        monkeypatch.setattr(outbox, "_FIRST_S", 0.02)
        monkeypatch.setattr(outbox, "_LONGEST_S", 0.05)
        monkeypatch.setattr(module, "_AGAIN_S", 0.02)


@pytest.fixture
def down(monkeypatch: pytest.MonkeyPatch) -> Down:
    return Down(monkeypatch)


def test_the_end_waits_for_a_database_that_has_much_to_take_in(
    place: HistoryLocation,
    said: Said,
    tmp_path: Path,
    down: Down,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox, "_WAIT_S", 0.05)
    monkeypatch.setattr(outbox, "_FIRST_S", 60.0)  # not by itself meanwhile
    monkeypatch.setattr(outbox, "_LONGEST_S", 60.0)
    real = outbox.import_event

    def slowly(*arguments: Any) -> None:
        time.sleep(0.03)
        real(*arguments)

    with opened(place, said) as (ledger, night):
        ledger.plan([make_visit(night, number) for number in range(4)])
        down.now = True
        ends = [measured(tmp_path, f"{night}-{number}") for number in range(4)]
        for end in ends:
            ledger.ended(end)
        down.now = False
        monkeypatch.setattr(outbox, "import_event", slowly)
        ledger.finish(night)
        # The verdicts are made from the history now.
        assert sorted(kept_runs(place)) == sorted(str(end.run_id) for end in ends)
        assert [kept.outcome for kept in ledger.nights("nightly")] == ["finished"]
    assert "queued locally" not in said.text


def test_nothing_is_made_by_reading(place: HistoryLocation, said: Said) -> None:
    with Ledger(place, tell=said.append) as ledger:
        assert ledger.nights() == ()
    assert place.file
    assert not place.file.exists()


def test_a_night_that_began_too_long_ago_is_abandoned(place: HistoryLocation, said: Said) -> None:
    with opened(place, said) as (ledger, night):
        ledger.plan([make_visit(night, 1)])
    with Ledger(place, tell=said.append) as ledger:
        another = ledger.open_night("nightly", "d", NOW + timedelta(hours=21))
        assert another.night != night
        assert another.states == ()
        [_, old] = ledger.nights()
        assert (old.id, old.outcome) == (night, "abandoned")
        [state] = ledger.states(night)
    assert state.standing == "missed"
    assert state.reason
    assert f"the unfinished night {night} is abandoned: it began too long ago" in said.text


def test_a_farm_is_held_before_its_night_begins(
    place: HistoryLocation, said: Said, tmp_path: Path
) -> None:
    with Ledger(place, tell=said.append) as first, Ledger(place) as second:
        first.claim("nightly")
        assert place.file
        assert not place.file.exists()
        for refused in (second.claim, lambda farm: second.open_night(farm, "d", NOW)):
            with pytest.raises(TakenError, match=r"nightly: process \d+ on"):
                refused("nightly")
        second.claim("weekly")
        first.open_night("nightly", "d", NOW)
        # As on another host: only the database knows.
        refusal = pytest.raises(TakenError, match="the farm nightly")
        with Ledger(place, folder=tmp_path) as elsewhere, refusal:
            elsewhere.claim("nightly")
    with Ledger(place, folder=tmp_path) as elsewhere:
        elsewhere.claim("nightly")
        # That one waits for its window, and holds the farm as long as that takes.
        with Ledger(place) as first, pytest.raises(TakenError, match="running the farm nightly"):
            first.claim("nightly")
    with Ledger(place) as first:
        first.claim("nightly")


def test_a_coordinator_that_waits_for_its_window_says_that_it_lives(
    place: HistoryLocation, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(place, said):
        pass
    beats: list[bool] = []
    monkeypatch.setattr(outbox, "_BEAT_S", 0.02)
    monkeypatch.setattr(Lease, "take", lambda *_, anew=True: beats.append(anew))
    with Ledger(place, tell=said.append) as ledger:
        ledger.claim("nightly")
        assert eventually(lambda: len(beats) > 2)
    assert beats[0]
    assert not any(beats[1:])  # one that was paused does not take its farm back


def test_a_farm_is_held_while_the_database_is_down(
    place: HistoryLocation, said: Said, down: Down
) -> None:
    with opened(place, said):
        pass
    down.now = True
    with Ledger(place, tell=said.append) as first, Ledger(place) as second:
        first.claim("nightly")
        with pytest.raises(TakenError):
            second.claim("nightly")


def test_a_database_that_is_down_at_the_beginning_is_told_of_once(
    place: HistoryLocation, said: Said, down: Down
) -> None:
    with opened(place, said):
        pass
    said.clear()
    down.now = True
    with Ledger(place, tell=said.append, opening_s=0.0) as ledger:
        assert earlier_times(ledger, farm(), said.append).expected_s("mlp") == UNKNOWN_S
        ledger.open_night("nightly", "another", NOW)
        assert len(said) == 1
    assert "0 min" in said[0]
    assert "it is gone" in said[0]


def test_a_process_that_is_gone_is_followed_at_once_here_and_later_elsewhere(
    place: HistoryLocation, said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lease, "give_back", lambda *_: None)  # as one that was killed
    for _ in range(2):
        with opened(place, said):
            pass
    with Ledger(place, folder=tmp_path) as elsewhere, pytest.raises(TakenError):
        elsewhere.open_night("nightly", "d", NOW)
    assert place.file
    with closing(sqlite3.connect(place.file)) as connection:
        connection.execute("UPDATE etdeploy_coordinators SET beat_at = '2026-01-01T00:00:00+00:00'")
        connection.commit()
    with Ledger(place, folder=tmp_path, tell=said.append) as elsewhere:
        elsewhere.open_night("nightly", "d", NOW)


def test_a_process_whose_farm_was_taken_begins_nothing_more(
    place: HistoryLocation, said: Said
) -> None:
    with opened(place, said) as (ledger, night):
        ledger.plan([make_visit(night, 1), make_visit(night, 2)])
        ledger.running(f"{night}-1", 1, "android-A", "wolf")
        assert place.file
        with closing(sqlite3.connect(place.file)) as connection:
            connection.execute("UPDATE etdeploy_coordinators SET token = 'x', who = 'eve@owl'")
            connection.commit()
        with pytest.raises(TakenError, match="eve@owl is running"):
            ledger.running(f"{night}-2", 1, "android-A", "wolf")
        ledger.ended(make_ending(f"{night}-1", run_id="r"))
    with Ledger(place) as reader:
        assert [state.standing for state in reader.states(night)] == ["done", "waiting"]
    with closing(sqlite3.connect(place.file)) as connection:
        assert connection.execute("SELECT who FROM etdeploy_coordinators").fetchall() == [
            ("eve@owl",)
        ]


def outboxes(data_folder: Path) -> list[Path]:
    return sorted((data_folder / "farm").glob("*.outbox.jsonl"))


def require_imported(ledger: Ledger) -> None:
    assert eventually(lambda: ledger._importer.drain(10.0) is None)


def test_a_database_that_is_down_for_a_while(
    place: HistoryLocation, said: Said, down: Down, tmp_path: Path, data_folder: Path
) -> None:
    with opened(place, said) as (ledger, night):
        visits = [make_visit(night, number) for number in range(3)]
        ledger.plan(visits)
        ledger.running(visits[0].id, 1, "android-A", "wolf")
        down.now = True
        done = measured(tmp_path, visits[0].id)
        ledger.ended(done)
        ledger.running(visits[1].id, 1, "android-A", "wolf")
        ledger.give_up(visits[2].id, Standing.MISSED, "no device")
        ledger.ended(measured(tmp_path, visits[0].id, 2))
        before = ledger.states(night)
        assert [state.standing for state in before] == ["done", "running", "missed"]
        assert len(outboxes(data_folder)) == 1
        assert said.text.count("it is gone") == 1
        down.now = False
        require_imported(ledger)
        ledger.finish(night)
    assert outboxes(data_folder) == []
    with Ledger(place) as reader:
        assert reader.states(night) == before
    assert kept_runs(place) == [done.run_id]


def test_a_crash_while_it_is_down(
    place: HistoryLocation, said: Said, down: Down, tmp_path: Path, data_folder: Path
) -> None:
    with opened(place, said) as (ledger, night):
        visits = [make_visit(night, number) for number in range(2)]
        ledger.plan(visits)
        down.now = True
        ledger.running(visits[0].id, 1, "android-A", "wolf")
        done = measured(tmp_path, visits[0].id)
        ledger.ended(done)
    [path] = outboxes(data_folder)
    with path.open("ab") as stream:
        stream.write(b'{"op": "ended", "endi')
    # Still down: the outbox alone tells how far the night was.
    with opened(place, said, opening_s=60.0) as (ledger, again):
        assert again == night
        assert [state.standing for state in ledger.states(night)] == ["done", "waiting"]
        ledger.running(visits[1].id, 1, "android-A", "wolf")
    down.now = False
    with opened(place, said) as (ledger, again):
        assert again == night
        states = ledger.states(night)
        assert states[0].result == done
        assert [end.fate for end in states[1].attempts] == [Fate.LOST]
        assert Outbox(path).is_imported
    assert kept_runs(place) == [done.run_id]
    assert "cannot be read" not in said.text


def test_a_night_begins_without_a_database(place: HistoryLocation, said: Said, down: Down) -> None:
    with opened(place, said) as (_, left):
        pass
    down.now = True
    with opened(place, said, digest="e", opening_s=0.0) as (ledger, night):
        ledger.plan([make_visit(night, 1)])
        ledger.ended(make_ending(f"{night}-1", run_id="r"))
        down.now = False
        require_imported(ledger)
        assert eventually(lambda: "is abandoned" in said.text)
        outcomes = {kept.id: kept.outcome for kept in ledger.nights()}
    assert outcomes == {left: "abandoned", night: None}
    with Ledger(place) as reader:
        [state] = reader.states(night)
    assert state.standing is Standing.DONE


def test_what_a_crash_printed_goes_into_every_database(place: HistoryLocation, said: Said) -> None:
    failure = AttemptFailure(kind="run", exit_code=7, message="\0 and \udcff")
    with opened(place, said) as (ledger, night):
        ledger.plan([make_visit(night, 1)])
        ending = make_ending(f"{night}-1", fate=Fate.FAILED, failure=failure, seconds=float("nan"))
        ledger.ended(ending)
        ledger.ended(ending)
        [state] = ledger.states(night)
    [end] = state.attempts
    assert end.failure
    assert end.failure.message == "\N{REPLACEMENT CHARACTER} and ?"


def test_a_record_that_is_gone_is_said_and_nothing_else(
    place: HistoryLocation, said: Said, tmp_path: Path
) -> None:
    with opened(place, said) as (ledger, night):
        ledger.plan([make_visit(night, 1)])
        ending = make_ending(f"{night}-1", run_id="r", record=str(tmp_path / "gone.json"))
        ledger.ended(ending)
        assert ledger.states(night)[0].standing is Standing.DONE
    assert len(said) == 1
    assert kept_runs(place) == []


def test_a_visit_that_nobody_planned_is_said(place: HistoryLocation, said: Said) -> None:
    with opened(place, said) as (ledger, night):
        ledger.give_up("nothing", Standing.MISSED, "why")
        assert ledger.states(night) == ()
    assert "no visit nothing" in said.text
