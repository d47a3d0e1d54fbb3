"""Tensors as raw bytes in files."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray


# torch's names that numpy shares; bfloat16 is the upper half of a float32.
_NUMPY = ("float64", "float32", "float16", "bool", "int8", "int16", "int32", "int64",
          "uint8", "uint16", "uint32", "uint64")  # fmt: skip


class UnreadableTensorError(Exception):
    """Bytes that are not a tensor of the given data type and shape."""


def read_tensor(path: Path, dtype: str, shape: Sequence[int]) -> NDArray[Any]:
    """The contiguous little-endian tensor in a file; bfloat16 comes as float32.

    Raises:
        UnreadableError: The file is missing, has another size, or the data type has no values
            that can be compared.
    """
    import numpy as np

    if dtype != "bfloat16" and dtype not in _NUMPY:
        raise UnreadableTensorError(f"outputs of data type {dtype} cannot be compared")
    stored = np.dtype("uint16" if dtype == "bfloat16" else dtype).newbyteorder("<")
    wanted = prod(shape) * stored.itemsize
    try:
        size_bytes = path.stat().st_size
        if size_bytes != wanted:
            raise UnreadableTensorError(f"{path.name} has {size_bytes} bytes instead of {wanted}")
        values: NDArray[Any] = np.fromfile(path, stored)
    except OSError as error:
        raise UnreadableTensorError(f"{path.name} cannot be read: {error.strerror}") from error
    if dtype == "bfloat16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return values.reshape(tuple(shape))


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
