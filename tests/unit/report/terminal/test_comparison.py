"""The text of a comparison."""

from __future__ import annotations

from etdeploy.compare.model import OperatorChange, OutputDifference
from etdeploy.compare.runs import compare_runs
from etdeploy.report.terminal.comparison import comparison_text, headline
from etdeploy.report.terminal.latencies import WIDTH
from tests.support.bench_values import make_device, make_program
from tests.support.compare_values import paired_runs, separate_runs, slower_by


def test_pairs_are_shown_below_the_verdict() -> None:
    runs = paired_runs(slower_by(1.05), of_b={"program": make_program(sha256="12" * 32)})
    text = comparison_text(compare_runs(*runs))
    assert text.startswith(
        "slower: B takes 1.050 times as long as A, between 1.050 and 1.050 with 95 % confidence\n"
    )
    assert text.splitlines()[2:6] == [
        "     recipe  median ms  starts  between starts  run",
        "  -  ------  ---------  ------  --------------  ----------------------------------",
        "  A  mlp         1.000       8           1.2 %  20261121T084449Z-mlp-host-aaaaaaaa",
        "  B  mlp         1.050       8           1.2 %  20261121T084449Z-mlp-host-bbbbbbbb",
    ]
    assert "   1  1.000  1.050   1.050" in text
    assert "A -> B       program abababab -> 12121212" in text
    assert text.endswith("record B     /out/20261121T084449Z-mlp-host-bbbbbbbb/record.json")


def test_what_cannot_be_compared_is_said_first_and_has_no_ratio() -> None:
    found = compare_runs(*paired_runs(slower_by(1.5), of_b={"device": make_device("qemu")}))
    text = comparison_text(found)
    assert text.startswith("not comparable: another device: its kind is host in A and qemu in B\n")
    assert "reason" not in text
    assert "times as long" not in text


def test_a_ratio_without_bounds_says_so() -> None:
    found = compare_runs(*separate_runs((1.5,)))
    assert headline(found).endswith("B takes 1.500 times as long as A, with unknown confidence")


def test_operators_and_outputs_are_shown() -> None:
    found = compare_runs(*paired_runs(slower_by(1.05)))
    found = found.model_copy(
        update={
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
            ),
        }
    )
    text = comparison_text(found)
    assert "  conv      1.000  3.500  +2.500  stem.0\n  add       0.500      -  -0.500" in text
    assert "logits, B against A: largest difference 0.25, cosine similarity 0.998765" in text
    assert "same, B against A: equal" in text
    assert "gone of A and B cannot be compared: only A has it" in text


def test_lines_are_no_longer_than_100_columns_and_long_lists_are_cut() -> None:
    found = compare_runs(*paired_runs(slower_by(1.05)))
    found = found.model_copy(
        update={
            "pairs": found.pairs * 4,
            "differences": ("model.arguments.text " + "word " * 60,),
            "outputs": tuple(
                OutputDifference(name=f"o{i}", max_abs_error=1.0, cosine_similarity=None)
                for i in range(8)
            ),
        }
    )
    text = comparison_text(found)
    assert max(len(line) for line in text.splitlines() if "/out/" not in line) <= WIDTH
    assert "and 12 more: --json prints all" in text
    assert "and 3 more: --json prints all" in text
