"""How far a tensor is from the expected one.

NaN at the same place in both counts as equal, and so does the same infinity: the model itself
gives it. Error and cosine are those of the places that are finite in both.
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
class Distance:
    """How far two tensors are from each other.

    Attributes:
        max_abs_error: Over the places that are finite in both; None where there is none.
        cosine_similarity: Of the same places. 1 where both are zero, 0 where one of them is.
        odd_places: Places where only one is NaN or infinite, or both are in different ways.
        elements: All places.
        largest: Largest finite magnitude of the expected values.
    """

    max_abs_error: float | None
    cosine_similarity: float | None
    odd_places: int
    elements: int
    largest: float


def measure_distance(actual: NDArray[Any], expected: NDArray[Any]) -> Distance:
    """How far `actual` is from `expected`; both have one shape and data type."""
    import numpy as np

    elements = int(expected.size)
    if not np.issubdtype(expected.dtype, np.floating):
        return _exact_distance(actual, expected)
    a, e = (x.astype(np.float64).ravel() for x in (actual, expected))
    finite = np.isfinite(a) & np.isfinite(e)
    same = finite | (np.isnan(a) & np.isnan(e)) | (a == e)
    a, e = a[finite], e[finite]
    return Distance(
        # Halved, so that the difference of the two largest numbers does not overflow.
        max_abs_error=min(2 * float(np.abs(a / 2 - e / 2).max()), _LARGEST) if a.size else None,
        cosine_similarity=_cosine(a, e),
        odd_places=elements - int(np.count_nonzero(same)),
        elements=elements,
        largest=float(np.abs(e).max()) if e.size else 0.0,
    )


def _exact_distance(actual: NDArray[Any], expected: NDArray[Any]) -> Distance:
    """For integers and booleans: differences are exact, beyond 2^53 too."""
    import numpy as np

    a, e = actual.ravel(), expected.ravel()
    floats = [x.astype(np.float64) for x in (a, e)]
    # Unsigned numbers wrap around, so that larger minus smaller is right for every integer type.
    high, low = (x.astype(np.uint64) for x in (np.maximum(a, e), np.minimum(a, e)))
    return Distance(
        max_abs_error=float((high - low).max()) if e.size else None,
        cosine_similarity=_cosine(floats[0], floats[1]),
        odd_places=0,
        elements=int(e.size),
        largest=float(np.abs(floats[1]).max()) if e.size else 0.0,
    )


def _cosine(a: Floats, e: Floats) -> float | None:
    """Cosine of the angle; scaled first, so that squares neither overflow nor vanish."""
    import numpy as np

    if not a.size:
        return None
    largest_a, largest_e = float(np.abs(a).max()), float(np.abs(e).max())
    if largest_a == 0 or largest_e == 0:
        return 1.0 if largest_a == largest_e else 0.0
    a, e = a / largest_a, e / largest_e
    cosine = float(a @ e) / float(np.sqrt(a @ a) * np.sqrt(e @ e))
    return max(-1.0, min(1.0, cosine))
