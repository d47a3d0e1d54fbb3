"""How far outputs may differ from the expected ones.

Floats: the largest error may be a share of the largest expected value, and the cosine of the angle
between the outputs must not fall below a limit. Both follow from the data type and the scheme of
the quantization. Integers have to be equal.

Outputs on a grid, where the last step of a static quantization puts them: the device and the eager
model round to the grid independently, so that values between two steps go either way. Where an
output takes few steps, that alone moves the cosine, which then says nothing. Three limits take its
place; N values with the step q are compared, e are the expected ones and d the errors:

1. The largest |d| is at most 15 % of the largest |e|, or two steps where that is more.
2. mean(d²) is at most (10 % of the root mean square of e)² + q² (1/2 + 3/(2 √N)).
   10 % is a cosine of 0.995 for errors without direction. One half: every other value may be one
   step off; two independent roundings of the same values differ by q²/6. The last term is four
   standard deviations of the mean for few values.
3. From N = 16 on, mean(d²) is at most the variance of e + q² (1/2 + 3/(2 √N)): values in another
   order are off by twice their variance, however large their common offset is.

A limit of the recipe replaces those that it is about: `max_abs_error` the first,
`cosine_similarity` the other two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etdeploy.program.generation import LogitNoise
from etdeploy.program.quality import TensorDistance
from etdeploy.recipe.sections.benchmark import Tolerance

if TYPE_CHECKING:
    from numpy.typing import NDArray


# How many times as far as rounding moved logits on the host they may be on a device.
_TIMES_NOISE = 2.0


@dataclass(frozen=True)
class Limits:
    """The largest errors and the least cosine of a correct output; None for no limit.

    The cosine is not checked if the largest error is at most `negligible`, which is 0 if the
    recipe sets the limit.
    """

    max_abs_error: float
    cosine_similarity: float | None
    rms_error: float | None = None
    negligible: float = 0.0


@dataclass(frozen=True)
class _Rule:
    """A limit that grows with the largest expected magnitude, since rounding does."""

    relative: float
    absolute: float
    cosine: float


# Float types: sums of some thousand products in another order than eager PyTorch's, and functions
# like exp with another approximation, differ by some hundred units in the last place.
_FLOATS = {
    "float64": _Rule(1e-4, 1e-6, 0.9999),  # XNNPACK may compute it in 32 bits
    "float32": _Rule(1e-4, 1e-6, 0.9999),  # unit in the last place 1.2e-7
    "float16": _Rule(2e-2, 1e-4, 0.999),  # 9.8e-4, fewer terms can hide in it
    "bfloat16": _Rule(6e-2, 1e-3, 0.995),  # 7.8e-3
}

# Quantized programs are compared with the quantized eager model, which computes in floats between
# its quantization steps. A value that lies between two steps may go either way on the device, and
# the next layers carry that on, so that single elements stray: the cosine is the sharper judge.
# Measured with the bundled examples under XNNPACK, relative to the largest expected value:
# int8_static up to 6.2 % with a cosine of at least 0.9994 (transformer, convnet), int8_dynamic
# 1.3 % and 0.9999, 8da4w 1.8 % and 0.9999; unquantized 2e-6.
_QUANTIZED = {
    "fp16": _FLOATS["float16"],
    "bf16": _FLOATS["bfloat16"],  # no recipe names it: a backend whose 16-bit floats are these
    "int8_static": _Rule(15e-2, 1e-6, 0.995),
    "int8_dynamic": _Rule(5e-2, 1e-6, 0.995),
    "8da4w": _Rule(5e-2, 1e-6, 0.995),
    "8da8w": _Rule(5e-2, 1e-6, 0.995),
    # Static like int8_static. In QNN's simulator up to 2.1 %, 0.05 %, 0.18 % and 2.5 %, with
    # cosines of 0.9999, 0.999999, 0.999999 and 0.9997.
    "8a4w": _Rule(15e-2, 1e-6, 0.995),
    "16a8w": _Rule(15e-2, 1e-6, 0.995),
    "16a4w": _Rule(15e-2, 1e-6, 0.995),
    "16a4w_block": _Rule(15e-2, 1e-6, 0.995),
}


# The limits of outputs on a grid, as the module's docstring has them.
_STEPS_OFF = 2
_SHARE_OF_VALUES = 0.1
_MEAN_SQUARE_STEPS = 0.5
_FEW_VALUES = 1.5
_LEAST_FOR_ORDER = 16


def limits_for(
    dtype: str,
    quantization: str | None,
    distance: TensorDistance,
    override: Tolerance,
    step: float | None = None,
    noise: LogitNoise | None = None,
) -> Limits:
    """Return the limits of one output; those of the recipe, `override`, replace the others.

    Integers and booleans must be equal by default. `distance` has the number and size of the
    expected values, `step` is that of a quantized output, and `noise` that of logits.
    """
    if dtype not in _FLOATS:
        return Limits(override.max_abs_error or 0.0, override.cosine_similarity)
    scheme = "int8_static" if step else quantization or "none"
    rule = _wider(_FLOATS[dtype], _QUANTIZED.get(scheme))
    chosen = rule.absolute + max(rule.relative * distance.largest, _STEPS_OFF * (step or 0.0))
    chosen, cosine = _beyond(noise, chosen, rule.cosine)
    largest = chosen if override.max_abs_error is None else override.max_abs_error
    if override.cosine_similarity is not None:
        return Limits(largest, override.cosine_similarity)
    if step:
        return Limits(largest, None, rms_error=_rms_limit(distance, step))
    return Limits(largest, cosine, negligible=rule.absolute)


def logit_limit(
    largest: float, quantization: str | None, noise: LogitNoise | None, override: float | None
) -> float:
    """Return how much a logit may differ from the eager model's."""
    if override is not None:
        return override
    rule = _wider(_FLOATS["float32"], _QUANTIZED.get(quantization or "none"))
    chosen = rule.absolute + rule.relative * largest
    return _beyond(noise, chosen, 1.0)[0]


