"""Scales of 4-bit weights, the best of some around the largest weight, and how they are rounded.

torchao's default scale lets the largest weight of a group just fit. A smaller one clips it and
rounds all others more finely, which for most groups is the lesser error: on SmolLM2-135M-Instruct,
the KL divergence to the original is 0.32 with it instead of 0.42, and half of that with the errors
of columns weighted by their mean squared activations. Data-free and weighted search as in llama.cpp
(https://github.com/ggml-org/llama.cpp/blob/master/tools/imatrix/README.md), coarse and then fine.

GPTQ (https://arxiv.org/abs/2210.17323, algorithm 1) rounds the columns of a weight in turn, and
adds to those that follow what makes up best for the error on the inputs of the layer. Scales of a
group are searched for its weights as they are when it begins.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch

_LOW, _HIGH = -8, 7
# Factors of the smallest scale that clips nothing.
_FACTORS = tuple(percent / 100 for percent in range(70, 118, 8))
# What is added to the best of these: steps of 2 % around it.
_NEAR = (-0.04, -0.02, 0.02, 0.04)
_FEW_ROWS = 128
# Of a group of zeros: XNNPACK loads no program with a scale that is not positive.
_SMALLEST = 1e-8
# Weight of a column that the text leaves at zero, by the mean of all columns.
_FLOOR = 1e-4
Made = TypeVar("Made")
MEAN_SQUARES = "etdeploy_mean_squares"
"""An attribute of a weight: the mean squares of its layer's inputs, where PT2E quantizes it."""
# Weights at a time: temporary tensors of so many stay in the processor's cache.
_AT_ONCE = 2**18
# How much less than in the text inputs vary together elsewhere: without this, errors are moved to
# columns where other texts do not make up for them.
_SHRUNK = 0.3
# Of the mean diagonal, which is added to the second moments, and what it is multiplied by where
# they are still not positive definite.
_DAMPING, _MORE_DAMPING = 0.01, (1, 10, 100)
# Fewer tokens say less of how inputs vary together than an expert's routing varies by chance.
FEWEST_TOKENS = 64
# Of so many inputs, second moments, their factor and its inverse take 3 GB.
_MOST_INPUTS = 16_384
Seen = Callable[[torch.nn.Linear, torch.Tensor], None]
"""Takes a layer, which is about to compute, and its inputs, of shape (tokens, inputs)."""
Factors = Sequence[torch.Tensor]
"""Factors of the columns of a weight, of shape (1, inputs), or of its rows, (outputs, 1)."""
SeenGradients = Callable[[torch.nn.Linear, torch.Tensor, torch.Tensor], None]
"""Takes a layer, its inputs, and gradients of shape (tokens, outputs)."""


@dataclass(frozen=True)
class Activations:
    """How large the inputs of linear layers are on a text.

    Attributes:
        mean_squares: Of each input over the tokens, float32 of shape (inputs,), by the layer's
            `id()`. A layer that was not called has none.
        origin: The text, or why there is none, as a clause.
        read: For GPTQ: has the model read the text, in one call, up to the last of some layers. Of
            each, it tells the inputs, as layers give them that have been changed before.
        logits: For AWQ: those of the beginning of the text.
        gradients: For mixed bits: has the model read the text, tells of some layers the inputs and
            the gradients of outputs (`read_for_gradients`), and returns the number of tokens.
    """

    mean_squares: Mapping[int, torch.Tensor] = field(default_factory=dict)
    origin: str = ""
    read: Callable[[Collection[torch.nn.Linear], Seen], None] | None = None
    logits: Callable[[], torch.Tensor] | None = None
    gradients: Callable[[Collection[torch.nn.Linear], SeenGradients], int] | None = None


