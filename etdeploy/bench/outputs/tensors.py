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


class UnreadableError(Exception):
    """Bytes that are not a tensor of the given data type and shape."""


def read_tensor(path: Path, dtype: str, shape: Sequence[int]) -> NDArray[Any]:
    """The contiguous little-endian tensor in a file; bfloat16 comes as float32.

    Raises:
        UnreadableError: The file is missing, has another size, or the data type has no values
            that can be compared.
    """
    import numpy as np

    if dtype != "bfloat16" and dtype not in _NUMPY:
        raise UnreadableError(f"outputs of data type {dtype} cannot be compared")
    stored = np.dtype("uint16" if dtype == "bfloat16" else dtype).newbyteorder("<")
    wanted = prod(shape) * stored.itemsize
    try:
        size_bytes = path.stat().st_size
        if size_bytes != wanted:
            raise UnreadableError(f"{path.name} has {size_bytes} bytes instead of {wanted}")
        values: NDArray[Any] = np.fromfile(path, stored)
    except OSError as error:
        raise UnreadableError(f"{path.name} cannot be read: {error.strerror}") from error
    if dtype == "bfloat16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return values.reshape(tuple(shape))