def logit_cosine(
    quantization: str | None, noise: LogitNoise | None, override: float | None
) -> float | None:
    """Return the least cosine of the logits at one position; None if the recipe has a limit.

    The angle may be twice as large as that of a whole output, because a position has few logits.
    """
    if override is not None:
        return None
    rule = _wider(_FLOATS["float32"], _QUANTIZED.get(quantization or "none"))
    return _beyond(noise, 0.0, 1 - 4 * (1 - rule.cosine))[1]


def _beyond(noise: LogitNoise | None, largest: float, cosine: float) -> tuple[float, float]:
    """The limits, or those of the noise where it is larger."""
    if noise is None:
        return largest, cosine
    # 1 - cosine grows with the square of the error.
    least = 1 - _TIMES_NOISE**2 * (1 - noise.min_cosine)
    return max(largest, _TIMES_NOISE * noise.max_error), min(cosine, least)


def _rms_limit(distance: TensorDistance, step: float) -> float:
    count = max(1, distance.compared)
    rounding = step * math.sqrt(_MEAN_SQUARE_STEPS + _FEW_VALUES / math.sqrt(count))
    limit = math.hypot(_SHARE_OF_VALUES * distance.rms, rounding)
    if count < _LEAST_FOR_ORDER:
        return limit
    return min(limit, math.hypot(distance.deviation, rounding))


def _wider(first: _Rule, second: _Rule | None) -> _Rule:
    if second is None:
        return first
    return _Rule(
        max(first.relative, second.relative),
        max(first.absolute, second.absolute),
        min(first.cosine, second.cosine),
    )


# torch's names that numpy shares; bfloat16 is the upper half of a float32.
_NUMPY = ("float64", "float32", "float16", "bool", "int8", "int16", "int32", "int64",
          "uint8", "uint16", "uint32", "uint64")  # fmt: skip


class UnreadableTensorError(Exception):
    """Bytes that are not a tensor of the given data type and shape."""


def read_tensor(path: Path, dtype: str, shape: Sequence[int]) -> NDArray[Any]:
    """Read a contiguous little-endian tensor; bfloat16 becomes float32.

    Raises UnreadableTensorError for a missing file, a wrong size, or an unsupported data type.
    """
    import numpy as np

    if dtype != "bfloat16" and dtype not in _NUMPY:
        raise UnreadableTensorError(f"outputs of data type {dtype} cannot be compared")
    stored = np.dtype("uint16" if dtype == "bfloat16" else dtype).newbyteorder("<")
    expected_bytes = prod(shape) * stored.itemsize
    try:
        size_bytes = path.stat().st_size
        if size_bytes != expected_bytes:
            raise UnreadableTensorError(
                f"{path.name} has {size_bytes} bytes instead of {expected_bytes}"
            )
        values: NDArray[Any] = np.fromfile(path, stored)
    except OSError as error:
        raise UnreadableTensorError(f"{path.name} cannot be read: {error.strerror}") from error
    if dtype == "bfloat16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return values.reshape(tuple(shape))


# Three values are on some grid by chance; four fit one to a hundredth of a step once in 2,500.
_LEAST_VALUES = 4
_OFF_GRID = 0.01
# Quantized values have at most 16 bits.
_MOST_STEPS = 1 << 16


def estimate_step(actual: NDArray[Any], expected: NDArray[Any]) -> float | None:
    """Estimate the quantization step of an output whose scale the exporter did not see.

    It is the smallest difference between values, if all of them are on a grid with that step; as
    a quantized output has few distinct values, neighbours usually occur. None otherwise.
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
