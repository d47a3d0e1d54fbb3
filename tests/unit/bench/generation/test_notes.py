"""What a reader of a record about generated text has to know."""

from __future__ import annotations

from etdeploy.bench.assemble import generation_notes
from tests.support.text_values import make_text_workload


def test_nothing_is_told_of_a_run_that_lacks_nothing() -> None:
    workload = make_text_workload()
    assert list(generation_notes(workload, has_tokenizer=False)) == []


def test_what_is_missing_or_by_chance_is_told() -> None:
    workload = make_text_workload()
    odd = workload.first.model_copy(update={"distinct": 2})
    changed = workload.model_copy(update={"points": (odd,)})
    by_chance, no_text = generation_notes(changed, has_tokenizer=True)
    assert "6 generations of the same prompt" in by_chance
    assert "gave 2 different texts" in by_chance
    assert "[llm]'" in no_text
