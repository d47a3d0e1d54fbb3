"""Generated text, as every report shows it."""

from __future__ import annotations

from etdeploy.bench.generation.work import WorkPoint
from etdeploy.report.formatting import COLUMNS, headline, outside, point_cells, texts, told_text
from tests.support.text_values import TRACED, make_text_workload, make_work

PROMPT_ONLY = make_text_workload(work=make_work(WorkPoint(tuple(range(8)), 1, 0, 1, 2)))


def test_a_point_has_a_cell_for_each_column() -> None:
    cells = dict(zip(COLUMNS, point_cells(make_text_workload().first), strict=True))
    assert cells == {
        "prompt": "8", "new": "4", "depth": "0", "first token": "5.005 ms",
        "prefill tok/s": "1,598", "decode tok/s": "198", "per token": "5.055 ms",
        "p90": "5.128 ms",
    }  # fmt: skip


def test_what_was_not_generated_has_no_rate() -> None:
    assert point_cells(PROMPT_ONLY.first)[-3:] == ("–", "–", "–")
    assert headline(PROMPT_ONLY).startswith("first token after 5.005 ms (prompt 8, new 1)")


def test_a_text_is_one_line_and_shown_for_a_prompt_only() -> None:
    workload = make_text_workload()
    point = workload.first.model_copy(update={"text": " a\nb\x1b[31m "})
    random_prompt = workload.model_copy(update={"points": (point,)})
    assert told_text(random_prompt) is None
    assert told_text(random_prompt.model_copy(update={"prompt": "x"})) == "a b [31m"
    assert told_text(workload.model_copy(update={"prompt": "x"})) is None


def test_numbers_of_generations_are_a_range_where_points_differ() -> None:
    one = make_text_workload().first
    assert texts([one]) == "6"
    assert texts([one, one.model_copy(update={"generations": 3})]) == "3 to 6"


def test_each_method_has_its_share_outside_of_delegates() -> None:
    assert outside(make_text_workload(methods=TRACED)) == "decode 4.5 %, prefill 3 %"
