"""Weights in 16-bit floats, or quantized, of which float32 is computed where they are used.

A linear layer multiplies some rows at a time, which stay in the processor's cache. That takes no
longer than a product with the whole weight in floats, since less is read from memory. On an AMD
EPYC, a layer of 2,048 inputs and 8,192 outputs takes 3.5 ms for one token with one thread (3.8 in
floats) and 3.1 with two (3.6), for 192 tokens 74 (80) and 40 (41). Outputs are the same, bit by
bit.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.utils import _pytree as pytree

from etdeploy.export.hf.tensors import weight_files
from etdeploy.export.worker.backends.base import patched

Made = TypeVar("Made")
# What a thread computes at a time: 4 MiB of floats. A weight that has no more is computed once: for
# one token, its product would take three times as long.
_AT_ONCE = 1 << 20
_HALVES = (torch.bfloat16, torch.float16)
_ATEN = torch.ops.aten
_local = threading.local()


class RowwiseWeight(torch.Tensor):  # type: ignore[misc]
    """A float32 weight of two dimensions, of which rows are computed when they are used.

    Attributes:
        stored: Of the weight's shape: 16-bit floats, or integers.
        scales: By row and group of columns, what integers are multiplied by; None for floats.
        zeros: Of the same shape, what is subtracted before; None for nothing.

    Linear layers and look-ups compute what they use. For every other operator, all rows are
    computed; one that would change the weight raises TypeError.
    """

    stored: torch.Tensor
    scales: torch.Tensor | None
    zeros: torch.Tensor | None

    @staticmethod
    def __new__(
        cls: type[RowwiseWeight],
        stored: torch.Tensor,
        scales: torch.Tensor | None = None,
        zeros: torch.Tensor | None = None,
    ) -> RowwiseWeight:
        make: Any = torch.Tensor._make_wrapper_subclass
        made: RowwiseWeight = make(cls, stored.shape, dtype=torch.float32, device=stored.device)
        made.stored, made.scales, made.zeros = stored, scales, zeros
        return made

    def floats(self, rows: slice | torch.Tensor = slice(None)) -> torch.Tensor:
        """Some rows, or all."""
        return self._computed(rows, self.stored[rows].to(torch.float32))

    def _computed(self, rows: slice | torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Makes of stored values, which are floats already, what they stand for, in place."""
        if self.scales is not None:
            groups = values.view(len(values), self.scales.shape[1], -1)
            if self.zeros is not None:
                groups.sub_(self.zeros[rows].unsqueeze(-1))
            groups.mul_(self.scales[rows].unsqueeze(-1))
        return values

    def of_parts(self, compute: Callable[[slice, torch.Tensor], Made]) -> Iterator[Made]:
        """What is computed of some rows at a time, on all threads; `compute` may not keep them."""
        rows, columns = self.shape
        step = max(1, _AT_ONCE // max(1, columns))

        def computed(span: tuple[int, int]) -> list[Made]:
            begin, end = span
            parts = [slice(at, min(at + step, end)) for at in range(begin, end, step)]
            with torch.no_grad():  # which each thread has to itself
                return [compute(part, self._in_buffer(part)) for part in parts]

        threads = min(torch.get_num_threads(), -(-rows // step))
        bounds = [rows * number // threads for number in range(threads + 1)]
        run = map if threads == 1 else _pool(os.getpid(), torch.get_num_threads()).map
        for found in run(computed, pairwise(bounds)):
            yield from found

    def _in_buffer(self, rows: slice) -> torch.Tensor:
        """Rows as floats, in memory that belongs to this thread and is used again."""
        stored = self.stored[rows]
        buffer = getattr(_local, "buffer", None)
        if buffer is None or buffer.numel() < stored.numel():
            buffer = _local.buffer = torch.empty(max(_AT_ONCE, stored.numel()))
        return self._computed(rows, buffer[: stored.numel()].view(stored.shape).copy_(stored))

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        """The copy shares what is stored, since nothing changes it."""
        made = RowwiseWeight(self.stored, self.scales, self.zeros)
        parameter = isinstance(self, torch.nn.Parameter)
        memo[id(self)] = torch.nn.Parameter(made, requires_grad=False) if parameter else made
        return memo[id(self)]

    @classmethod
    def __torch_function__(cls, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        multiplies = func is torch.nn.functional.linear and len(args) > 1
        if multiplies and isinstance(args[1], RowwiseWeight):
            return _linear(*args, **(kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        weight = args[0]
        if isinstance(weight, RowwiseWeight):
            if func in (_ATEN.detach.default, _ATEN.alias.default):
                return RowwiseWeight(weight.stored, weight.scales, weight.zeros)
            if func is _ATEN.embedding.default:
                return weight.floats(args[1].flatten()).reshape(*args[1].shape, -1)
            if func is _ATEN.slice.Tensor and not args[1]:
                return weight.floats(slice(*args[2:]))
        for argument, value in zip(func._schema.arguments, args, strict=False):
            written = argument.alias_info and argument.alias_info.is_write
            if written and isinstance(value, RowwiseWeight):
                raise TypeError(f"{func} would change a weight that is computed")
        floats = pytree.tree_map_only(RowwiseWeight, RowwiseWeight.floats, (args, kwargs or {}))
        return func(*floats[0], **floats[1])


class _Product(torch.autograd.Function):  # type: ignore[misc]
    """Inputs of shape (tokens, columns) times a transposed weight, which is not differentiated."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, weight: RowwiseWeight) -> torch.Tensor:
        ctx.weight = weight
        output = inputs.new_empty(len(inputs), len(weight))

        def multiply(rows: slice, floats: torch.Tensor) -> None:
            output[:, rows] = inputs @ floats.T

        list(weight.of_parts(multiply))
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        [gradient] = gradients
        parts = ctx.weight.of_parts(lambda rows, floats: gradient[:, rows] @ floats)
        return sum(parts, torch.zeros(())), None


def _linear(
    inputs: torch.Tensor, weight: RowwiseWeight, bias: torch.Tensor | None = None
) -> torch.Tensor:
    product: torch.Tensor = _Product.apply(inputs.reshape(-1, weight.shape[1]), weight)
    product = product.reshape(*inputs.shape[:-1], -1)
    return product if bias is None else product + bias


@lru_cache(maxsize=1)
def _pool(_process: int, threads: int) -> ThreadPoolExecutor:
    """Threads that use one of torch's each; of this process, since a fork has none of another's."""
    started = threading.Barrier(threads + 1)

    def start() -> None:
        torch.set_num_threads(1)
        started.wait()

    pool = ThreadPoolExecutor(threads, initializer=start)
    for _ in range(threads):
        pool.submit(int)
    started.wait()
    torch.set_num_threads(threads)  # again the number of threads that start later, too
    return pool


def hold_floats(module: torch.nn.Module) -> None:
    """Makes ordinary weights of those that are computed."""
    known: dict[int, torch.nn.Parameter] = {}
    for owner in module.modules():
        for name, weight in owner.named_parameters(recurse=False):
            if isinstance(weight, RowwiseWeight):
                floats = known.get(id(weight))
                if floats is None:
                    floats = torch.nn.Parameter(weight.floats(), requires_grad=False)
                setattr(owner, name, known.setdefault(id(weight), floats))


def is_large(weight: torch.Tensor) -> bool:
    """Whether a weight is one to compute by rows."""
    return bool(weight.ndim == 2 and weight.numel() > _AT_ONCE)


def evaluated_bytes(weight: torch.Tensor) -> int:
    """What another process takes for a weight that is evaluated there, and this one to lower it."""
    rowwise = isinstance(weight, RowwiseWeight) or hasattr(weight, "__tensor_flatten__")
    return int(weight.numel()) * (2 if rowwise and is_large(weight) else 8)


def upcast_by_rows(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of a checkpoint, of which floats are computed by rows if it is large and 16-bit.

    Each value of a 16-bit float is one of float32, too.
    """
    return RowwiseWeight(tensor) if is_large(tensor) and tensor.dtype in _HALVES else tensor


def mapped_state(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint, in files that are mapped, upcast by rows."""
    from safetensors.torch import load_file

    files = weight_files(folder)
    return {name: upcast_by_rows(each) for file in files for name, each in load_file(file).items()}


@contextmanager
def dequantized_by_rows(*, keep_small: bool = True) -> Iterator[None]:
    """While the block runs, torchao's quantized weights are dequantized by rows.

    torchao makes all floats of a weight in each call of a layer, in three times the time. Those of
    a small weight are kept, if they may be.
    """
    from torchao.quantization import IntxUnpackedToInt8Tensor

    upstream: Callable[[Any], torch.Tensor] = IntxUnpackedToInt8Tensor.dequantize
    if upstream.__module__ == __name__:  # within another block
        yield
        return
    # The weight itself is kept, too: another one cannot have its id then.
    known: dict[int, tuple[Any, torch.Tensor]] = {}

    def dequantize(weight: Any) -> torch.Tensor:
        if weight.block_size[0] != 1 or weight.dtype != torch.float32:
            return upstream(weight)
        if id(weight) not in known:
            zeros = weight.zero_point if weight.zero_point.any() else None
            rowwise = RowwiseWeight(weight.qdata, weight.scale, zeros)
            kept = keep_small and not is_large(weight)
            known[id(weight)] = weight, rowwise.floats() if kept else rowwise
        return known[id(weight)][1]

    with patched(IntxUnpackedToInt8Tensor, dequantize=dequantize):
        yield
