"""Trends as values and as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from etdeploy.bench.records.conditions import Disturbance, DisturbanceKind
from etdeploy.bench.records.record import RunRecord
from etdeploy.history.entry import entry_of
from etdeploy.history.model import Trend, differing, spread_percent, trend_of
from etdeploy.history.series import series_of
from etdeploy.history.text import list_text, trend_text
from tests.support.bench_values import SIMULATED, make_device
from tests.support.histories import recipe_named, run_at

HOT = Disturbance(kind=DisturbanceKind.THROTTLED, text="the cores slowed down")


def trend(records: Sequence[RunRecord], metric: str = "latency_ms", runs: int = 0) -> Trend:
    entries = [entry_of(record)[0] for record in records]
    return trend_of(series_of(records[0]), entries, metric, runs or len(records))


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
    assert change.differs == (
        "recipe aaaaaaaaaa -> bbbbbbbbbb with changes", "etdeploy 0 -> none", "torch none -> 3",
    )  # fmt: skip
    assert found.median == 1.5
    assert found.spread_percent is not None
    assert 0.5 < found.spread_percent < 3


def test_disturbed_runs_are_shown_and_not_used() -> None:
    records = [*stairs()[:12], run_at(50, 9.0, disturbances=(HOT,))]
    found = trend(records)
    assert found.changes == ()
    assert [point.used for point in found.points] == [True] * 12 + [False]
    text = trend_text(found, 80)
    assert "9.000 ms" in text
    assert "not used: the cores slowed down" in text
    assert "changes   none found" in text


def test_simulated_runs_are_left_out() -> None:
    records = [run_at(i, 1.0, simulated=SIMULATED) for i in range(9)]
    found = trend(records)
    assert (found.points, found.median) == ((), None)
    assert "no run has it" in trend_text(found, 80)


def test_the_text_of_one_series() -> None:
    head, _, table = trend_text(trend(stairs(), runs=1234), None).partition("\n\n")
    assert head.splitlines() == [
        "mlp on host (Test CPU): xnnpack",
        "  series      c4f99eab5b8272b8, 1,234 runs in the history",
        "  latency",
        "    curve     ▁▁▁▁▁▁▁▁▁▁▁▁██████  18 runs",
        "    latest    1.500 ms",
        "    median    1.500 ms since the last change, spread between runs 1.0 %",
        "    change    2026-11-21 00:01  1.000 ms -> 1.500 ms, +50.0 %",
        "              first in 20261121T000100Z-mlp-host-0000003c",
        "              recipe aaaaaaaaaa -> bbbbbbbbbb with changes",
        "              etdeploy 0 -> none",
        "              torch none -> 3",
    ]
    lines = table.splitlines()
    assert lines[0].split() == ["started", "latency", "spread", "run", "remark"]
    assert len(lines) == 12
    assert lines[-1].split() == ["2026-11-21", "00:01", "1.500", "ms", "-", run_at(65).run_id]


def test_the_list_of_several_series() -> None:
    phone = make_device("android", name="android:R5", serial="R5", model="Pixel 9")
    listed = [trend(stairs()), trend([run_at(3, 12.0, device=phone)])]
    assert list_text(listed, 3, None).splitlines() == [
        "recipe  device                runs  last         latency  spread  what     trend",
        "------  --------------------  ----  ----------  --------  ------  -------  "
        "------------------",
        "mlp     host (Test CPU)         18  2026-11-21  1.500 ms   1.0 %  xnnpack  "
        "▁▁▁▁▁▁▁▁▁▁▁▁██████",
        "mlp     android:R5 (Pixel 9)     1  2026-11-21  12.00 ms       -  xnnpack  ▅",
        "",
        "and 3 more series: narrow them down with --recipe, --device",
    ]


def test_another_metric() -> None:
    found = trend(stairs(), "peak_rss_bytes")
    assert found.median == 32_700_000
    assert "32.7 MB" in trend_text(found, 80)


def test_what_differs_between_two_runs() -> None:
    one, two = (entry_of(record)[0] for record in (run_at(0), run_at(1)))
    assert differing(one, two) == ()


def test_the_spread_of_few_values() -> None:
    assert spread_percent([1.0, 2.0]) is None
    assert spread_percent([0.0, 0.0, 0.0]) is None
    assert spread_percent([1.0, 1.0, 1.0]) == 0
