"""What the page that compares runs shows."""

from __future__ import annotations

import pytest

from etdeploy.bench.records.stored import StoredRun
from etdeploy.compare.model import Verdict
from etdeploy.compare.runs import compare_runs
from etdeploy.report.formats import several_page
from etdeploy.report.html.blocks import Cell, Figure, Operators, Page, Table, Text, all_blocks
from etdeploy.report.report_data import Material, Report
from tests.support.bench_values import FOLDER, SIMULATED, make_run
from tests.support.report_values import make_comparison, make_material, renamed
from tests.support.text_values import make_text_record


def _report(count: int) -> Report:
    runs = tuple(renamed(make_material(base_ms=12 + i), f"recipe-{i}") for i in range(count))
    return Report(runs, tuple(make_comparison(run) for run in runs[1:]))


def _tables(page: Page) -> dict[str, Table]:
    return {b.label: b for b in all_blocks(page.sections) if isinstance(b, Table)}


def _figures(page: Page) -> list[str]:
    return [block.key for block in all_blocks(page.sections) if isinstance(block, Figure)]


@pytest.mark.parametrize("count", [2, 5, 40])
def test_every_run_has_its_verdict(count: int) -> None:
    page = several_page(_report(count))
    table = _tables(page)["Runs and verdicts"]
    assert [row[0].text for row in table.rows] == [f"recipe-{i}" for i in range(count)]
    verdicts = [row[table.columns.index("verdict")] for row in table.rows]
    assert verdicts == [Cell("baseline", "quiet"), *[Cell("slower", "bad")] * (count - 1)]
    assert len(page.cards) == (count if count <= 8 else 0)
    assert len(page.records) == count


def test_few_distributions_stand_over_each_other_many_beside() -> None:
    assert _figures(several_page(_report(3))) == ["plot-ratios", "plot-distributions", "plot-runs"]
    assert _figures(several_page(_report(40))) == ["plot-ratios", "plot-runs"]


def test_operators_stand_side_by_side() -> None:
    [table] = [
        b for b in all_blocks(several_page(_report(40)).sections) if isinstance(b, Operators)
    ]
    titles = [column["title"] for column in table.payload["columns"]]
    assert titles == ["operator", "runs on", *[f"recipe-{i} ms" for i in range(6)], "change ms"]
    row = table.payload["rows"][0]
    assert len(row) == len(titles) + 1
    assert row[2] == row[7]
    assert row[8] == 0


def test_what_differs_is_named() -> None:
    report = _report(2)
    assert "What differs between the runs" not in _tables(several_page(report))
    other = renamed(make_material(versions={"etdeploy": "1"}), "other")
    page = several_page(Report((report.runs[0], other), (make_comparison(other),)))
    rows = _tables(page)["What differs between the runs"].rows
    assert [[cell.text for cell in row] for row in rows] == [["versions.etdeploy", "0", "1"]]


def test_a_simulated_run_is_shown_without_times() -> None:
    simulated = Material(make_run(simulated=SIMULATED), "simulation")
    comparison = make_comparison(simulated, Verdict.NOT_COMPARABLE)
    page = several_page(Report((make_material(), simulated), (comparison,)))
    row = [cell.text for cell in _tables(page)["Runs and verdicts"].rows[1]]
    assert row == [
        "simulation",
        "host",
        "simulated",
        "–",
        "–",
        "not comparable",
        "the devices differ",
    ]
    assert _figures(page) == ["plot-distributions", "plot-runs"]


def test_only_simulated_runs_have_no_plot() -> None:
    runs = tuple(Material(make_run(simulated=SIMULATED), name) for name in "ab")
    comparison = make_comparison(runs[1], Verdict.NOT_COMPARABLE)
    page = several_page(Report(runs, (comparison,)))
    assert _figures(page) == []
    texts = [b.text for b in all_blocks(page.sections) if isinstance(b, Text)]
    assert "No run has times: all were simulated." in texts


def test_generated_text_is_compared_by_its_tokens() -> None:
    runs = [
        Material(StoredRun(FOLDER, make_text_record(ms, run_id=name)), name)
        for ms, name in ((5.0, "slow"), (4.0, "fast"))
    ]
    comparison = compare_runs(runs[0].run, runs[1].run)
    page = several_page(Report(tuple(runs), (comparison,)))
    table = _tables(page)["Runs and verdicts"]
    assert [row[table.columns.index("median")].text for row in table.rows] == [
        "5.055 ms", "4.044 ms",
    ]  # fmt: skip
    labels = [b.label for b in all_blocks(page.sections) if isinstance(b, Figure)]
    assert "Distributions of the time per token" in labels
