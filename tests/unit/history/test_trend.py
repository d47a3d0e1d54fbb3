"""Trends as values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from etdeploy.bench.records.record import RunRecord
from etdeploy.history.entry import entry_from
from etdeploy.history.series import series_from
from etdeploy.history.trend import Trend, compute_trend, spread_percent
from tests.support.bench_values import SIMULATED
from tests.support.histories import recipe_named, run_at


def trend(records: Sequence[RunRecord], metric: str = "latency_ms", runs: int = 0) -> Trend:
    entries = [entry_from(record)[0] for record in records]
    return compute_trend(series_from(records[0]), entries, metric, runs or len(records))


def stairs(**changes: Any) -> list[RunRecord]:
    old = {"recipe": recipe_named("mlp", git_revision="a" * 40, git_dirty=False)}
    new = {"recipe": recipe_named("mlp", git_revision="b" * 40, git_dirty=True)}
    wiggle = (0, 0.01, -0.01, 0.02, -0.02)
    return [
        *(run_at(i, 1.0 + wiggle[i % 5], **(old | changes)) for i in range(12)),
        *(run_at(60 + i, 1.5 + wiggle[i % 5], versions={"torch": "3"}, **new) for i in range(6)),
    ]


def test_a_change_says_what_else_changed() -> None:
    found = trend(stairs())
    [change] = found.changes
    assert (change.before, change.after, change.ratio) == (1.0, 1.5, 1.5)
    assert change.run_id == run_at(60).run_id
    assert [text.split()[:4] for text in change.differs] == [
        ["recipe", "aaaaaaaaaa", "->", "bbbbbbbbbb"],
        ["etdeploy", "0", "->", "none"],
        ["torch", "none", "->", "3"],
    ]
    assert change.differs[0].endswith("with changes")
    assert found.median == 1.5
    assert found.spread_percent is not None
    assert 0.5 < found.spread_percent < 3


def test_simulated_runs_are_left_out() -> None:
    records = [run_at(i, 1.0, simulated=SIMULATED) for i in range(9)]
    found = trend(records)
    assert (found.points, found.median) == ((), None)


def test_the_spread_of_few_values() -> None:
    assert spread_percent([1.0, 2.0]) is None
    assert spread_percent([0.0, 0.0, 0.0]) is None
    assert spread_percent([1.0, 1.0, 1.0]) == 0
