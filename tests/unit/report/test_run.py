"""A run at the end of a run, letter by letter, and as a page."""

from __future__ import annotations

import math
from typing import Any

import pytest

from etdeploy.bench.generation_workload import WorkPoint
from etdeploy.bench.records.performance import CooldownWait, Disturbance, DisturbanceKind, Spread
from etdeploy.bench.records.record import SizeRecord
from etdeploy.bench.records.stored import StoredRun
from etdeploy.bench.statistics import summarize
from etdeploy.program.model import Operator
from etdeploy.report.document import (
    Facts,
    Figure,
    Folded,
    LargeTable,
    Page,
    Table,
    Text,
    all_blocks,
)
from etdeploy.report.page import run_page
from etdeploy.report.report_data import ReportData
from etdeploy.report.run import summary
from etdeploy.report.terminal import WIDTH, render
from tests.support.bench_values import (
    FOLDER,
    SIMULATED,
    UNCOMPARED,
    make_check,
    make_loss,
    make_program,
    make_run,
    make_series,
)
from tests.support.report_values import make_profile, make_report_data
from tests.support.text_values import (
    TRACED,
    make_text_check,
    make_text_record,
    make_text_workload,
    make_work,
)


def test_whole_text() -> None:
    assert (
        render(summary(make_run(notes=("Something to know.",))))
        == """\
mlp on host: 1.100 ms per inference, 909 inferences per second

  min ms  median ms  mean ms  p90 ms  p99 ms  stddev ms
  ------  ---------  -------  ------  ------  ---------
   1.000      1.100    1.080   1.160   1.196      0.084

  latency         1.100 ms: 909 inferences per second
                  median of 5 inferences in 1 start, 2 threads
  spread          unknown: one start cannot show the spread between starts, --runs 5 does
                  7.6 % within a start
  warm-up         5 inferences
  load            8.357 ms: program and method, after 0.2100 ms for checking the file
  first inference 2.500 ms: of a new process, before any warm-up
  outputs         correct: within tolerance of the model's
                  largest error 1.2e-07 (tolerance 0.0001), cosine similarity 1 (at least 0.9999)
  peak memory     32.7 MB: resident, program and runner
  device          Test CPU: host, Test Linux 1, 2 CPUs
  program         example mlp, xnnpack, 5.5 kB
  runs on         XnnpackBackend takes 8 nodes in 1 partition (80 % of all nodes)
                  2 operator calls stay outside, on CPU kernels
                  2 x aten::add.out
  runner          runner for linux-x86_64, ExecuTorch 1.5.1+cpu

  note            Something to know.

  files           /out/20261121T084449Z-mlp-host-ab12cd34/record.json
                  beside it: outputs, runner.stderr.txt"""
    )


@pytest.mark.parametrize("width", [None, 60, 80, 120])
def test_no_line_is_wider_than_the_limit_and_none_ends_in_blanks(width: int | None) -> None:
    names = tuple(Operator(name=f"aten::a_rather_long_name_{i}.out", calls=i) for i in range(9))
    run = make_run(
        make_series((1.0, 1.1), (1.2, 1.3)),
        notes=("A sentence that goes on and on. " * 12,),
        program=make_program(operator_calls=names, source="file.py:factory"),
        sizes=(_size("short", 1.1),),
    )
    for line in render(summary(run), width).splitlines()[:-2]:
        assert len(line) <= min(width or WIDTH, WIDTH)
        assert line == line.rstrip()


def _size(name: str, median_ms: float, **changes: Any) -> SizeRecord:
    values: dict[str, Any] = {
        "name": name,
        "sizes": {"tokens": 16},
        "shapes": {},
        "latency_ms": summarize((median_ms,)),
        "first_inference_ms": 2.5,
        "peak_rss_bytes": 7_900_000,
        "outputs": (make_check(),),
        "runs": (series := make_series((median_ms,))).starts,
        "spread": series.spread,
    }
    return SizeRecord(**(values | changes))


def _tables(run: StoredRun) -> dict[str, Table]:
    return {block.label: block for block in summary(run) if isinstance(block, Table)}


