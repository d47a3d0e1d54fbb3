"""Weights of torchao, made floats once and not for each token."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def dequantized_once() -> Iterator[None]:
    """While the block runs, a quantised weight that is used keeps its values as floats.

    torchao computes them anew in each call of a layer: that was nearly all of the time in which a
    model with 4-bit weights gives a token. They take four bytes for each weight, as those of the
    original did.
    """
    from torchao.quantization import IntxUnpackedToInt8Tensor

    compute = IntxUnpackedToInt8Tensor.dequantize
    # The weight itself is kept, too: another one cannot have its id then.
    known: dict[int, tuple[Any, torch.Tensor]] = {}

    def dequantize(weight: Any) -> torch.Tensor:
        if id(weight) not in known:
            known[id(weight)] = weight, compute(weight)
        return known[id(weight)][1]

    IntxUnpackedToInt8Tensor.dequantize = dequantize
    try:
        yield
    finally:
        IntxUnpackedToInt8Tensor.dequantize = compute
