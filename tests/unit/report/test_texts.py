"""What reports say of texts that were compared with the model's, and of its quality."""

from __future__ import annotations

from etdeploy.bench.records.generation import TextGeneration
from etdeploy.bench.records.stored import StoredRun
from etdeploy.report.formatting import original_lines, verdict_lines
from etdeploy.report.html.cards import cards
from etdeploy.report.html.single import single_page
from etdeploy.report.markdown import markdown
from etdeploy.report.report_data import Material, Report
from etdeploy.report.terminal.summary import summary
from tests.support.bench_values import FOLDER
from tests.support.text_values import (
    make_evaluation,
    make_text_check,
    make_text_record,
    make_text_workload,
)

TIE = {
    "token_ids": (10, 12), "equal_tokens": 1, "gap": 0.001, "tolerance_gap": 0.002,
}  # fmt: skip
PARTING = (
    "text_0: token 2 of 2 is 12 in place of 11, whose logit is 0.001 larger (0.002 is within "
    "tolerance)"
)


def _workload(*texts: object, **changes: object) -> TextGeneration:
    return make_text_workload().model_copy(update={"texts": texts, **changes})


def test_texts_that_are_the_models() -> None:
    both = _workload(make_text_check(), make_text_check(name="text_1"))
    assert list(verdict_lines(both)) == [
        "correct: token for token the model's, run eagerly (2 and 2 tokens)"
    ]


def test_a_text_that_parts_where_tokens_are_nearly_as_probable() -> None:
    assert list(verdict_lines(_workload(make_text_check(**TIE)))) == [
        "correct: the model's logits, run eagerly, within 0 at 2 positions",
        PARTING,
    ]


def test_texts_that_are_wrong() -> None:
    wrong = make_text_check(**TIE, within_tolerance=False)
    right = make_text_check(name="text_1")
    assert list(verdict_lines(_workload(wrong, right))) == [
        "WRONG: 1 of 2 texts is not what the model gives",
        PARTING,
    ]


def test_what_quantisation_does_to_the_text() -> None:
    same = make_text_check(original_ids=(10, 11), original_equal_tokens=2)
    other = make_text_check(original_ids=(10, 19), original_equal_tokens=1)
    assert list(original_lines([same])) == ["the model gives the same before it is quantised"]
    assert list(original_lines([same, other])) == [
        "before it is quantised, the model gives another text from token 2 of 2 on (text_0)"
    ]
    assert next(verdict_lines(_workload(same))).startswith("correct: token for token the quantised")


def test_every_report_says_it() -> None:
    workload = _workload(make_text_check(), evaluation=make_evaluation(14.5))
    record = make_text_record(workload=workload)
    text = " ".join(summary(StoredRun(FOLDER, record)).split())
    assert "outputs correct: token for token the model's, run eagerly (2 tokens)" in text
    assert "quality perplexity 14.5 on 100 tokens" in text
    material = Material(StoredRun(FOLDER, record), "tiny")
    told = markdown(Report((material,)))
    assert "| text | correct: token for token the model's" in told
    assert "perplexity 14.5 on 100 tokens" in told
    page = repr(single_page(material).sections)
    assert "The sky … is blue" in page
    assert "perplexity 14.5 on 100 tokens" in page
    assert "token for token the model's" in repr(cards(material))
