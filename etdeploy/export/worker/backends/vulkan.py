"""Lowering to Vulkan."""

from __future__ import annotations

from typing import Any

import torch
from executorch.backends.vulkan.patterns.pattern_registry import (
    PatternMatch,
    register_pattern_detector,
)
from executorch.backends.vulkan.patterns.quantized_binary import find_quantized_binary_patterns
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
    CONV_TARGETS,
    CONV_TRANSPOSE_TARGETS,
    XNNPACKQuantizer,
    get_symmetric_quantization_config,
)
from torch.fx.experimental.symbolic_shapes import statically_known_true

from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.backends.base import Lowering


class VulkanLowering(Lowering):
    """ExecuTorch's partitioner for Vulkan; 16-bit floats are an option of it."""

    apart = True
    shortens = True
    # ExecuTorch 1.5.1 fills scales and bias up to a multiple of four, and then finds that the shape
    # of the layer's output contradicts them (FusePatternsPass).
    grouped_outputs = 4

    def quantizer(self, spec: ExportSpec) -> Any:
        """That of XNNPACK, whose quantized convolutions and linear layers Vulkan fuses as well.

        Vulkan's own has weights in 8 bits alone, and dynamic activations that its runtime lacks an
        operator for (1.5.1: `dequantize_per_channel`).
        """
        return VulkanInt8Quantizer()

    def partitioners(self, spec: ExportSpec) -> list[Any]:
        """The partitioner, with the precision of the scheme."""
        from executorch.backends.vulkan.partitioner.vulkan_partitioner import VulkanPartitioner

        fuse_only_what_is_right()
        return [VulkanPartitioner({"force_fp16": spec.quantization == "fp16"})]


LOWERING = VulkanLowering()


_ADDITIONS = (torch.ops.aten.add.Tensor, torch.ops.aten.add_.Tensor)
_RELUS = (torch.ops.aten.relu.default, torch.ops.aten.relu_.default)
_CONVOLUTIONS = CONV_TARGETS | CONV_TRANSPOSE_TARGETS
_INDEX = 4
_IMAGES = 4  # dimensions: batch, channels, height, width
_IN_INTEGERS = ("conv", "linear", "add")


class VulkanInt8Quantizer(XNNPACKQuantizer):  # type: ignore[misc]
    """XNNPACK's quantizer, for the layers that Vulkan computes in integers.

    XNNPACK has integer kernels for products and concatenations as well. Vulkan computes those in
    floats and leaves out the rounding, so that the quantized model would say less of its outputs.
    """

    SUPPORTED_PATTERNS = tuple(
        pattern
        for pattern in XNNPACKQuantizer.SUPPORTED_PATTERNS
        if pattern.name.startswith(_IN_INTEGERS)
    )

    def __init__(self) -> None:
        super().__init__()
        self.set_global(get_symmetric_quantization_config(is_per_channel=True))
        self.set_filter_function(_is_right)

    def transform_for_annotation(self, model: Any) -> Any:
        """Gives linear layers one matrix; numbers stay numbers.

        The original turns numbers into tensors, also the epsilon of a norm, whose value Vulkan's
        FusePatternsPass then cannot read.
        """
        for node in list(model.graph.nodes):
            if node.target is torch.ops.aten.linear.default and _has_batch(node.args[0]):
                _flatten_rows(model.graph, node)
        model.recompile()
        return model


def fuse_only_what_is_right() -> None:
    """Leaves additions in floats, which broadcast, where the one in integers would be wrong.

    The quantizer alone is not enough: between two quantized layers, an addition looks as if it were
    quantized itself. The partitioner takes what a pattern covers without asking its blocklist, so
    the pattern's own detector decides. The registry is that of this process.
    """
    register_pattern_detector("quantized_binary")(_find_addition)


def _find_addition(node: torch.fx.Node) -> PatternMatch | None:
    found = find_quantized_binary_patterns(node)
    return found if found and _adds_alike(node) else None


def _is_right(node: torch.fx.Node) -> bool:
    """Whether Vulkan computes a layer right in integers; a linear one is given its form before."""
    if node.target in _ADDITIONS:
        return _adds_alike(node)
    if node.target in _CONVOLUTIONS:
        sizes = node.args[0].meta["val"].shape
        return len(sizes) == _IMAGES and isinstance(sizes[0], int) and sizes[0] == 1
    return True


def _adds_alike(node: torch.fx.Node) -> bool:
    """Whether a node adds two tensors of one shape, as they are.

    Dimensions of size 1 before all others do not count: they do not move an element. The shader
    has an index of four dimensions.
    """
    if node.kwargs.get("alpha", 1) != 1:
        return False
    first, second = (_shape(operand) for operand in node.args[:2])
    if first is None or second is None or not len(first) == len(second) <= _INDEX:
        return False
    return all(statically_known_true(a == b) for a, b in zip(first, second, strict=True))


def _shape(operand: Any) -> list[Any] | None:
    """The sizes from the first that is not 1; None for what is not a tensor."""
    value = operand.meta.get("val") if isinstance(operand, torch.fx.Node) else None
    if not isinstance(value, torch.Tensor):
        return None
    sizes = list(value.shape)
    while sizes and isinstance(sizes[0], int) and sizes[0] == 1:
        del sizes[0]
    return sizes


def _has_batch(operand: torch.fx.Node) -> bool:
    """Whether the operand of a linear layer may be more than one matrix."""
    sizes = operand.meta["val"].shape[:-2]
    return any(not isinstance(size, int) or size != 1 for size in sizes)


def _flatten_rows(graph: torch.fx.Graph, linear: torch.fx.Node) -> None:
    """Makes a layer's operand one matrix, and gives the result its shape again."""
    operand = linear.args[0]
    given, made = operand.meta["val"], linear.meta["val"]
    with graph.inserting_before(linear):
        flatten = (torch.ops.aten.flatten.using_ints, (operand, 0, -2))
        rows = _like(graph.call_function(*flatten), linear, given.flatten(0, -2))
        sizes = [_size(graph, operand, i, linear) for i in range(given.dim() - 1)]
    linear.update_arg(0, rows)
    linear.meta["val"] = made.flatten(0, -2)
    last = linear
    # A ReLU stays at its layer, with which it is one operator.
    if len(linear.users) == 1 and next(iter(linear.users)).target in _RELUS:
        last = next(iter(linear.users))
        last.meta["val"] = linear.meta["val"]
    with graph.inserting_after(last):
        shaped = graph.call_function(torch.ops.aten.reshape.default)
    last.replace_all_uses_with(shaped)
    shaped.args = (last, [*sizes, made.shape[-1]])
    _like(shaped, linear, made)


def _size(graph: torch.fx.Graph, operand: torch.fx.Node, index: int, like: torch.fx.Node) -> Any:
    """A number, or a node where the size is known only when the model runs."""
    size = operand.meta["val"].shape[index]
    if isinstance(size, int):
        return size
    return _like(graph.call_function(torch.ops.aten.sym_size.int, (operand, index)), like, size)


def _like(node: torch.fx.Node, other: torch.fx.Node, value: Any) -> torch.fx.Node:
    """Gives a new node its value, and the place in the user's code of another."""
    node.meta = {**other.meta, "val": value}
    return node