def test_every_size_has_a_row() -> None:
    wrong = make_check(within_tolerance=False, max_abs_error=3.0)
    spread = Spread(within_percent=1.0, between_percent=4.0)
    sizes = (
        _size("short", 1.1, spread=spread),
        _size("long", 22.0, sizes={}, outputs=(wrong,)),
        _size("unknown", 22.0, outputs=()),
        _size("nan", 22.0, outputs=(UNCOMPARED,)),
    )
    run = make_run(sizes=sizes)
    rows = [[cell.text for cell in row] for row in _tables(run)["Sizes"].rows]
    assert rows[:2] == [
        ["short", "tokens 16", "1.100", "1.100", "4 %", "2.500", "7.9 MB", "correct"],
        ["long", "the example's", "22.000", "22.000", "–", "2.500", "7.9 MB", "WRONG"],
    ]
    assert [row[-1] for row in rows[2:]] == ["not checked", "not compared"]
    text = render(summary(run))
    assert " at short, " in text.splitlines()[0]
    assert "output_0 at long" in text


def test_the_sizes_of_a_simulated_run_have_a_verdict_and_no_times() -> None:
    run = make_run(sizes=(_size("short", 1.1),), simulated=SIMULATED)
    [row] = _tables(run)["Sizes"].rows
    assert [cell.text for cell in row] == ["short", "tokens 16", "simulated", "correct"]
    assert list(_tables(run)) == ["Sizes"]
    assert " ms" not in render(summary(run))


def test_every_number_of_threads_has_a_row() -> None:
    rows = [[c.text for c in row] for row in _tables(make_report_data().run)["Threads"].rows]
    assert [(row[0], row[5], row[6]) for row in rows] == [
        ("1", "1.00 x", ""), ("2", "1.87 x", ""), ("4", "3.00 x", "fastest"),
    ]  # fmt: skip


def test_every_point_is_a_row() -> None:
    work = make_work(WorkPoint(tuple(range(8)), 4, 0, 1, 2), WorkPoint((1,) * 16, 1, 128, 0, 1))
    run = StoredRun(FOLDER, make_text_record(workload=make_text_workload(work=work)))
    rows = [[cell.text for cell in row] for row in _tables(run)["Tokens"].rows]
    assert rows == [
        ["8", "4", "0", "5.005 ms", "1,598", "198", "5.055 ms", "5.128 ms"],
        ["16", "1", "128", "30.03 ms", "533", "–", "–", "–"],
    ]
    text = render(summary(run))
    assert "inference" not in text
    assert all(f"\n  {term} " in text for term in ("first token", "prefill", "decode"))
    assert "tok/s" not in render(summary(StoredRun(FOLDER, make_text_record(simulated=SIMULATED))))


def _figures(page: Page) -> list[str]:
    return [block.key for block in all_blocks(page.sections) if isinstance(block, Figure)]


def _texts(page: Page) -> list[str]:
    return [block.text for block in all_blocks(page.sections) if isinstance(block, Text)]


def _bare(*arguments: Any, **changes: Any) -> Page:
    return run_page(ReportData(make_run(*arguments, **changes), "mlp", None, (), ("No plan.",),
                               ("No profile.",)))  # fmt: skip


def test_a_full_run_shows_everything() -> None:
    page = run_page(make_report_data())
    assert [section.key for section in page.sections] == [
        "summary", "latency", "starts", "profile", "outputs", "threads", "sustained", "memory",
        "device", "options", "provenance", "record",
    ]  # fmt: skip
    assert _figures(page) == [
        "plot-latency", "plot-starts", "plot-shares", "plot-modules", "plot-threads",
        "plot-sustained", "plot-memory", "plot-device",
    ]  # fmt: skip
    assert [b.key for b in all_blocks(page.sections) if isinstance(b, LargeTable)] == ["operators"]
    assert [card.label for card in page.cards] == [
        "latency", "spread", "load", "first inference", "outputs", "peak memory", "device",
    ]  # fmt: skip
    assert (page.cards[0].value, page.cards[0].unit) == ("12.42", "ms")
    assert page.cards[0].lead
    [facts] = page.sections[0].blocks
    assert isinstance(facts, Facts)
    assert [fact.label for fact in facts.facts] == [
        "warm-up", "sustained", "program", "runs on", "runner",
    ]  # fmt: skip


def test_what_must_not_be_missed_stands_at_the_top() -> None:
    page = run_page(make_report_data())
    assert [badge.text for badge in page.badges] == ["throttled", "outputs correct"]
    bottleneck, disturbed, note = page.notices
    assert bottleneck == Text(make_profile().bottleneck, "info", "Bottleneck:")
    assert isinstance(disturbed, Text)
    assert (disturbed.tone, disturbed.text[:9]) == ("warn", "throttled")
    assert note == Text("The screen was on.", "info", "Note:")
    many = make_report_data(notes=tuple(f"Note {number}." for number in range(10)))
    folded = run_page(many).notices[-1]
    assert isinstance(folded, Folded)
    assert len(folded.blocks) == 10
    both = Disturbance(kind=DisturbanceKind.BUSY, text="Other programs ran.")
    assert len(run_page(make_report_data(disturbances=(both,))).badges) == 3


