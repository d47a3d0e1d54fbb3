"""How far a program's outputs are from the model's, and how good a language model is, in words."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from etdeploy.core.console import count
from etdeploy.core.values import Value
from etdeploy.program.generation import Evaluation, QuantizationCost

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


LOWEST_COSINE = 0.99
"""Below it, an output is reported as far from the unquantized model's."""
# Noise of a fifth of the signal: also shows a wrong scale, and an error of a single value, which
# have a cosine of 1.
_LOWEST_SQNR_DB = 14.0
_LOWEST_EQUAL_PERCENT = 99.0
_HIGH = "QUANTIZATION LOSS: "


class OutputLoss(Value):
    """How far an output of the quantized model is from the unquantized model's, both run eagerly.

    Both get the example inputs, and language models the text on which they are evaluated. Measures
    are over the values that are finite in both.

    Attributes:
        name: As in the model's code, or `output_0` and so on.
        cosine_similarity: Cosine of the angle between both; null for integers and booleans, and
            where nothing is finite.
        sqnr_db: Signal to quantization noise ratio: 20 times the decimal logarithm of the root mean
            square of the unquantized values divided by that of the differences. null where one of
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
        """Root mean square of the differences by that of the unquantized values: 0.1 at 20 dB."""
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
    """What quantization costs, an output a line: those that it moves most, in the outputs' order.

    Args:
        losses: Of all outputs; empty for a model that is not quantized.
        most: Lines for outputs.
    """
    shown = sorted(losses, key=_rank)[:most]
    for loss in (each for each in losses if each in shown):
        high = _HIGH if loss.is_high else ""
        yield f"{high}{loss.name} against the unquantized model: {loss.text}"
    if len(losses) > most:
        yield f"{count(len(losses) - most, 'other output')} closer to the unquantized model"


def _rank(loss: OutputLoss) -> tuple[bool, float]:
    """The worst first."""
    cosine = 1.0 if loss.cosine_similarity is None else loss.cosine_similarity
    return not loss.is_high, cosine


def _below_one(cosine: float) -> str:
    """With as many digits as tell it from 1."""
    text = f"{cosine:.4f}"
    return text if text != "1.0000" or cosine == 1 else f"{cosine:.7g}"


def quality_lines(evaluation: Evaluation) -> Iterator[str]:
    """Perplexity, and what quantization costs."""
    cost, on = evaluation.quantized, f"on {count(evaluation.tokens, 'token')} of {evaluation.file}"
    original = _number(evaluation.perplexity, 4)
    if cost is None:
        yield f"perplexity {original} {on}"
        return
    high = _HIGH if evaluation.has_large_loss else ""
    yield f"{high}perplexity {_number(cost.perplexity, 4)} {on}; before quantization {original}"
    yield _cost(cost)


def _cost(cost: QuantizationCost) -> str:
    """How far the quantized model is from the original."""
    return (
        f"the same token is the most probable at {cost.same_top_percent:.1f} % of positions; KL "
        f"divergence {_number(cost.mean_kl_divergence)} on average, at most "
        f"{_number(cost.max_kl_divergence)}; logits {_number(cost.logit_rms_error)} apart (root "
        f"mean square), at most {_number(cost.logit_max_abs_error)}"
    )


def _number(value: float | None, digits: int = 3) -> str:
    return "undefined" if value is None else f"{value:,.{digits}g}"


_LARGEST = sys.float_info.max


@dataclass(frozen=True)
class TensorDistance:
    """How far two tensors are from each other.

    Attributes:
        max_abs_error: Over the places that are finite in both; None where there is none.
        rms_error: Root of the mean square difference of the same places.
        cosine_similarity: Of the same places. Exactly 1 where they are equal, 0 where only one
            side is all zeros.
        odd_places: Places where only one is NaN or infinite, or both are in different ways.
        elements: All places.
        compared: Places that are finite in both.
        largest, rms, deviation: Of the expected values at those: the largest magnitude, the root
            of the mean square, the standard deviation.
    """

    max_abs_error: float | None
    rms_error: float | None
    cosine_similarity: float | None
    odd_places: int
    elements: int
    compared: int
    largest: float
    rms: float
    deviation: float


def measure_distance(actual: NDArray[Any], expected: NDArray[Any]) -> TensorDistance:
    """How far `actual` is from `expected`; both have the same shape and data type."""
    import numpy as np

    if not np.issubdtype(expected.dtype, np.floating):
        return _exact_distance(actual, expected)
    a, e = (x.astype(np.float64).ravel() for x in (actual, expected))
    finite = np.isfinite(a) & np.isfinite(e)
    same = finite | (np.isnan(a) & np.isnan(e)) | (a == e)
    a, e = a[finite], e[finite]
    # Halved, so that the difference of the two largest numbers does not overflow.
    halves = np.abs(a / 2 - e / 2)
    return _distance(a, e, halves, int(expected.size), int(np.count_nonzero(~same)))


def _exact_distance(actual: NDArray[Any], expected: NDArray[Any]) -> TensorDistance:
    """For integers and booleans: differences are exact, beyond 2^53 too."""
    import numpy as np

    a, e = actual.ravel(), expected.ravel()
    floats = [x.astype(np.float64) for x in (a, e)]
    # Unsigned numbers wrap around, so that larger minus smaller is right for every integer type.
    high, low = (x.astype(np.uint64) for x in (np.maximum(a, e), np.minimum(a, e)))
    return _distance(floats[0], floats[1], (high - low).astype(np.float64) / 2, int(e.size), 0)


def _distance(
    a: Floats, e: Floats, halves: Floats, elements: int, odd_places: int
) -> TensorDistance:
    import numpy as np

    if not e.size:
        return TensorDistance(None, None, None, odd_places, elements, 0, 0.0, 0.0, 0.0)
    return TensorDistance(
        max_abs_error=min(2 * float(halves.max()), _LARGEST),
        rms_error=min(2 * _rms(halves), _LARGEST),
        cosine_similarity=_cosine(a, e) if halves.any() else 1.0,
        odd_places=odd_places,
        elements=elements,
        compared=int(e.size),
        largest=float(np.abs(e).max()),
        rms=_rms(e),
        deviation=min(2 * _rms(e / 2 - np.mean(e / 2)), _LARGEST),
    )


def _rms(values: Floats) -> float:
    """Root of the mean square; scaled first, so that squares neither overflow nor vanish."""
    import numpy as np

    largest = float(np.abs(values).max())
    if largest == 0:
        return 0.0
    scaled = values / largest
    return largest * float(np.sqrt(np.mean(scaled * scaled)))


def _cosine(a: Floats, e: Floats) -> float:
    """Cosine of the angle; scaled first like the root of the mean square."""
    import numpy as np

    largest_a, largest_e = float(np.abs(a).max()), float(np.abs(e).max())
    if largest_a == 0 or largest_e == 0:
        return 0.0
    a, e = a / largest_a, e / largest_e
    cosine = float(a @ e) / float(np.sqrt(a @ a) * np.sqrt(e @ e))
    return max(-1.0, min(1.0, cosine))
