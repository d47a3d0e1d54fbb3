"""Markdown for a comment."""

from __future__ import annotations

import pytest

from etdeploy.compare.model import Verdict
from etdeploy.report.formats import BEGINNINGS, Format, render_report
from etdeploy.report.markdown import name, prose
from etdeploy.report.report_data import Report, ReportData
from tests.support.report_values import (
    HOSTILE,
    make_comparison,
    make_profile,
    make_report_data,
    renamed,
)

# GitHub's limit of a comment.
LIMIT = 65_536


def markdown(report: Report) -> str:
    return render_report(report, Format.MARKDOWN)


def _several(count: int) -> Report:
    runs = tuple(renamed(make_report_data(base_ms=12 + i), f"recipe-{i}") for i in range(count))
    return Report(runs, tuple(make_comparison(run) for run in runs[1:]))


def test_a_run_has_its_figures_first_and_the_rest_folded() -> None:
    text = markdown(Report((make_report_data(),)))
    assert text.startswith(BEGINNINGS[Format.MARKDOWN])
    head, _, folded = text.partition("<details>")
    for part in ("12.42 ms per inference", "| latency | **12.42** ms |", " between 5 starts",
                 "| outputs | 🟢 **correct** |", "| program | example mlp", "layer norms",
                 "**Disturbed:** throttled", "The screen was on."):  # fmt: skip
        assert part in head
    for title in ("Latency", "From start to start", "Where the time goes", "Outputs", "Threads",
                  "Device", "How the runner was built", "Provenance"):  # fmt: skip
        assert f"<summary>{title}</summary>" in f"<details>{folded}"
    assert text.count("<details>") == text.count("</details>") == 8
    assert "| <code>&nbsp;" not in text
    assert "&nbsp;&nbsp;<code>layers.0" in text


def test_several_runs_have_ratios_and_verdicts() -> None:
    report = _several(3)
    changed = (make_comparison(report.runs[1], Verdict.NOT_COMPARABLE), report.comparisons[1])
    head, _, rest = markdown(Report(report.runs, changed)).partition("<details>")
    assert "| <code>recipe-1</code> | – | ⚠️ not comparable | the devices differ |" in head
    assert "| 1.080 (1.050 to 1.110) | 🔴 slower |" in head
    assert "| <code>recipe-0</code> | <code>android&#58;R5CT20</code> | 12.42 |" in head
    assert "<summary>recipe-2 (B) against recipe-0 (A)</summary>" in rest


@pytest.mark.parametrize("count", [40, 300])
def test_a_comment_is_not_too_long(count: int) -> None:
    text = markdown(_several(count))
    assert len(text) < LIMIT
    assert len(text.encode()) < 4 * LIMIT
    if count == 300:
        assert "240 more rows left out" in text


def test_what_does_not_fit_is_left_out_and_said() -> None:
    long = make_profile().operators[0]
    operators = tuple(long.model_copy(update={"name": f"{i}" + "x" * 5000}) for i in range(15))
    run = ReportData(make_report_data().run, "mlp", None, (make_profile(operators=operators),))
    text = markdown(Report((run,)))
    assert len(text) < LIMIT
    assert "_1 section left out" in text


def test_a_name_stays_a_name() -> None:
    hostile = make_profile().operators[0].model_copy(update={"name": HOSTILE, "module": HOSTILE})
    run = renamed(make_report_data(), HOSTILE)
    run = ReportData(run.run, HOSTILE, run.plan, (make_profile(operators=(hostile,)),))
    several = Report((run, run), (make_comparison(run, reason=HOSTILE),))
    for text in (markdown(Report((run,))), markdown(several)):
        for markup in ("<script", "<b>", "@team", "](http", "*b*", "`a`", "://evil"):
            assert markup not in text
        # A bar in a name would begin a cell: then a row would have more than its table's head.
        for block in text.split("\n\n"):
            rows = [line for line in block.splitlines() if line.startswith("|")]
            assert len({line.count("|") for line in rows}) <= 1


def test_text_cannot_mention_or_link() -> None:
    assert name("@team") == "<code>&#64;team</code>"
    assert "@team" not in prose("ask @team")
    assert "://" not in prose("see https://evil.example")
    assert name("") == "<code> </code>"
    assert "\n" not in name("two\nlines") + prose("two\nlines")
