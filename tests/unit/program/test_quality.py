"""How good a model is, in words."""

from __future__ import annotations

from etdeploy.program.quality import quality_lines
from tests.support.text_values import make_evaluation


def test_the_perplexity_of_a_model_in_floats() -> None:
    assert list(quality_lines(make_evaluation())) == ["perplexity 14 on 100 tokens of text.txt"]
    assert list(quality_lines(make_evaluation(perplexity=None, tokens=1))) == [
        "perplexity undefined on 1 token of text.txt"
    ]


def test_what_quantisation_costs() -> None:
    assert list(quality_lines(make_evaluation(14.5))) == [
        "perplexity 14.5 on 100 tokens of text.txt; before quantisation 14",
        "the same token is the most probable at 95.2 % of positions; KL divergence 0.0123 on "
        "average, at most 0.4; logits 0.312 apart (root mean square), at most 2.4",
    ]
