"""How good a model is, in words."""

from __future__ import annotations

from typing import Any

import pytest

from etdeploy.program.generation import Evaluation
from etdeploy.program.quality import loss_lines, quality_lines
from tests.support.bench_values import make_loss
from tests.support.text_values import make_cost, make_evaluation


def test_the_perplexity_of_a_model_in_floats() -> None:
    assert list(quality_lines(make_evaluation())) == ["perplexity 14 on 100 tokens of text.txt"]
    assert list(quality_lines(make_evaluation(perplexity=None, tokens=1))) == [
        "perplexity undefined on 1 token of text.txt"
    ]


def test_what_quantization_costs() -> None:
    assert list(quality_lines(make_evaluation(14.5))) == [
        "perplexity 14.5 on 100 tokens of text.txt; before quantization 14",
        "the same token is the most probable at 95.2 % of positions; KL divergence 0.0123 on "
        "average, at most 0.4; logits 0.312 apart (root mean square), at most 2.4",
    ]


@pytest.mark.parametrize(
    ("evaluation", "is_high"),
    [
        (make_evaluation(18.1), False),
        (make_evaluation(18.3), True),
        (make_evaluation().model_copy(update={"quantized": make_cost(perplexity=None)}), True),
        (make_evaluation(20.0, perplexity=None), False),
        (make_evaluation(), False),
    ],
)
def test_when_the_loss_of_perplexity_is_high(evaluation: Evaluation, is_high: bool) -> None:
    first = next(quality_lines(evaluation))
    assert first.startswith("QUANTIZATION LOSS: ") is is_high


@pytest.mark.parametrize(
    ("changes", "is_high"),
    [
        ({}, False),
        ({"cosine_similarity": 0.9899}, True),
        ({"cosine_similarity": 1.0, "sqnr_db": 13.9}, True),  # a single value, or another scale
        ({"undefined": 1}, True),
        ({"cosine_similarity": None, "sqnr_db": None, "equal_percent": 98.0}, True),
        ({"cosine_similarity": None, "sqnr_db": None, "equal_percent": 100.0}, False),
        ({"cosine_similarity": 1.0, "sqnr_db": None, "max_abs_error": 0.0}, False),
    ],
)
def test_when_the_loss_of_an_output_is_high(changes: dict[str, Any], is_high: bool) -> None:
    loss = make_loss(**changes)
    assert loss.is_high is is_high
    [line] = loss_lines([loss])
    assert line.startswith("QUANTIZATION LOSS: ") is is_high


def test_the_measures_of_an_output() -> None:
    assert list(loss_lines([make_loss()])) == [
        "scores against the unquantized model: cosine 0.9990, SQNR 27.0 dB, largest error 0.125"
    ]
    assert make_loss(cosine_similarity=0.99999994).text.startswith("cosine 0.9999999, ")
    counted = make_loss(cosine_similarity=None, sqnr_db=None, equal_percent=98.0, undefined=2)
    assert counted.text == (
        "98 % of the values are equal, largest error 0.125, 2 values NaN or infinite on one side "
        "only"
    )
    assert make_loss(sqnr_db=20.0).noise == pytest.approx(0.1)
    assert make_loss(sqnr_db=None).noise is None


def test_of_many_outputs_the_worst_are_shown() -> None:
    losses = [make_loss(name=f"cache_{i}", cosine_similarity=0.9999 - i / 1e5) for i in range(7)]
    lines = list(loss_lines([*losses, make_loss(name="bad", cosine_similarity=0.8)]))
    assert [line.split(" against")[0] for line in lines] == [
        "cache_3", "cache_4", "cache_5", "cache_6", "QUANTIZATION LOSS: bad",
        "3 other outputs closer to the unquantized model",
    ]  # fmt: skip
