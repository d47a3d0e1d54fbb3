"""Weights in blocks with a scale each, for the HTP: LPBQ, low-power block quantisation."""

from __future__ import annotations

from typing import Any

import torch

from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.failures import fail

IN_BLOCKS = "16a4w_block"
"""The scheme."""

_GROUPS = 6  # the place of `groups` in the arguments of conv2d


def blocked(quantizer: type[Any], config: Any, spec: ExportSpec) -> type[Any]:
    """ExecuTorch's quantiser, with blocks in each layer that the HTP computes right with them.

    Args:
        quantizer: The class `QnnQuantizer`.
        config: Makes a `ModuleQConfig` of the scheme.
        spec: Says how many weights a block has.
    """

    class Blocked(quantizer):  # type: ignore[misc]
        def annotate(self, model: Any) -> Any:
            # Only here the nodes have the names that their blocks are looked up by.
            sizes = block_sizes(model.graph, spec.group_size or 32)
            self.set_block_size_map(sizes)
            # One each: ExecuTorch writes the size of a block into the configuration that all nodes
            # of one share.
            self.set_submodule_qconfig_list([(_named(name), config()) for name in sizes])
            return super().annotate(model)

    return Blocked


def block_sizes(graph: Any, group_size: int) -> dict[str, tuple[int, ...]]:
    """The block of each layer that has some, by its node: along the input channels.

    Linear layers and convolutions with a kernel of 1 x 1. Of larger kernels the outputs are wrong
    in the simulator of QNN 2.49.40 (cosine 0.0 to 0.3), whether or not a block spans the kernel.

    Raises:
        WorkerError: There is no such layer.
    """
    found = {}
    for node in graph.nodes:
        shape = _weight_shape(node)
        if shape and shape[1] % group_size == 0 and all(size == 1 for size in shape[2:]):
            found[node.name] = (1, group_size, *shape[2:])
    if not found:
        raise fail(
            "quantization",
            f"no linear layer or convolution with a kernel of 1 x 1 has a number of inputs that is "
            f"a multiple of export.group_size ({group_size}), which {IN_BLOCKS} needs",
            remedy="--set export.quantization=16a4w has no blocks.",
        )
    return found


def _weight_shape(node: torch.fx.Node) -> tuple[int, ...]:
    aten = torch.ops.aten
    if node.target not in (aten.conv2d.default, aten.linear.default):
        return ()
    if len(node.args) > _GROUPS and node.args[_GROUPS] != 1:
        return ()
    value = node.args[1].meta.get("val")
    return tuple(value.shape) if isinstance(value, torch.Tensor) else ()


def _named(name: str) -> Any:
    return lambda node: node.name == name