def test_a_run_without_profile_and_plan_says_why() -> None:
    page = _bare()
    assert _texts(page) == ["No profile.", "No plan."]
    assert _figures(page) == ["plot-latency", "plot-starts"]
    built = make_run().record.runner.model_copy(update={"options": {"EXECUTORCH_LOGGING": "ON"}})
    tables = [b for b in all_blocks(_bare(runner=built).sections) if isinstance(b, Table)]
    [options] = [t for t in tables if t.label == "Options of the runner"]
    assert [cell.text for cell in options.rows[0]] == ["EXECUTORCH_LOGGING", "ON"]


def test_waits_for_a_cool_device_stand_with_the_starts() -> None:
    run = make_report_data(interleaved_with="other-run")
    record = run.record
    waits = [
        CooldownWait(sensor="cpu", from_celsius=50, to_celsius=to, waited_s=90, reached=to < 40)
        for to in (36, 44)
    ]
    starts = [
        start.model_copy(update={"cooldown": wait})
        for start, wait in zip(record.workload.runs, (*waits, None, None, None), strict=True)
    ]
    workload = record.workload.model_copy(update={"runs": tuple(starts)})
    run = ReportData(StoredRun(FOLDER, record.model_copy(update={"workload": workload})), "mlp")
    blocks = all_blocks(run_page(run).sections)
    [table] = [b for b in blocks if isinstance(b, Table) and b.label == "Starts"]
    cells = [row[table.columns.index("cooled")].text for row in table.rows]
    assert cells == ["90 s to 36 °C", "90 s to 44 °C, still hot", "–", "–", "–"]
    facts = {f.label: f.lines for b in blocks if isinstance(b, Facts) for f in b.facts}
    assert facts["Took turns with"] == ("other-run",)


def test_a_simulated_run_shows_no_time() -> None:
    page = _bare(simulated=SIMULATED)
    assert [card.label for card in page.cards] == ["latency", "outputs", "device"]
    assert page.cards[0].value == "simulated"
    assert _figures(page) == []
    assert page.badges[0].text == "simulated"


@pytest.mark.parametrize("samples", [(0.0, 0.0), (math.nan,), (1.0,), (1.0, math.inf, 2.0)])
def test_strange_times_are_no_error(samples: tuple[float, ...]) -> None:
    assert _figures(_bare(samples)) == ["plot-latency", "plot-starts"]


def test_generated_text_has_its_points_and_rates() -> None:
    texts = (make_text_check(prompt="The sky", text="is blue"),)
    workload = make_text_workload().model_copy(update={"texts": texts})
    point = workload.first.model_copy(update={"text": "It was"})
    workload = workload.model_copy(update={"points": (point,), "prompt": "Once"})
    page = run_page(ReportData(StoredRun(FOLDER, make_text_record(workload=workload)), "tiny"))
    assert [section.key for section in page.sections][1:4] == ["tokens", "latency", "starts"]
    assert [card.label for card in page.cards][:2] == ["decode", "prefill"]
    assert {"It was", "The sky … is blue"} <= set(_texts(page))
    figures = [b.label for b in all_blocks(page.sections) if isinstance(b, Figure)]
    assert "18 tokens" in figures[0]
    assert "3 starts" in figures[1]


def test_each_method_that_generated_text_has_a_profile() -> None:
    record = make_text_record(workload=make_text_workload(methods=TRACED))
    profiles = tuple(make_profile(60, method=each.method, text=each) for each in TRACED)
    page = run_page(ReportData(StoredRun(FOLDER, record), "tiny", None, profiles))
    assert [key for key in _figures(page) if "latency" not in key and "starts" not in key] == [
        "plot-shares", "plot-modules", "plot-shares-prefill", "plot-modules-prefill",
    ]  # fmt: skip
    texts = " ".join(_texts(page))
    assert all(each.where in texts for each in TRACED)


def test_a_high_loss_of_quantization_is_a_badge() -> None:
    high, low = make_loss(cosine_similarity=0.83), make_loss()
    for loss, badges in ((high, ["high quantization loss", "outputs correct"]),
                         (low, ["outputs correct"])):  # fmt: skip
        page = _bare(program=make_program(quantization_loss=(loss,)))
        assert [badge.text for badge in page.badges] == badges
