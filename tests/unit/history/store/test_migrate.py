"""From older tables to newer ones, and nothing from newer ones."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from etdeploy.core.errors import StoreError
from etdeploy.history.location import HistoryLocation
from etdeploy.history.series import series_from
from etdeploy.history.store import tables
from etdeploy.history.store.alerts import alerts_of_series, save_alert
from etdeploy.history.store.errors import create_store_engine
from etdeploy.history.store.store import SCRIPTS, Filter, migrate, open_store, revision_of
from tests.support.bench_values import make_record
from tests.support.histories import fill, make_alert, run_at

VERSION = "SELECT version_num FROM etdeploy_history"
_NEXT = """
import sqlalchemy as sa
from alembic import op
revision, down_revision = "0099", {before!r}
branch_labels = depends_on = None
def upgrade():
    op.add_column("etdeploy_runs", sa.Column("mood", sa.Text, server_default="fine"))
    {then}
"""


@pytest.fixture
def later(tmp_path: Path) -> Path:
    """The scripts of a later release, which has one more."""
    return scripts(tmp_path)


def scripts(folder: Path, then: str = "") -> Path:
    copy = folder / "migrations"
    shutil.copytree(SCRIPTS, copy, ignore=shutil.ignore_patterns("__pycache__"))
    text = _NEXT.format(before=tables.REVISION, then=then)
    (copy / "versions" / "0099_mood.py").write_text(text)
    return copy


def asked(file: Path | None, query: str) -> list[tuple[object, ...]]:
    assert file
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute(query).fetchall()


def test_the_migrations_give_the_tables(place: HistoryLocation) -> None:
    engine = create_store_engine(place)
    for _ in range(2):
        migrate(engine, place)
    assert place.file
    assert list(place.file.parent.glob("history.db.revision-*")) == []
    with engine.connect() as connection:
        options = {"version_table": tables.VERSION_TABLE, "compare_type": True}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, tables.metadata) == []
    assert revision_of(engine, place) == tables.REVISION


def test_an_older_history_is_copied_and_brought_up(place: HistoryLocation, later: Path) -> None:
    with open_store(place) as store:
        fill(store, [1.0, 2.0])
    migrate(create_store_engine(place), place, later)
    assert asked(place.file, "SELECT mood FROM etdeploy_runs") == [("fine",), ("fine",)]
    assert place.file
    copy = place.file.with_name(f"history.db.revision-{tables.REVISION}")
    assert asked(copy, "SELECT count(*) FROM etdeploy_records") == [(2,)]
    assert asked(copy, VERSION) == [(tables.REVISION,)]


def _before_0004(file: Path | None, series: str) -> None:
    """As revision 0003 left it: what recipes set does not divide a series."""
    assert file
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("UPDATE etdeploy_runs SET series = ?", (series,))
        connection.execute("DELETE FROM etdeploy_series WHERE key <> ?", (series,))
        connection.execute("UPDATE etdeploy_history SET version_num = '0003'")
        connection.commit()


def test_runs_whose_recipes_set_something_else_are_divided(place: HistoryLocation) -> None:
    content = {"export": {"rewrites": "none"}, "benchmark": {"iterations": 300}}
    recipe = make_record().recipe.model_copy(update={"content": content})
    plain, other = run_at(1), run_at(2, recipe=recipe)
    old, new = (series_from(each).key for each in (plain, other))
    with open_store(place) as store:
        for record in (plain, other, run_at(3, recipe=recipe), run_at(4)):
            store.add(record)
        alert = make_alert(series=old, first_bad_run=other.run_id)
        with store.transaction(writes=True) as connection:
            number = save_alert(connection, alert).id
            kept = save_alert(connection, make_alert(series=old, first_bad_run=plain.run_id)).id
    _before_0004(place.file, old)
    with open_store(place) as store:
        found = {each.series.key: each for each in store.series(Filter())}
        assert {key: each.runs for key, each in found.items()} == {old: 2, new: 2}
        assert found[new].series == series_from(other)
        with store.transaction() as connection:
            of_series = alerts_of_series(connection, [old, new])
        assert {key: [each.id for each in of] for key, of in of_series.items()} == {
            old: [kept],
            new: [number],
        }
        assert store.add(run_at(5, recipe=recipe))
        assert len(store.entries(Filter(series=new), 10)) == 3


def test_a_migration_that_fails_changes_nothing(place: HistoryLocation, tmp_path: Path) -> None:
    with open_store(place) as store:
        fill(store, [1.0])
    broken = scripts(tmp_path, then="raise RuntimeError('no')")
    with pytest.raises(RuntimeError):
        migrate(create_store_engine(place), place, broken)
    with open_store(place) as store:
        assert store.add(run_at(9))
        assert len(store.entries(Filter(), 9)) == 2


@pytest.mark.parametrize(
    ("revision", "wrote", "remedy"),
    [
        ("0099", "a newer etdeploy", "pip install --upgrade etdeploy"),
        ("0001", "an earlier etdeploy", "etdeploy history export runs.jsonl"),
    ],
)
def test_a_history_of_another_revision_is_left_alone(
    place: HistoryLocation, revision: str, wrote: str, remedy: str
) -> None:
    with open_store(place) as store:
        fill(store, [1.0])
    assert place.file
    with closing(sqlite3.connect(place.file)) as connection, connection:
        connection.execute("UPDATE etdeploy_history SET version_num = ?", (revision,))
    before = place.file.read_bytes()
    for read_only in (True, False):
        with (
            pytest.raises(StoreError, match=f"{wrote} wrote .* revision {revision}") as caught,
            open_store(place, read_only=read_only),
        ):
            pass
        assert remedy in str(caught.value)
    assert place.file.read_bytes() == before
    assert [path.name for path in place.file.parent.glob("history.db.rev*")] == []


def test_a_copy_that_cannot_be_made_stops_the_migration(
    place: HistoryLocation, later: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(place) as store:
        fill(store, [1.0])
    assert place.file
    # VACUUM INTO refuses a file that is there.
    copy = place.file.with_name(f"history.db.revision-{tables.REVISION}")
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)
    copy.write_text("not a database")
    with pytest.raises(StoreError, match="cannot be copied"):
        migrate(create_store_engine(place), place, later)
    assert asked(place.file, VERSION) == [(tables.REVISION,)]
