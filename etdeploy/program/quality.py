"""How far quantisation moves a model's outputs, and how good a language model is, in words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from etdeploy.core.console import count
from etdeploy.core.values import Value
from etdeploy.program.expected import Evaluation, QuantizationCost

LOWEST_COSINE = 0.99
"""Below it, an output is reported as far from the unquantised model's."""
# Noise of a fifth of the signal: also shows a wrong scale, and an error of a single value, which
# have a cosine of 1.
_LOWEST_SQNR_DB = 14.0
_LOWEST_EQUAL_PERCENT = 99.0
_HIGH = "QUANTISATION LOSS: "


class OutputLoss(Value):
    """How far an output of the quantised model is from the unquantised model's, both run eagerly.

    Both get the example inputs. Measures are over the values that are finite in both.

    Attributes:
        name: As in the model's code, or `output_0` and so on.
        cosine_similarity: Cosine of the angle between both; null for integers and booleans, and
            where nothing is finite.
        sqnr_db: Signal to quantisation noise ratio: 20 times the decimal logarithm of the root mean
            square of the unquantised values divided by that of the differences. null where one of
            these is 0, and for integers and booleans.
        max_abs_error: The largest difference; null where nothing is finite.
        equal_percent: Of the integers or booleans, how many are equal; null for floats.
        undefined: Values that are NaN or infinite in one of both only.
    """

    name: str
    cosine_similarity: float | None
    sqnr_db: float | None
    max_abs_error: float | None
    equal_percent: float | None = None
    undefined: int = 0

    @property
    def is_high(self) -> bool:
        """Whether the output is so far away that a user has to know."""
        limits = (
            (self.cosine_similarity, LOWEST_COSINE),
            (self.sqnr_db, _LOWEST_SQNR_DB),
            (self.equal_percent, _LOWEST_EQUAL_PERCENT),
        )
        is_low = any(value is not None and value < lowest for value, lowest in limits)
        return is_low or self.undefined > 0

    @property
    def noise(self) -> float | None:
        """Root mean square of the differences by that of the unquantised values: 0.1 at 20 dB."""
        return None if self.sqnr_db is None else math.pow(10, -self.sqnr_db / 20)

    @property
    def text(self) -> str:
        """The measures as a clause: `cosine 0.83, SQNR 4.9 dB, largest error 1.2`."""
        parts = []
        if self.cosine_similarity is not None:
            parts.append(f"cosine {_below_one(self.cosine_similarity)}")
        if self.sqnr_db is not None:
            parts.append(f"SQNR {self.sqnr_db:.1f} dB")
        if self.equal_percent is not None:
            parts.append(f"{self.equal_percent:.4g} % of the values are equal")
        if self.max_abs_error is not None:
            parts.append(f"largest error {self.max_abs_error:.3g}")
        if self.undefined:
            parts.append(f"{count(self.undefined, 'value')} NaN or infinite on one side only")
        return ", ".join(parts) or "no finite value"


def loss_lines(losses: Sequence[OutputLoss], most: int = 5) -> Iterator[str]:
    """What quantisation costs, an output a line: those that it moves most, in the outputs' order.

    Args:
        losses: Of all outputs; empty for a model that is not quantised.
        most: Lines for outputs.
    """
    shown = sorted(losses, key=_rank)[:most]
    for loss in (each for each in losses if each in shown):
        high = _HIGH if loss.is_high else ""
        yield f"{high}{loss.name} against the unquantised model: {loss.text}"
    if len(losses) > most:
        yield f"{count(len(losses) - most, 'other output')} closer to the unquantised model"


def _rank(loss: OutputLoss) -> tuple[bool, float]:
    """The worst first."""
    cosine = 1.0 if loss.cosine_similarity is None else loss.cosine_similarity
    return not loss.is_high, cosine


def _below_one(cosine: float) -> str:
    """With as many digits as tell it from 1."""
    text = f"{cosine:.4f}"
    return text if text != "1.0000" or cosine == 1 else f"{cosine:.7g}"


def quality_lines(evaluation: Evaluation) -> Iterator[str]:
    """Perplexity, and what quantisation costs."""
    cost, on = evaluation.quantized, f"on {count(evaluation.tokens, 'token')} of {evaluation.file}"
    original = _number(evaluation.perplexity, 4)
    if cost is None:
        yield f"perplexity {original} {on}"
        return
    high = _HIGH if evaluation.has_large_loss else ""
    yield f"{high}perplexity {_number(cost.perplexity, 4)} {on}; before quantisation {original}"
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
