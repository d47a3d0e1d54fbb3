"""The step of an output's quantisation: the least difference between two of its values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Two or three values lie on some grid by chance; four fit one to a hundredth of a step once in
# 2,500 times.
_LEAST_VALUES = 4
_OFF_GRID = 0.01
# No quantisation has more steps than 16 bits count.
_MOST_STEPS = 1 << 16


def estimate_step(actual: NDArray[Any], expected: NDArray[Any]) -> float | None:
    """The least spacing of the values of both, where all of them lie on a grid with that step.

    For an output whose scale the exporter did not see. A quantised output has few distinct values,
    so neighbours usually occur; where they do not, or where one side is off the grid, there is no
    estimate, and the output is judged like one that is not quantised.

    Args:
        actual: Floats.
        expected: Of the same shape.

    Returns:
        The step, in the output's unit.
    """
    import numpy as np

    both = np.concatenate([x.astype(np.float64).ravel() for x in (actual, expected)])
    values = np.unique(both[np.isfinite(both)])
    if not _LEAST_VALUES <= values.size <= _MOST_STEPS:
        return None
    values = values / np.abs(values).max()  # differences of the largest numbers would overflow
    gaps = np.diff(values)
    # Equal numbers may differ in the last place of a 32-bit float.
    gaps = gaps[gaps > np.ptp(values) / _MOST_STEPS]
    step = float(gaps.min())
    places = (values - values[0]) / step
    if np.abs(places - np.rint(places)).max() > _OFF_GRID:
        return None
    return step * float(np.abs(both[np.isfinite(both)]).max())
