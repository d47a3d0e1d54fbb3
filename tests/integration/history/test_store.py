"""The same of both databases, and what each of them can refuse."""

from __future__ import annotations

import json
import secrets
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event, text

from etdeploy.bench.records.performance import Disturbance, DisturbanceKind
from etdeploy.bench.records.stored import StoredRun, parse_record
from etdeploy.core.errors import BuildError, StoreError
from etdeploy.farm.verdicts.night import judge_night
from etdeploy.history import record_sink as module
from etdeploy.history import record_sink as pending
from etdeploy.history.alerts import Alert, AlertState
from etdeploy.history.check import OUTPUTS
from etdeploy.history.entry import Judgement
from etdeploy.history.location import HistoryLocation, require_location
from etdeploy.history.nights import KeptNight, device_health
from etdeploy.history.record_sink import import_pending, save_run
from etdeploy.history.store import errors as connect
from etdeploy.history.store import retention, tables
from etdeploy.history.store.alerts import find_alert, save_alert, stored_alerts
from etdeploy.history.store.errors import create_store_engine
from etdeploy.history.store.nights import add_night, device_days, end_night, nights_of
from etdeploy.history.store.retention import Pruned, compact, prune
from etdeploy.history.store.store import Filter, Store, migrate, open_store
from tests.integration.cache.test_disk import tmpfs
from tests.support.bench_values import make_device
from tests.support.histories import fill, make_alert, recipe_named, run_at
from tests.support.judged_nights import done, farm, keep_nights, night_id, quiet
from tests.support.postgres import Postgres, postgres
from tests.support.shelf_weeks import keep_weeks
from tests.unit.history.store.test_migrate import scripts

__all__ = ["postgres"]
pytestmark = pytest.mark.integration
ALL = Filter()
HOT = Disturbance(kind=DisturbanceKind.THROTTLED, text="the cores slowed down")


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_warned", set())
    monkeypatch.setattr(module, "_failed", set())


@pytest.fixture
def database(postgres: Postgres) -> HistoryLocation:
    """A new database of PostgreSQL."""
    return require_location(postgres.new_database(f"history_{secrets.token_hex(4)}"))


@pytest.fixture
def file(tmp_path: Path) -> HistoryLocation:
    """A new SQLite file."""
    return require_location(str(tmp_path / "a folder" / "history.db"))


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest) -> HistoryLocation:
    found: HistoryLocation = request.getfixturevalue(
        "file" if request.param == "sqlite" else "database"
    )
    return found


@contextmanager
def engine(place: HistoryLocation) -> Iterator[Engine]:
    """A way in beside the history's own."""
    made = create_store_engine(place)
    try:
        yield made
    finally:
        made.dispose()


def test_everything_that_is_asked_of_a_history(place: HistoryLocation) -> None:
    phone = make_device("android", name="android:A1", serial="A1", model="Pixel_9 100%")
    record = run_at(3, device=phone, recipe=recipe_named("other"), notes=("naïve 'quote'",))
    with open_store(place) as store:
        fill(store, [1.0, 2.0, 3.0])
        assert store.add(record)
        assert not store.add(record)
        store.judge([record.run_id], Judgement.REGRESSED)
    with open_store(place, read_only=True) as store:
        assert [(known.series.recipe, known.runs) for known in store.series(ALL)] == [
            ("other", 1), ("mlp", 3),
        ]  # fmt: skip
        [known] = store.series(Filter(device="pixel_9 100"))
        entries = store.entries(Filter(recipe="mlp"), 2)
        assert [entry.metrics["latency_ms"] for entry in entries] == [2.0, 3.0]
        [entry] = store.entries(Filter(series=known.series.key), 9)
        assert (entry.judgement, entry.outputs_ok, entry.git_dirty) == ("regressed", True, None)
        assert store.ids(record.run_id[-8:]) == [record.run_id]
        content = store.content(record.run_id)
        assert parse_record(json.dumps(content), "") == record
        assert len(list(store.contents(ALL))) == store.count() == 4
    with open_store(place) as store:
        assert store.remove([record.run_id]) == 1
        assert store.count() == 3


def test_months_of_series_and_devices(place: HistoryLocation) -> None:
    with open_store(place) as store:
        keep_weeks(store)
        fill(store, [1.0, 2.0, 3.0])
        keys = [known.series.key for known in store.series(ALL)]
        found = dict(store.entries_of_series(keys))
        assert found == {key: store.entries(Filter(series=key), 9) for key in keys}
        assert [len(entries) for entries in found.values()] == [3, 3]
        with store.transaction() as connection:
            health = device_health(*device_days(connection), {})
    assert [(d.device, [(w.week, w.failed, w.device_failures, w.put_off, w.disturbed,
                         w.quarantined_nights) for w in d.weeks]) for d in health] == [
        ("android:S1", [("2026-11-02", 2, 1, 0, 1, 0), ("2026-11-09", 0, 0, 1, 0, 0)]),
        ("android:S2", [("2026-11-02", 0, 0, 0, 0, 1)]),
        ("host (Test CPU)", [("2026-11-16", 0, 0, 0, 0, 0)]),
    ]  # fmt: skip