def on_threads(compute: Callable[..., Made], *arguments: Sequence[Any]) -> list[Made]:
    """What is computed of each, by as many threads as torch has, which use one each.

    OpenMP's threads would meet after each of some hundred small operators of a layer: with other
    work on the machine, that took 40 times as long.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(compute, *arguments))
    finally:
        torch.set_num_threads(threads)


def quantized_in_groups(
    weight: torch.Tensor,
    group_size: int,
    mean_squares: torch.Tensor | None,
    factors: Factors = (),
    *,
    coarse: bool = False,
) -> Any:
    """The weight of a linear layer in 4 bits, with 8-bit dynamic activations; torchao's tensor.

    The weight is multiplied by `factors` first.
    """
    outputs, inputs = weight.shape
    importance = relative_importance(mean_squares, inputs).reshape(1, -1, group_size)
    parts = [
        _searched(groups, importance, coarse=coarse)
        for groups in _in_parts(weight, group_size, factors)
    ]
    scales = torch.cat([scale for scale, _ in parts]).reshape(outputs, -1)
    values = torch.cat([values for _, values in parts]).reshape(outputs, inputs)
    return _as_tensor(values, scales, group_size)


def _in_parts(
    weight: torch.Tensor, group_size: int, factors: Factors = ()
) -> Iterator[torch.Tensor]:
    """Rows of the weight, multiplied by the factors; float32 of shape (rows, groups, size)."""
    step = max(1, _AT_ONCE // weight.shape[1])
    for start in range(0, len(weight), step):
        part = weight.detach()[start : start + step].float()
        for factor in factors:
            part = part * (factor if len(factor) == 1 else factor[start : start + step])
        yield part.reshape(len(part), -1, group_size)


def rounding_error(
    weight: torch.Tensor, group_size: int, mean_squares: torch.Tensor, factor: torch.Tensor
) -> float:
    """The squared error on inputs if a weight is rounded with its columns times a factor.

    Of some rows, which suffice to compare factors. `mean_squares` are those of the inputs of the
    scaled weight.
    """
    step, inputs = max(1, len(weight) // _FEW_ROWS), weight.shape[1]
    importance = relative_importance(mean_squares, inputs).reshape(1, -1, group_size)
    squares, total = mean_squares.reshape(1, -1, group_size), 0.0
    for groups in _in_parts(weight[::step], group_size, (factor.unsqueeze(0),)):
        scale, values = _searched(groups, importance, coarse=True)
        total += float((values * scale).sub_(groups).square_().mul_(squares).sum())
    return total * step


def _as_tensor(values: torch.Tensor, scales: torch.Tensor, group_size: int) -> Any:
    from torchao.quantization.quantize_.workflows.intx.intx_unpacked_to_int8_tensor import (
        IntxUnpackedToInt8Tensor,
        IntxUnpackedToInt8TensorActivationQuantization,
    )

    return IntxUnpackedToInt8Tensor(
        values,
        scales,
        torch.zeros_like(scales, dtype=torch.int8),
        torch.int4,
        (1, group_size),
        torch.float32,
        IntxUnpackedToInt8TensorActivationQuantization.INT8_ASYM_PER_TOKEN,
    )


def relative_importance(mean_squares: torch.Tensor | None, inputs: int) -> torch.Tensor:
    """How much the error of each column counts, of shape (inputs,)."""
    if mean_squares is None or not (mean := mean_squares.mean()).isfinite() or mean <= 0:
        return torch.ones(inputs)
    return mean_squares / mean + _FLOOR


def _searched(
    weights: torch.Tensor, importance: torch.Tensor, *, coarse: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """The best scale of each group, float32 of shape (rows, groups, 1), and the int8 values.

    XNNPACK packs scales as bfloat16, so values are rounded by a scale that is one. A coarse search
    suffices to compare errors.
    """
    low, high = weights.amin(-1, keepdim=True), weights.amax(-1, keepdim=True)
    unclipped = torch.maximum(low / _LOW, high / _HIGH).clamp(min=_SMALLEST)
    best, factors = torch.full_like(unclipped, torch.inf), torch.ones_like(unclipped)
    scale = unclipped.bfloat16().float()

    def attempt(factor: torch.Tensor | float) -> torch.Tensor:
        nonlocal best, scale
        tried = (unclipped * factor).bfloat16().float()
        off = _rounded(weights, tried).mul_(tried).sub_(weights)
        error = off.square_().mul_(importance).sum(-1, keepdim=True)
        better = error < best
        best, scale = torch.where(better, error, best), torch.where(better, tried, scale)
        return better

    for factor in _FACTORS:
        factors.masked_fill_(attempt(factor), factor)
    for offset in () if coarse else _NEAR:
        attempt(factors + offset)
    return scale, _rounded(weights, scale).to(torch.int8)


def _rounded(weights: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (weights / scale).round_().clamp_(_LOW, _HIGH)


@dataclass(frozen=True)
class InputMoments:
    """What GPTQ knows of a layer's inputs.

    Attributes:
        factor: The upper Cholesky factor of the inverse of the second moments, shrunk towards their
            diagonal and damped, of shape (inputs, inputs).
        mean_squares: Of shape (inputs,).
    """

    factor: torch.Tensor
    mean_squares: torch.Tensor

    @classmethod
    def of(cls, inputs: torch.Tensor) -> InputMoments | None:
        """Those of inputs of shape (tokens, inputs); None where they are of no use.

        An input that is always zero has a row and a column of zeros but for what is added to the
        diagonal: its weights are rounded to the nearest, and change no others.
        """
        if len(inputs) < FEWEST_TOKENS or inputs.shape[1] > _MOST_INPUTS:
            return None
        # With rows and columns backwards, the inverse of the lower factor is the upper one that is
        # asked for: moments = (J L J) (J L J)^T, so the inverse of J L J is what multiplies.
        backwards = inputs.flip(1)
        backwards = (backwards.T @ backwards).mul_((1 - _SHRUNK) / len(inputs))
        squares = backwards.diagonal().flip(0) / (1 - _SHRUNK)
        mean = squares.mean()
        if not mean.isfinite() or mean <= 0:
            return None
        for more in _MORE_DAMPING:
            backwards.diagonal().copy_(squares.flip(0) + more * _DAMPING * mean)
            lower, failed = torch.linalg.cholesky_ex(backwards)
            if not failed:
                del backwards
                one = torch.eye(len(squares), dtype=lower.dtype)
                factor = torch.linalg.solve_triangular(lower, one, upper=False)
                del lower, one
                return cls(factor.flip(0, 1), squares) if factor.isfinite().all() else None
        return None


def gptq_in_groups(weight: torch.Tensor, group_size: int, moments: InputMoments) -> Any:
    """As `quantized_in_groups`, by GPTQ."""
    importance = relative_importance(moments.mean_squares, weight.shape[1])
    rounded = partial(_gptq, group_size=group_size, factor=moments.factor, importance=importance)
    # No row depends on another.
    parts = on_threads(rounded, weight.detach().tensor_split(torch.get_num_threads()))
    values, scales = (torch.cat(part) for part in zip(*parts, strict=True))
    return _as_tensor(values, scales, group_size)


def _gptq(
    weight: torch.Tensor, group_size: int, factor: torch.Tensor, importance: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The int8 values, of shape (rows, inputs), and float32 scales of shape (rows, groups)."""
    rows, inputs = weight.shape
    # Columns are rows here, next to each other in memory; a copy, which is changed.
    left = weight.float().T.clone(memory_format=torch.contiguous_format)
    values, scales = torch.empty(inputs, rows, dtype=torch.int8), []
    for start in range(0, inputs, group_size):
        end = start + group_size
        group, own = left[start:end], factor[start:end, start:end]
        scale, _ = _searched(group.T.reshape(rows, 1, -1), importance[start:end].reshape(1, 1, -1))
        scale = scale.flatten()
        errors = torch.empty_like(group)
        for index, column in enumerate(group):
            rounded = _rounded(column, scale)
            values[start + index] = rounded
            torch.div(rounded.mul_(scale).sub_(column), own[index, index], out=errors[index])
            group[index + 1 :].addr_(own[index, index + 1 :], errors[index])
        left[end:].addmm_(factor[start:end, end:].T, errors)
        scales.append(scale)
    return values.T.contiguous(), torch.stack(scales, 1)
