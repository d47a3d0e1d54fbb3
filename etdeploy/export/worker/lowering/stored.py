"""Weights of linear layers that a checkpoint has quantized already.

A weight in a form that a backend's kernels compute with is carried over, since a second
quantization would add its own error. XNNPACK's kernels take 4-bit values with a positive scale for
each group of 32 or a multiple, and 8-bit values with one for each output; none has zero points
(https://github.com/google/XNNPACK/blob/master/include/xnnpack.h, `qbint4` and `qcint8`). What a
format adds to all values of a group is multiplied by the sum of the group's inputs, in floats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from etdeploy.backends.schemes import GROUPED_SCHEMES
from etdeploy.core.console import count
from etdeploy.export.worker.lowering.rowwise import RowwiseWeight

# XNNPACK takes no group that is not a multiple of this.
_GROUP_STEP = 32
# Of a group of zeros: XNNPACK loads no program with a scale that is not positive.
_SMALLEST = 1e-8
_BITS = {4: torch.int4, 8: torch.int8}


@dataclass(frozen=True)
class StoredWeight:
    """The weight of a linear layer as its checkpoint has it.

    Attributes:
        kind: Its format in messages, such as `Q4_0` or `GPTQ`.
        bits: Of each value, without scales.
        values: int8 of shape (outputs, inputs), from -2^(bits-1) to 2^(bits-1) - 1; None where no
            kernel computes with what the format has.
        scales: Float32 of shape (outputs, groups): a weight is its value times its group's scale,
            plus its group's offset.
        offsets: Float32 of the same shape; None for zeros.
    """

    kind: str
    bits: int
    values: torch.Tensor | None = None
    scales: torch.Tensor | None = None
    offsets: torch.Tensor | None = None

    @property
    def group_size(self) -> int | None:
        """The number of inputs that share a scale; None where one is for a whole output."""
        if self.values is None or self.scales is None or self.scales.shape[1] == 1:
            return None
        return int(self.values.shape[1] // self.scales.shape[1])

    def fits(self, scheme: str) -> bool:
        """Whether the kernels of a scheme compute with these values."""
        if self.values is None or self.scales is None or bool((self.scales < 0).any()):
            return False
        if scheme in GROUPED_SCHEMES:
            size = self.group_size or self.values.shape[1]
            return self.bits == 4 and size % _GROUP_STEP == 0
        return self.group_size is None and self.bits <= 8 and self.offsets is None

    def give_to(self, layer: torch.nn.Linear, tensor: Any) -> None:
        """Gives a layer this weight, of which `as_tensor` made the tensor."""
        layer.weight = torch.nn.Parameter(tensor, requires_grad=False)
        if self.offsets is not None:
            size = self.group_size or layer.in_features
            layer.__class__ = OffsetLinear  # the layer itself, which several methods share
            layer.register_buffer("ones", torch.ones(1, size))
            layer.register_buffer("offsets", self.offsets)

    def moved(self, move: Callable[[torch.Tensor], torch.Tensor]) -> StoredWeight:
        """The same with tensors that `move` has put elsewhere."""
        if self.values is None or self.scales is None:
            return self
        offsets = None if self.offsets is None else move(self.offsets)
        return replace(self, values=move(self.values), scales=move(self.scales), offsets=offsets)

    def by_rows(self) -> RowwiseWeight | None:
        """The weight, of which floats are computed by rows; None if they would be others."""
        if self.values is None or self.scales is None:
            return None
        zeros = None
        if self.offsets is not None:
            zeros = (-self.offsets / self.scales).round()
            if not torch.equal(-(self.scales * zeros), self.offsets):
                return None
        return RowwiseWeight(self.values, self.scales, zeros)

    def as_tensor(self, scheme: str) -> Any:
        """Torchao's tensor for a scheme that fits, with dynamic 8-bit activations.

        XNNPACK packs the scales of groups as bfloat16, so they are rounded here, where the
        evaluation of the model sees it. Both tensors are contiguous: the bytes of transposed ones
        would be written in the order of memory, and the program would have wrong weights.
        """
        from torchao.quantization.quantize_.workflows.intx.intx_unpacked_to_int8_tensor import (
            IntxUnpackedToInt8Tensor,
            IntxUnpackedToInt8TensorActivationQuantization,
        )

        if self.values is None or self.scales is None:
            raise ValueError(f"{self.kind} has no values that a kernel computes with")
        grouped = scheme in GROUPED_SCHEMES
        scales = self.scales.clamp(min=_SMALLEST)
        scales = (scales.bfloat16().float() if grouped else scales).contiguous()
        return IntxUnpackedToInt8Tensor(
            self.values.contiguous(),
            scales,
            torch.zeros_like(scales, dtype=torch.int8),
            _BITS[4 if grouped else 8],
            (1, self.values.shape[1] // scales.shape[1]),
            torch.float32,
            IntxUnpackedToInt8TensorActivationQuantization.INT8_ASYM_PER_TOKEN,
        )


class OffsetLinear(torch.nn.Linear):  # type: ignore[misc]
    """A linear layer with offsets: of shape (outputs, groups), added to each weight of a group.

    The sums of the inputs of each group are products with ones, which a delegate computes, too.
    """

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        groups = inputs.reshape(*inputs.shape[:-1], -1, self.ones.shape[1])
        sums = torch.nn.functional.linear(groups, self.ones).squeeze(-1)
        offset: torch.Tensor = torch.nn.functional.linear(sums, self.offsets)
        return super().forward(inputs) + offset


def stored_notes(
    stored: Mapping[str, StoredWeight], schemes: Mapping[str, str], carried: Collection[str]
) -> Iterator[str]:
    """What became of weights that the checkpoint has quantized, a sentence each.

    Args:
        stored: By the names of linear layers.
        schemes: That of each linear layer that is quantized.
        carried: Layers whose values are those of the checkpoint.
    """
    same = Counter(stored[name].kind for name in carried)
    if same:
        yield f"Carried over from the checkpoint, without another quantization: {_listed(same)}."
    again = Counter(
        (schemes[name], stored[name].kind)
        for name in stored
        if name in schemes and name not in carried
    )
    for scheme in dict.fromkeys(scheme for scheme, _ in again):
        kinds = Counter({kind: n for (of, kind), n in again.items() if of == scheme})
        yield f"Quantized again, with {scheme}: {_listed(kinds)}."


def _listed(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{count(n, 'linear layer')} in {kind}" for kind, n in kinds.items())
