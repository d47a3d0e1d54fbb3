"""Several runs side by side, and two of them compared."""

from __future__ import annotations

from typing import Any

import pytest

from etdeploy.bench.records.performance import Disturbance, DisturbanceKind
from etdeploy.compare.model import OperatorChange, OutputDifference, Verdict
from etdeploy.compare.runs import compare_runs
from etdeploy.report.comparison import (
    Row,
    comparison_text,
    differences,
    headline,
    runs_table,
    several_page,
)
from etdeploy.report.document import Cell, Figure, LargeTable, Page, Table, Text, all_blocks
from etdeploy.report.report_data import Report, ReportData
from etdeploy.report.terminal import WIDTH, render
from tests.support.bench_values import (
    SIMULATED,
    make_device,
    make_program,
    make_record,
    make_run,
    make_series,
)
from tests.support.compare_values import paired_runs, separate_runs, slower_by
from tests.support.report_values import make_comparison, make_report_data, renamed
from tests.support.text_values import make_text_record

BUSY = Disturbance(kind=DisturbanceKind.BUSY, text="Other programs ran.")
ROWS = [
    Row("mlp", "host", make_record(make_series((1.0, 1.1, 1.2), (1.05,), (1.2,)))),
    Row("int8/conv.yaml", "android:R5CT20ABCDE",
        make_record((120.0, 130.0), peak_rss_bytes=None, disturbances=(BUSY,))),
    Row("npu", "host", make_record((0.0001,), simulated=SIMULATED)),
    Row("mlp", "qemu", None, "failed (run): the runner ended with SIGILL"),
]  # fmt: skip


def test_the_table_of_several_runs() -> None:
    assert (
        render([runs_table(ROWS)])
        == """\
  recipe          device               median ms  spread  first ms  load ms   memory  outputs
  --------------  -------------------  ---------  ------  --------  -------  -------  \
------------------------------------------
  mlp             host                     1.100   6.9 %     2.500    8.357  32.7 MB  correct
  int8/conv.yaml  android:R5CT20ABCDE      125.0       -     2.500    8.357        -  correct, busy
  npu             host                 simulated       -         -        -        -  correct
  mlp             qemu                         -       -         -        -        -  \
failed (run): the runner ended with SIGILL"""
    )


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120])
def test_it_fits_the_terminal(width: int) -> None:
    text = render([runs_table(ROWS)], width)
    assert max(map(len, text.splitlines())) <= width
    assert "SIGILL" in text


def test_short_times_have_a_unit_that_shows_them() -> None:
    table = runs_table([Row("mlp", "host", make_record((0.021, 0.0213)))])
    assert (table.columns[2], table.rows[0][2].text) == ("median µs", "21.15")


def test_generated_text_has_its_rate_beside_its_times() -> None:
    rows = [Row("tiny", "host", make_text_record()), Row("mlp", "host", make_record())]
    table = runs_table(rows)
    assert table.columns[2] == "decode tok/s"
    text, inference = ([cell.text for cell in row] for row in table.rows)
    assert text[2:6] == ["198", "5.055", "1.1 %", "5.005"]
    assert inference[2:4] == ["–", "1.100"]


def test_two_runs_as_text() -> None:
    runs = paired_runs(slower_by(1.05), of_b={"program": make_program(sha256="12" * 32)})
    text = render(comparison_text(compare_runs(*runs)))
    lines = text.splitlines()
    assert " ".join(lines[:2]).split()[:4] == ["slower:", "B", "takes", "1.050"]
    assert [line.split()[:6] for line in lines[4:6]] == [
        ["A", "mlp", "1.000", "8", "1.2", "%"], ["B", "mlp", "1.050", "8", "1.2", "%"],
    ]  # fmt: skip
    assert "   1  1.000  1.050   1.050" in text
    assert "  A -> B  " in text
    assert "abababab -> 12121212" in text
    assert text.endswith("record B        /out/20261121T084449Z-mlp-host-bbbbbbbb/record.json")


def test_a_ratio_without_bounds_says_so() -> None:
    found = headline(compare_runs(*separate_runs((1.5,))))
    assert "1.500 times" in found
    assert "unknown" in found


