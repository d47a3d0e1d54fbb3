"""How far a tensor is from the expected one.

NaN at the same place in both counts as equal, and so does the same infinity: the model itself
produces it. Errors and cosine cover the places that are finite in both.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

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
