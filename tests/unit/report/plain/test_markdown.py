"""Markdown for a comment."""

from __future__ import annotations

import math

import pytest

from etdeploy.bench.records.outputs import Outside
from etdeploy.bench.records.stored import StoredRun
from etdeploy.compare.model import Verdict
from etdeploy.report.formats import BEGINNINGS, Format
from etdeploy.report.markdown import markdown, name, prose
from etdeploy.report.report_data import Material, Report
from tests.support.bench_values import FOLDER, SIMULATED, make_loss, make_program, make_run
from tests.support.report_values import (
    HOSTILE,
    make_comparison,
    make_material,
    make_profile,
    renamed,
)
from tests.support.text_values import TRACED, make_text_record, make_text_workload

# GitHub's limit of a comment.
LIMIT = 65_536


def _several(count: int) -> Report:
    runs = tuple(renamed(make_material(base_ms=12 + i), f"recipe-{i}") for i in range(count))
    return Report(runs, tuple(make_comparison(run) for run in runs[1:]))


def test_a_run_has_its_figures_first_and_the_rest_folded() -> None:
    text = markdown(Report((make_material(),)))
    assert text.startswith(BEGINNINGS[Format.MARKDOWN])
    head, _, folded = text.partition("<details>")
    for words in (" per inference", "| median, p90 | **", " between 5 starts |", "**correct**",
                  "layer norms on CPU kernels", "**throttled**", "The screen was on."):  # fmt: skip
        assert words in head
    for words in ("Where the time goes", "Every start", "Provenance"):
        assert f"<summary>{words}</summary>" in f"<details>{folded}"
    assert text.count("<details>") == text.count("</details>")


def test_a_single_start_cannot_tell_the_spread_between_starts() -> None:
    text = markdown(Report((Material(make_run(), "mlp"),)))
    assert "unknown between starts, since there was one" in text


def test_the_loss_of_quantisation_is_a_figure() -> None:
    program = make_program(quantization_loss=(make_loss(cosine_similarity=0.83),))
    head, _, _ = markdown(Report((Material(make_run(program=program), "mlp"),))).partition("<det")
    [line] = [line for line in head.splitlines() if line.startswith("| quality")]
    assert "QUANTISATION LOSS: scores against the unquantised model: cosine 0.8300" in line


def test_a_simulated_run_shows_no_time() -> None:
    text = markdown(Report((Material(make_run(simulated=SIMULATED), "mlp"),)))
    assert "simulated by <code>Simulator 1.2.3</code>" in text
    assert " ms" not in text


def test_several_runs_have_ratios_and_verdicts() -> None:
    report = _several(3)
    changed = (make_comparison(report.runs[1], Verdict.NOT_COMPARABLE), report.comparisons[1])
    text = markdown(Report(report.runs, changed))
    assert "3 runs, measured against <code>recipe-0</code>" in text
    assert "| – | ⚠️ not comparable |" in text
    assert "| 1.080 (1.050 to 1.110) | 🔴 slower |" in text
    assert "- <code>recipe-1</code>: the devices differ" in text


@pytest.mark.parametrize("count", [2, 5, 40, 300])
def test_a_comment_is_not_too_long(count: int) -> None:
    text = markdown(_several(count))
    assert len(text) < LIMIT
    assert len(text.encode()) < 4 * LIMIT
    if count == 300:
        assert "240 more runs left out" in text


def test_what_does_not_fit_is_left_out_and_said() -> None:
    long = make_profile().operators[0].model_copy(update={"name": "x" * 5000})
    profile = make_profile(operators=(long,) * 15)
    run = Material(make_material().run, "mlp", None, (profile,))
    text = markdown(Report((run,)))
    assert len(text) < LIMIT
    assert "_1 section left out" in text


def test_a_name_stays_a_name() -> None:
    hostile = make_profile().operators[0].model_copy(update={"name": HOSTILE, "module": HOSTILE})
    run = renamed(make_material(), HOSTILE)
    run = Material(run.run, HOSTILE, run.plan, (make_profile(operators=(hostile,)),))
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


def test_nan_is_a_dash() -> None:
    assert "**–**" in markdown(Report((Material(make_run((math.nan,)), "mlp"),)))


def test_generated_text_has_its_points_with_what_they_mean() -> None:
    run = Material(StoredRun(FOLDER, make_text_record()), "tiny")
    text = markdown(Report((run,)))
    assert "198 tokens per second, first token after 5.005 ms (prompt 8, new 4)" in text
    assert "| time per token: median, p90 | **5.055**, 5.128 ms |" in text
    assert "| 8 | 4 | 0 | 5.005 ms | 1,598 | 198 | 5.055 ms | 5.128 ms |" in text
    assert "- decode: tokens after the first by the time" in text
    assert "inference" not in text


def test_each_method_that_generated_text_has_its_operators() -> None:
    record = make_text_record(workload=make_text_workload(methods=TRACED))
    profiles = tuple(make_profile(method=each.method, text=each) for each in TRACED)
    text = markdown(Report((Material(StoredRun(FOLDER, record), "tiny", None, profiles),)))
    assert "<summary>Where the time goes in decode</summary>" in text
    assert "<summary>Where the time goes in prefill</summary>" in text
    assert "| outside of delegates | decode 4.5 %, prefill 3 % |" in text


def test_the_share_outside_of_delegates_stands_beside_the_latency() -> None:
    workload = make_run().record.workload.model_copy(update={"outside": Outside(share=0.07)})
    text = markdown(Report((Material(make_run(workload=workload), "mlp"),)))
    assert "| outside of delegates | 7 % |" in text