_WRITER = """
import sys
from etdeploy.history.location import require_location
from etdeploy.history.store.store import open_store
from tests.support.histories import run_at
with open_store(require_location(sys.argv[1])) as store:
    for i in range(25):
        store.add(run_at(i, run_id=f"{sys.argv[2]}-{i}"))
        store.add(run_at(i, run_id=f"both-{i}"))
"""


def test_two_processes_make_it_and_write_at_once(place: HistoryLocation) -> None:
    where = place.url or str(place.file)
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", _WRITER, where, name], stderr=subprocess.PIPE, text=True
        )
        for name in ("one", "two")
    ]
    for writer in writers:
        assert (writer.communicate()[1], writer.returncode) == ("", 0)
    with open_store(place) as store:
        assert store.count() == 75


def test_an_older_history_is_brought_up_by_one_of_two(
    place: HistoryLocation, tmp_path: Path
) -> None:
    with open_store(place) as store:
        fill(store, [1.0])
    later = scripts(tmp_path)
    errors: list[BaseException] = []

    def upgrade() -> None:
        try:
            with engine(place) as made:
                migrate(made, place, later)
        except BaseException as error:
            errors.append(error)

    both = [threading.Thread(target=upgrade) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert errors == []
    with engine(place) as made, made.connect() as connection:
        assert connection.scalar(text("SELECT mood FROM etdeploy_runs")) == "fine"
    with (
        pytest.raises(StoreError, match=r"a newer etdeploy wrote this history"),
        open_store(place),
    ):
        pass


def test_other_tables_of_a_database_stay(database: HistoryLocation, postgres: Postgres) -> None:
    name = database.shown.rpartition("/")[2]
    songs = "CREATE TABLE alembic_version (version_num text); INSERT INTO alembic_version VALUES "
    postgres.sql(f"{songs} ('theirs')", database=name)
    with open_store(database) as store:
        fill(store, [1.0])
    with engine(database) as made, made.connect() as connection:
        assert connection.scalar(text("SELECT version_num FROM alembic_version")) == "theirs"


def refused(place: HistoryLocation, *, read_only: bool = False) -> str:
    with pytest.raises(StoreError) as caught, open_store(place, read_only=read_only) as store:
        store.add(run_at(77))
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_an_earlier_history_is_refused_and_left_alone(place: HistoryLocation) -> None:
    with open_store(place) as store:
        fill(store, [1.0])
    with engine(place) as made, made.begin() as connection:
        connection.execute(text("UPDATE etdeploy_history SET version_num = '0001'"))
    for read_only in (True, False):
        told = refused(place, read_only=read_only)
        assert "0001" in told
        assert "etdeploy history export" in told
    with engine(place) as made, made.connect() as connection:
        assert connection.scalar(text("SELECT version_num FROM etdeploy_history")) == "0001"
        assert connection.scalar(text("SELECT count(*) FROM etdeploy_records")) == 1


def test_a_server_that_is_down(database: HistoryLocation) -> None:
    told = refused(require_location("postgresql://me:s3cret@127.0.0.1:1/bench"))
    assert "Connection refused" in told
    assert "Look whether the server runs" in told
    assert "s3cret" not in told


def test_a_host_that_nobody_knows() -> None:
    told = refused(require_location("postgresql://me:s3cret@nobody.invalid/bench"))
    assert "the history cannot be used" in told
    assert "s3cret" not in told


def test_a_wrong_password_and_a_database_that_is_missing(postgres: Postgres) -> None:
    told = refused(require_location(postgres.url("postgres", "wr0ng")))
    assert "password authentication failed" in told
    assert "~/.pgpass" in told
    assert "wr0ng" not in told
    told = refused(require_location(postgres.url("nowhere")))
    assert 'database "nowhere" does not exist' in told
    assert "createdb" in told


def test_a_user_who_may_only_read(database: HistoryLocation, postgres: Postgres) -> None:
    with open_store(database) as store:
        fill(store, [1.0])
    name = database.shown.rpartition("/")[2]
    postgres.sql(
        "CREATE USER reader PASSWORD 'abc'",
        "GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader",
        database=name,
    )
    reader = require_location(f"postgresql://reader:abc@127.0.0.1:{postgres.port}/{name}")
    with open_store(reader, read_only=True) as store:
        assert store.count() == 1
    assert "permission denied" in refused(reader)


def test_tables_that_another_program_locked(
    database: HistoryLocation, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(database) as store:
        fill(store, [1.0])
    monkeypatch.setattr(connect, "PATIENCE_S", 0.1)
    with engine(database) as made, made.connect() as other, other.begin():
        other.execute(text("LOCK TABLE etdeploy_runs IN ACCESS EXCLUSIVE MODE"))
        assert "lock timeout" in refused(database)


def test_a_run_does_not_wait_for_a_server_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ETDEPLOY_STORE", "postgresql://me:s3cret@127.0.0.1:1/bench")
    runs = [StoredRun(tmp_path / str(i), run_at(i)) for i in range(2)]
    for run in runs:
        run.record.save(run.record_path)
        save_run(run)
    said = capsys.readouterr().err
    assert said.count("Connection refused") == 1
    assert "s3cret" not in said
    assert len(pending.pending_records(require_location(None))) == 2


def test_a_history_on_a_read_only_disk(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with tmpfs(tmp_path / "disk", "size=4m") as disk:
        place = require_location(str(disk / "history.db"))
        with open_store(place) as store:
            fill(store, [1.0, 2.0])
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with open_store(place, read_only=True) as store:
            assert store.count() == 2
        assert "cannot be" in refused(place)
        monkeypatch.setenv("ETDEPLOY_STORE", str(place.file))
        run = StoredRun(tmp_path / "run", run_at(9))
        run.record.save(run.record_path)
        save_run(run)
        assert "the history does not have this run yet" in capsys.readouterr().err
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        assert import_pending(place) == 1


def test_a_disk_that_fills_up(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", "size=400k") as disk:
        place = require_location(str(disk / "history.db"))
        with pytest.raises(BuildError, match="disk is full") as caught, open_store(place) as store:
            fill(store, [1.0] * 3000)
        assert caught.value.exit_code == 4
        with open_store(place, read_only=True) as store:
            kept = store.count()
            assert kept
            assert len(list(store.contents(ALL))) == kept


def test_a_migration_without_room_for_the_copy(tmp_path: Path) -> None:
    later = scripts(tmp_path)
    with tmpfs(tmp_path / "disk", "size=2m") as disk:
        place = require_location(str(disk / "history.db"))
        with open_store(place) as store:
            fill(store, [1.0] * 20)
        assert place.file
        room = shutil.disk_usage(disk).free - place.file.stat().st_size // 2
        (disk / "filling").write_bytes(b"x" * room)
        with (
            engine(place) as made,
            pytest.raises(StoreError, match="cannot be copied before"),
        ):
            migrate(made, place, later)
        assert not list(disk.glob("*.revision-*"))
        (disk / "filling").unlink()
        with open_store(place, read_only=True) as store:
            assert store.count() == 20


def test_a_reader_does_not_wait_for_a_writer(file: HistoryLocation) -> None:
    with open_store(file) as store:
        fill(store, [1.0])
    assert file.file
    with closing(sqlite3.connect(file.file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("UPDATE etdeploy_runs SET disturbed = 'x'")
        with open_store(file, read_only=True) as store:
            assert store.count() == 1


def test_a_night_and_a_person_who_change_an_alert_at_once_lose_nothing(
    database: HistoryLocation,
) -> None:
    alert = Alert(
        farm="shelf", series="s", metric="latency_ms", night="n1", recipe="mlp", device="a",
        identity="a", opened_at="2026-11-01T00:00:00+00:00", before=1.0, after=1.1,
    )  # fmt: skip
    with open_store(database) as store, store.transaction(writes=True) as connection:
        save_alert(connection, alert)
    person = threading.Thread(target=_close_first_alert, args=(database,))
    with open_store(database) as store, store.transaction(writes=True) as connection:
        [known] = stored_alerts(connection, "shelf", writes=True)
        person.start()
        person.join(0.5)
        assert person.is_alive()  # it waits for the night
        save_alert(connection, known.model_copy(update={"after": 1.2, "nights": 2}))
    person.join()
    with open_store(database) as store, store.transaction() as connection:
        [found] = stored_alerts(connection, "shelf")
    assert (found.state, found.after, found.nights) == (AlertState.FIXED, 1.2, 2)


def _close_first_alert(place: HistoryLocation) -> None:
    with open_store(place) as store, store.transaction(writes=True) as connection:
        found = find_alert(connection, 1, writes=True)
        assert found
        save_alert(connection, found.model_copy(update={"state": AlertState.FIXED}))


# --- many series, and old runs


def _series_of(store: Store) -> dict[str, str]:
    return {each.series.recipe: each.series.key for each in store.series(ALL)}


def _first_runs(store: Store, key: str) -> list[str]:
    return [entry.run_id for entry in store.entries(Filter(series=key), 1000)]


def test_what_came_before_the_runs_of_a_night_by_series(
    place: HistoryLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(place) as store:
        for recipe, start in (("a", 0), ("b", 1000)):
            for second in range(5):
                disturbed: dict[str, Any] = {"disturbances": (HOT,)} if second == 1 else {}
                store.add(run_at(start + second, recipe=recipe_named(recipe), **disturbed))
        keys = _series_of(store)
        by_a, by_b = (_first_runs(store, keys[recipe]) for recipe in "ab")
        night = [by_a[3], by_a[4], by_b[4]]
        assert {
            key: [entry.run_id for entry in found]
            for key, found in store.entries_before(night, 3).items()
        } == {keys["a"]: by_a[1:3], keys["b"]: by_b[2:4]}
        [fit] = [store.entries_before(night, 10, fit=True)[keys["a"]]]
        assert [entry.run_id for entry in fit] == [by_a[0], by_a[2]]
        assert fit[0].metrics == store.entries(Filter(series=keys["a"]), 9)[0].metrics != {}
        measured = store.measured_runs([*night, "absent"])
        assert sorted(measured) == sorted(night)
        assert measured[by_b[4]].entry == store.entry(by_b[4])
        assert measured[by_b[4]].device == "host (Test CPU)"
        assert measured[by_b[4]].device_name == "host"
        assert store.entries_before([], 3) == {}
        whole = store.entries_before(night, 3)
        # A statement that takes one value, so that the runs of a series are in several.
        monkeypatch.setattr(tables, "MOST_VALUES", 1)
        assert store.entries_before(night, 3) == whole
        assert sorted(store.measured_runs(night)) == sorted(night)
        assert store.measured_runs([]) == {}


def test_old_runs_are_deleted_but_not_those_that_are_referred_to(
    place: HistoryLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_BASELINE_RUNS", 2)
    with open_store(place) as store:
        # `alive` is still measured, `dead` is not.
        for recipe, seconds in (("alive", (*range(6), 3600)), ("dead", range(3))):
            for second in seconds:
                at = second if recipe == "alive" else 100 + second
                store.add(run_at(at, recipe=recipe_named(recipe)))
        keys = _series_of(store)
        alive = _first_runs(store, keys["alive"])
        nights = [
            KeptNight(id=name, farm="f", digest="d", started_at=run_at(second).started_at)
            for name, second in (("old", 0), ("running", 0), ("new", 3600))
        ]
        with store.transaction(writes=True) as connection:
            for night in nights:
                add_night(connection, night)
            for name in ("old", "new"):
                end_night(connection, name, run_at(3601).started_at, "finished")
            alert = make_alert(before_run=alive[0], first_bad_run=alive[1])
            save_alert(connection, alert)
        before = run_at(1800).started_at

        def pruned(**options: Any) -> Pruned:
            with store.transaction(writes=True) as connection:
                return prune(connection, options.pop("wanted", ALL), **options)

        expected = Pruned(runs=6, nights=1, referenced=3)
        assert pruned(before=before, dry_run=True) == expected
        assert store.count() == 10
        assert pruned(before=before) == expected
        assert _first_runs(store, keys["alive"]) == [*alive[:2], *alive[5:]]
        assert _series_of(store) == {"alive": keys["alive"]}
        with store.transaction() as connection:
            assert {night.id for night in nights_of(connection, "f", 9)} == {"running", "new"}
        late = run_at(7200).started_at
        assert pruned(records_before=late, dry_run=True) == Pruned(records=1)
        assert pruned(records_before=late) == Pruned(records=1)
        assert store.content(alive[5]) is None
        assert store.measured_runs(alive[5:6])[alive[5]].entry.metrics
        assert None not in (store.content(alive[1]), store.content(alive[6]))
        assert pruned(before=late, wanted=Filter(recipe="other")) == Pruned()
        assert store.measured_runs([alive[5]])[alive[5]].device_name == ""
    assert compact(place) == ""
    with open_store(place) as store:
        assert len(list(store.contents(ALL))) == 3


def test_the_judging_of_many_pairs_takes_few_statements(place: HistoryLocation) -> None:
    statements = []
    with open_store(place) as store:
        last = {
            (recipe, serial): keep_nights(store, quiet(6), recipe, serial)[-1]
            for recipe in ("a", "b", "c")
            for serial in ("S1", "S2")
        }
        states = [
            done(5, number, run, f"android-{serial}")
            for number, (serial, run) in enumerate(
                (serial, run) for (_, serial), runs in last.items() for run in runs
            )
        ]

        def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
            statements.append(statement)

        event.listen(Engine, "before_cursor_execute", note)
        try:
            verdicts = judge_night(store, night_id(5), states, farm())
        finally:
            event.remove(Engine, "before_cursor_execute", note)
    assert len(verdicts) == 6
    numbers = [f for each in verdicts for f in each.findings if f.metric != OUTPUTS]
    assert {finding.nights for finding in numbers} == {5}
    assert 4 <= len(statements) <= 12
