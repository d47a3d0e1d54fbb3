"""A run's numbers, judged by those before it."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from etdeploy.history.check import (
    FindingKind,
    MetricFinding,
    current_level,
    describe_regressions,
    judge_metrics,
    judge_outputs,
)
from etdeploy.history.entry import HistoryEntry


def entry(latency_ms: float = 1.0, **changes: Any) -> HistoryEntry:
    plain = HistoryEntry(
        run_id="x", series="s", started_at="", program="", versions={}, git_revision=None,
        git_dirty=None, disturbed="", simulated=False, outputs_ok=True, spread_percent=None,
        starts=3, metrics={"latency_ms": latency_ms},
    )  # fmt: skip
    return replace(plain, **changes)


def earlier(count: int = 20, spread: float = 0.02, seed: int = 1) -> list[HistoryEntry]:
    draw = random.Random(seed)
    return [entry(draw.gauss(1.0, spread)) for _ in range(count)]


def latency(
    run: HistoryEntry, before: list[HistoryEntry], allowed: float = 5.0, **more: Any
) -> MetricFinding:
    return next(f for f in judge_metrics(run, before, allowed, **more) if f.metric == "latency_ms")


WITH_ODD_RUNS = [*earlier(), entry(40.0), entry(0.01)]
FAR_STARTS = [entry(1.0, spread_percent=30.0, starts=3) for _ in range(10)]


@pytest.mark.parametrize(
    ("now_ms", "before", "allowed", "kind"),
    [
        (1.12, earlier(spread=0.15), 5.0, FindingKind.NO_DIFFERENCE),
        (1.04, earlier(spread=0.002), 5.0, FindingKind.NO_DIFFERENCE),
        (1.04, earlier(spread=0.002), 2.0, FindingKind.REGRESSED),
        (0.85, earlier(), 5.0, FindingKind.IMPROVED),
        (1.12, WITH_ODD_RUNS, 5.0, FindingKind.REGRESSED),
        (1.01, WITH_ODD_RUNS, 5.0, FindingKind.NO_DIFFERENCE),
        (1.12, FAR_STARTS, 5.0, FindingKind.NO_DIFFERENCE),
    ],
)
def test_a_time_is_judged_by_spread_and_allowance(
    now_ms: float, before: list[HistoryEntry], allowed: float, kind: FindingKind
) -> None:
    assert latency(entry(now_ms), before, allowed).kind is kind


@pytest.mark.parametrize(
    ("now_ms", "before", "against", "kind"),
    [
        (1.2, earlier(spread=0.01), entry(1.0), FindingKind.REGRESSED),
        (1.2, earlier(spread=0.01), entry(1.19), FindingKind.NO_DIFFERENCE),
        (1.2, [], entry(1.0), FindingKind.REGRESSED),
        # Without a history, runs are assumed to vary by 3 %.
        (1.07, [], entry(1.0), FindingKind.NO_DIFFERENCE),
        (1.2, [], entry(metrics={"load_ms": 1.0}), FindingKind.NOT_JUDGED),
    ],
)
def test_a_time_is_judged_by_another_run(
    now_ms: float, before: list[HistoryEntry], against: HistoryEntry, kind: FindingKind
) -> None:
    assert latency(entry(now_ms), before, against=against).kind is kind


def test_too_few_earlier_runs() -> None:
    found = latency(entry(9.0), earlier(4))
    assert found.kind is FindingKind.NOT_JUDGED
    assert found.reason.startswith("4 earlier runs ")
    assert "5 are needed" in found.reason


def test_the_level_since_the_last_change_counts() -> None:
    before = [*earlier(15), *(entry(1.3 * e.metrics["latency_ms"]) for e in earlier(8, seed=2))]
    assert latency(entry(1.31), before).kind is FindingKind.NO_DIFFERENCE
    assert latency(entry(1.31), before[:17]).kind is FindingKind.REGRESSED
    assert len(current_level([e.metrics["latency_ms"] for e in before])) == 8


def test_other_numbers_have_to_be_surer() -> None:
    def run(value: float) -> HistoryEntry:
        return entry(metrics={"latency_ms": value, "load_ms": value})

    draw = random.Random(5)
    before = [run(draw.gauss(1.0, 0.05)) for _ in range(20)]
    found = {f.metric: f for f in judge_metrics(run(1.145), before, 5.0)}
    assert found["latency_ms"].kind is FindingKind.REGRESSED
    assert found["load_ms"].kind is FindingKind.NO_DIFFERENCE
    assert found["latency_ms"].z == found["load_ms"].z


def test_a_size_that_never_changes() -> None:
    before = [entry(metrics={"program_bytes": 1000.0}) for _ in range(5)]
    [grown] = judge_metrics(entry(metrics={"program_bytes": 1100.0}), before, 5.0)
    assert grown.kind is FindingKind.REGRESSED
    assert grown.reason.startswith("1.1 kB ")
    assert "1.0 kB, +10.0 %" in grown.reason


def test_outputs_that_were_right_before() -> None:
    found = tuple(judge_outputs(entry(outputs_ok=False), earlier(1)))
    assert describe_regressions(found).startswith("outputs are wrong")
    assert found[-1].kind is FindingKind.REGRESSED
    assert list(judge_outputs(entry(outputs_ok=None), earlier())) == []
    assert list(judge_outputs(entry(outputs_ok=False), [entry(outputs_ok=None)] * 5)) == []


def test_numbers_that_are_zero_are_passed_over() -> None:
    zero = {"latency_ms": 1.0, "load_ms": 0.0}
    found = judge_metrics(entry(metrics=zero), [entry(metrics=zero)] * 9, 5.0)
    assert [f.metric for f in found] == ["latency_ms"]


def test_unchanged_runs_are_rarely_called_regressed() -> None:
    draw = random.Random(7)

    def run() -> HistoryEntry:
        return entry(
            metrics={n: draw.gauss(1, 0.05) for n in ("latency_ms", "load_ms", "peak_rss_bytes")}
        )

    series = [([run() for _ in range(10)], run()) for _ in range(400)]
    called = [
        any(f.kind is FindingKind.REGRESSED for f in judge_metrics(last, before, 5.0))
        for before, last in series
    ]
    assert sum(called) <= 0.06 * len(called)
