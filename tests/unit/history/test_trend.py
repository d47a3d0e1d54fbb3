"""Trends as values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from etdeploy.bench.records.record import RunRecord
from etdeploy.history.entry import HistoryEntry, entry_from
from etdeploy.history.series import series_from
from etdeploy.history.trend import (
    SeriesTrends,
    Trend,
    compute_series_trends,
    compute_trend,
    describe_environment,
    spread_percent,
)
from tests.support.bench_values import SIMULATED, make_device
from tests.support.histories import recipe_named, run_at
from tests.support.judged_nights import run_of


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


def over_nights(records: Sequence[RunRecord]) -> SeriesTrends:
    return compute_series_trends(
        series_from(records[0]), [entry_from(record)[0] for record in records]
    )


def test_a_night_is_one_value_however_many_repeats_it_has() -> None:
    # Nights are 5 % apart, their repeats are alike: from run to run, that looks like many levels.
    levels = [1.0, 1.05, 0.98, 1.02, 0.96, 1.04, 1.01, 0.97, 1.03, 0.99, 1.05, 0.95]
    quiet = [run_of(day, i, level + i / 1e4) for day, level in enumerate(levels) for i in range(3)]
    found = over_nights(quiet)
    assert len(found.nights) == 12
    assert found.levels["latency_ms"].changes == ()
    assert found.levels["latency_ms"].values[:2] == (1.0001, 1.0501)
    slow = [run_of(12 + day, i, 1.3 * level + i / 1e4, disturbances=()) for day, level in
            enumerate(levels) for i in range(3)]  # fmt: skip
    levels_of = over_nights([*quiet, *slow]).levels["latency_ms"]
    [change] = levels_of.changes
    assert change.run_id == slow[0].run_id
    assert change.before == levels_of.changes[0].before == 1.0051
    assert round(change.ratio, 3) == 1.3
    assert change.differs == ("recipe 0b0b0b0b0b -> 0c0c0c0c0c",)
    assert (levels_of.latest, round(levels_of.median, 3)) == (1.3 * 0.95 + 1 / 1e4, 1.307)


def test_runs_of_one_evening_are_compared_with_each_other() -> None:
    found = over_nights(stairs())
    assert len(found.nights) == 1
    assert [change.run_id for change in found.levels["latency_ms"].changes] == [run_at(60).run_id]


def test_the_number_that_runs_are_compared_by_comes_first() -> None:
    found = over_nights([run_at(0), run_at(1, simulated=SIMULATED)])
    assert list(found.levels) == [
        "latency_ms", "first_inference_ms", "load_ms", "peak_rss_bytes", "program_bytes",
    ]  # fmt: skip
    assert [len(night.entries) for night in found.nights] == [1]
    assert found.levels["load_ms"].spread_percent is None


def test_a_series_without_a_run_that_counts() -> None:
    found = over_nights([run_at(0, simulated=SIMULATED)])
    assert (found.nights, found.levels) == ((), {})


def test_an_update_of_the_system_is_told_and_an_unknown_one_is_not() -> None:
    def entry(**facts: Any) -> HistoryEntry:
        return entry_from(run_at(0, device=make_device("android", **facts)))[0]

    old, new = (entry(os=f"Android {n}", fingerprint=f"build {n}") for n in (15, 16))
    assert list(describe_environment(old, new)) == [
        "system Android 15 -> Android 16", "system build build 15 -> build 16",
    ]  # fmt: skip
    assert list(describe_environment(entry(os=None), new)) == []
    assert list(describe_environment(new, entry(os=None))) == []
