"""Linear layers with weights of 4 bits in groups, or of 8 bits for each output."""

from __future__ import annotations

import torch
from torchao.quantization.granularity import PerAxis
from torchao.quantization.quant_api import Int8DynamicActivationIntxWeightConfig, quantize_

from etdeploy.export.worker.lowering.scales import quantized_in_groups


def quantized_linear(
    inputs: int, outputs: int, group_size: int | None, *, bias: bool = True
) -> torch.nn.Linear:
    """A layer of random weights; in 8 bits without a group size."""
    layer = torch.nn.Linear(inputs, outputs, bias=bias)
    larger = torch.nn.Parameter(4 * layer.weight.detach(), requires_grad=False)
    if group_size is not None:
        larger = torch.nn.Parameter(quantized_in_groups(larger, group_size, None), False)
    layer.weight = larger
    if group_size is None:
        config = Int8DynamicActivationIntxWeightConfig(
            weight_dtype=torch.int8, weight_granularity=PerAxis(0)
        )
        quantize_(layer, config)
    return layer
