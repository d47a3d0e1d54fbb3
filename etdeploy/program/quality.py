"""How good a model is, in words."""

from __future__ import annotations

from collections.abc import Iterator

from etdeploy.core.console import count
from etdeploy.program.expected import Evaluation, QuantizationCost


def quality_lines(evaluation: Evaluation) -> Iterator[str]:
    """Perplexity, and what quantisation costs."""
    cost, on = evaluation.quantized, f"on {count(evaluation.tokens, 'token')} of {evaluation.file}"
    original = _number(evaluation.perplexity, 4)
    if cost is None:
        yield f"perplexity {original} {on}"
        return
    yield f"perplexity {_number(cost.perplexity, 4)} {on}; before quantisation {original}"
    yield _cost(cost)


def _cost(cost: QuantizationCost) -> str:
    """How far the quantised model is from the original."""
    return (
        f"the same token is the most probable at {cost.same_top_percent:.1f} % of positions; KL "
        f"divergence {_number(cost.mean_kl_divergence)} on average, at most "
        f"{_number(cost.max_kl_divergence)}; logits {_number(cost.logit_rms_error)} apart (root "
        f"mean square), at most {_number(cost.logit_max_abs_error)}"
    )


def _number(value: float | None, digits: int = 3) -> str:
    return "undefined" if value is None else f"{value:,.{digits}g}"