def test_operators_and_outputs_are_shown_and_long_lists_are_cut() -> None:
    found = compare_runs(*paired_runs(slower_by(1.05)))
    found = found.model_copy(
        update={
            "pairs": found.pairs * 4,
            "differences": ("model.arguments.text " + "word " * 60,),
            "operators": (
                OperatorChange(name="conv", module="stem.0", a_ms=1.0, b_ms=3.5),
                OperatorChange(name="add", module="", a_ms=0.5, b_ms=None),
            ),
            "outputs": (
                OutputDifference(name="logits", max_abs_error=0.25, cosine_similarity=0.9987654),
                OutputDifference(name="same", max_abs_error=0.0, cosine_similarity=1.0),
                OutputDifference(
                    name="gone", max_abs_error=None, cosine_similarity=None, problem="only A has it"
                ),
                *(OutputDifference(name=f"o{i}", max_abs_error=1.0, cosine_similarity=None)
                  for i in range(5)),
            ),
        }
    )  # fmt: skip
    text = render(comparison_text(found))
    lines = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert lines["conv"].split() == ["conv", "1.000", "3.500", "+2.500", "stem.0"]
    assert lines["add"].split() == ["add", "0.500", "-", "-0.500"]
    assert lines["outputs"].endswith(" 0.998765")
    assert lines["same,"].endswith(": equal")
    assert lines["gone"].endswith(": only A has it")
    assert text.count("--json") == 2
    assert "and 12 more" in text
    assert "and 3 more" in text
    assert max(len(line) for line in text.splitlines() if "/out/" not in line) <= WIDTH


def _report(count: int) -> Report:
    runs = tuple(renamed(make_report_data(base_ms=12 + i), f"recipe-{i}") for i in range(count))
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
    assert len(_tables(page)["Runs"].rows) == count
    assert len(page.cards) == (count if count <= 8 else 0)
    assert len(page.records) == count
    assert page.notices[0] == Text(
        "; ".join(f"recipe-{i} (throttled)" for i in range(count)) + ".", "warn", "Disturbed:"
    )


def test_few_distributions_stand_over_each_other_many_beside() -> None:
    assert _figures(several_page(_report(3))) == ["plot-ratios", "plot-distributions", "plot-runs"]
    assert _figures(several_page(_report(40))) == ["plot-ratios", "plot-runs"]


def test_operators_stand_side_by_side() -> None:
    blocks = all_blocks(several_page(_report(40)).sections)
    [table] = [block for block in blocks if isinstance(block, LargeTable)]
    titles = [column["title"] for column in table.payload["columns"]]
    assert titles == ["operator", "runs on", *[f"recipe-{i} ms" for i in range(6)], "change ms"]
    row = table.payload["rows"][0]
    assert len(row) == len(titles) + 1
    assert row[2] == row[7]
    assert row[8] == 0


def test_simulated_runs_are_shown_without_times() -> None:
    runs = tuple(ReportData(make_run(simulated=SIMULATED), name) for name in "ab")
    comparison = make_comparison(runs[1], Verdict.NOT_COMPARABLE)
    page = several_page(Report((make_report_data(), runs[1]), (comparison,)))
    assert [cell.text for cell in _tables(page)["Runs and verdicts"].rows[1]] == [
        "b", "–", "not comparable", "the devices differ",
    ]  # fmt: skip
    assert _tables(page)["Runs"].rows[1][2].text == "simulated"
    assert _figures(page) == ["plot-distributions", "plot-runs"]
    assert _figures(several_page(Report(runs, (comparison,)))) == []


def _with(content: dict[str, Any], **changes: Any) -> Any:
    record = make_record(**changes)
    return record.model_copy(
        update={"recipe": record.recipe.model_copy(update={"content": content})}
    )


def test_values_stand_beside_each_other_by_name() -> None:
    assert differences([make_record(), make_record((9.0,))]) == {}
    model = {"example": "mlp"}
    a = _with({"export": {"quantization": "none"}, "model": model})
    b = _with({"export": {"quantization": "8da4w"}, "model": model},
              device=make_device(name="qemu"), simulated=SIMULATED)  # fmt: skip
    assert differences([a, b, b]) == {
        "recipe.export.quantization": ("none", "8da4w", "8da4w"),
        "device.name": ("host", "qemu", "qemu"),
        "simulated": ("no", "Simulator 1.2.3", "Simulator 1.2.3"),
    }


def test_missing_values_are_a_dash_and_long_ones_keep_both_ends() -> None:
    a, b = make_record(), make_record(versions={"etdeploy": "0", "torch": "2"})
    assert differences([a, b]) == {"versions.torch": ("–", "2")}
    a, b = make_record(versions={"x": "a" * 200}), make_record(versions={"x": "a" * 199 + "b"})
    [(first, second)] = differences([a, b]).values()
    assert first != second
    assert max(len(first), len(second)) <= 81
