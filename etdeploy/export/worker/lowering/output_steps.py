"""The quantisation that an output's values come from, read from the traced graph."""

from __future__ import annotations

import torch

from etdeploy.program.folder import OutputQuantization

_DEQUANTIZE = "quantized_decomposed.dequantize_per_tensor"


def output_quantization(
    traced: torch.export.ExportedProgram,
) -> tuple[OutputQuantization | None, ...]:
    """Scale and zero point of each output that a dequantisation gives directly.

    PT2E quantises layout operators like `view` on their own, so that even behind those the last
    node is a dequantisation. Dynamic quantisation computes its scale as it runs: such an output
    has none here.

    Returns:
        An entry for each of the user's outputs, in order; None for one that is not quantised.
    """
    nodes = {node.name: node for node in traced.graph.nodes}
    return tuple(
        _quantization_of(nodes.get(str(name))) for name in traced.graph_signature.user_outputs
    )


def _quantization_of(node: torch.fx.Node | None) -> OutputQuantization | None:
    if node is None or not str(node.target).startswith(_DEQUANTIZE):
        return None
    # Its schema: (input, scale, zero_point, quant_min, quant_max, dtype)
    scale, zero_point, dtype = (node.args[i] for i in (1, 2, 5))
    if not isinstance(scale, float) or not isinstance(zero_point, int):
        return None
    return OutputQuantization(
        scale=scale, zero_point=zero_point, dtype=str(dtype).removeprefix("torch.")
    )
