"""Quantization for QNN: ExecuTorch's quantizer, blocks of weights, caches of language models."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial
from typing import Any

import torch

from etdeploy.backends.qnn.facts import FINER, IN_BLOCKS, finer_scheme
from etdeploy.backends.schemes import EIGHT_BIT_SCHEMES
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.backends.base import patched
from etdeploy.export.worker.backends.qnn_placement import check_adaptor, chipset
from etdeploy.export.worker.failures import fail
from etdeploy.export.worker.lowering.overrides import path_in_model, scheme_of
from etdeploy.export.worker.lowering.scales import MEAN_SQUARES, relative_importance

# etdeploy's names of ExecuTorch's `QuantDtype`.
_DTYPES = {
    "int8_static": "use_8a8w",
    "8a4w": "use_8a4w",
    "16a8w": "use_16a8w",
    "16a4w": "use_16a4w",
    IN_BLOCKS: "use_16a4w_block",
}


def htp_quantizer(spec: ExportSpec) -> Any:
    """The PT2E quantizer of the spec's scheme and overrides, for its SoC."""
    check_adaptor()
    from executorch.backends.qualcomm.quantizer.quantizer import QnnQuantizer
    from executorch.backends.qualcomm.serialization.qc_schema import QnnExecuTorchBackendType

    scheme = str(spec.quantization)
    others = {override for _, override in spec.overrides}
    if spec.generation and scheme in FINER:
        others.add(FINER[scheme])
    parts = [(_has(spec, other), _config(spec, other)) for other in sorted(others)]
    kind = QnnQuantizer
    if scheme == IN_BLOCKS:
        kind = _blocked(QnnQuantizer, spec, parts)
    made = kind(backend=QnnExecuTorchBackendType.kHtpBackend, soc_model=chipset(spec))
    made.set_default_quant_config(**_arguments(spec, scheme))
    if spec.generation:
        made.add_custom_quant_annotations((partial(annotate_caches, spec),))
    made.set_submodule_qconfig_list(parts)
    return made


def _config(spec: ExportSpec, scheme: str) -> Any:
    from executorch.backends.qualcomm.quantizer import qconfig
    from executorch.backends.qualcomm.quantizer.quantizer import ModuleQConfig

    with patched(qconfig, PerBlockParamObserver=_block_observer(qconfig.PerBlockParamObserver)):
        return ModuleQConfig(**_arguments(spec, scheme))


def _arguments(spec: ExportSpec, scheme: str) -> dict[str, Any]:
    """The arguments of ExecuTorch's quantizer for a scheme, for the model or a part of it."""
    from executorch.backends.qualcomm.quantizer.quantizer import QuantDtype
    from torchao.quantization.pt2e import MinMaxObserver

    channels = bool(spec.options["per_channel"])
    # A mean of ranges would cut off the first token's values, which all others look at.
    observer = {"act_observer": MinMaxObserver} if spec.generation else {}
    return {
        "quant_dtype": QuantDtype[_DTYPES[scheme]],
        "is_conv_per_channel": channels,
        "is_linear_per_channel": channels,
        **observer,
    }


def _has(spec: ExportSpec, scheme: str) -> Any:
    """A predicate on nodes: whether their part of the model has that scheme."""
    return lambda node: _scheme_of(spec, node) == scheme


def _scheme_of(spec: ExportSpec, node: torch.fx.Node) -> str | None:
    """The scheme of a node that has another one than the model; None for the model's."""
    found = scheme_of(spec, node)
    if found is None and spec.generation:
        return finer_scheme(str(spec.quantization), path_in_model(spec, node).removesuffix(".conv"))
    return found


_GROUPS = 6  # the place of `groups` in the arguments of conv2d


def _blocked(quantizer: type[Any], spec: ExportSpec, parts: Collection[Any]) -> type[Any]:
    """ExecuTorch's quantizer, with blocks in each layer that the HTP computes right with them."""

    class Blocked(quantizer):  # type: ignore[misc]
        def annotate(self, model: Any) -> Any:
            # Only here the nodes have the names that their blocks are looked up by.
            sizes = block_sizes(model.graph, spec)
            self.set_block_size_map(sizes)
            # One each: ExecuTorch writes the size of a block into the configuration that all nodes
            # of one share.
            each = [(_named(name), _config(spec, IN_BLOCKS)) for name in sizes]
            self.set_submodule_qconfig_list([*each, *parts])
            return super().annotate(model)

    return Blocked


def block_sizes(graph: Any, spec: ExportSpec) -> dict[str, tuple[int, ...]]:
    """The block of each layer that has some, by its node: along the input channels.

    Linear layers and convolutions with a kernel of 1 x 1. Of larger kernels the outputs are wrong
    in the simulator of QNN 2.49.40 (cosine 0.0 to 0.3), whether or not a block spans the kernel.
    """
    fitting, group_size = {}, spec.group_size or 32
    for node in graph.nodes:
        shape = _weight_shape(node)
        if shape and shape[1] % group_size == 0 and all(size == 1 for size in shape[2:]):
            fitting[node] = (1, group_size, *shape[2:])
    if not fitting:
        raise fail(
            "quantization",
            f"no linear layer or convolution with a kernel of 1 x 1 has a number of inputs that is "
            f"a multiple of export.group_size ({group_size}), which {IN_BLOCKS} needs",
            remedy="--set export.quantization=16a4w has no blocks.",
        )
    return {n.name: block for n, block in fitting.items() if _scheme_of(spec, n) is None}


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


# QNN stores the scale of a block as a multiple of its channel's, of 1 to 16.
_STEPS = 16
_LARGEST = 7
# Of the scale that clips nothing, for the largest block of a channel.
_FACTORS = tuple(percent / 100 for percent in range(70, 112, 2))
_SMALLEST = 1e-8
# Steps from there on: up to 10 % above, for the largest blocks.
_TRIED = 8


def _block_observer(observer: type[Any]) -> type[Any]:
    """ExecuTorch's observer of blocks, with the scales that QNN has, those with the least error.

    Its own are exact. The HTP rounds them and keeps the values, so that whole blocks are up to 6 %
    (and those of small weights far more) too large or too small.
    """

    class Searched(observer):  # type: ignore[misc]
        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            if not hasattr(self, "searched"):
                squares = getattr(weight, MEAN_SQUARES, None)
                self.searched = _block_scales(weight.detach(), self.block_size[1], squares)
            return super().forward(weight)

        def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
            scales, zeros = super().calculate_qparams()
            return self.searched.reshape(scales.shape).to(scales.dtype), zeros

    return Searched


def _block_scales(
    weight: torch.Tensor, size: int, mean_squares: torch.Tensor | None
) -> torch.Tensor:
    """The scales of a weight of shape (outputs, inputs, ...), by output and block.

    ExecuTorch takes a sixteenth of a channel's largest scale for its unit, so one block of each
    channel has 16 of them: that of the largest weight.
    """
    blocks = weight.float().reshape(weight.shape[0], -1, size)
    importance = relative_importance(mean_squares, weight.shape[1]).reshape(blocks.shape[1:])
    importance = importance.expand_as(blocks)
    unclipped = (blocks.abs().amax(-1, keepdim=True) / _LARGEST).clamp(min=_SMALLEST)
    largest = unclipped.argmax(1, keepdim=True)
    block, weights = (each.take_along_dim(largest, 1) for each in (blocks, importance))
    top = unclipped.take_along_dim(largest, 1)
    top = _least_error(block, weights, (top * factor for factor in _FACTORS))
    unit = top / _STEPS
    least = (unclipped * _FACTORS[0] / unit).floor().clamp(min=1)
    steps = ((least + more).clamp(max=_STEPS) for more in range(_TRIED))
    scales = _least_error(blocks, importance, (step * unit for step in steps))
    return scales.scatter(1, largest, top)


def _least_error(
    blocks: torch.Tensor, importance: torch.Tensor, scales: Iterable[torch.Tensor]
) -> torch.Tensor:
    """For each block the scale with the least error, of shape (outputs, blocks, 1)."""
    best = found = torch.full((*blocks.shape[:-1], 1), torch.inf)
    for scale in scales:
        off = (blocks / scale).round_().clamp_(-_LARGEST, _LARGEST).mul_(scale).sub_(blocks)
        error = off.square_().mul_(importance).sum(-1, keepdim=True)
        better = error < best
        best, found = torch.where(better, error, best), torch.where(better, scale, found)
    return found


def annotate_caches(spec: ExportSpec, graph_module: torch.fx.GraphModule) -> None:
    """Gives keys and values of the attention one range each, from the cache to the product.

    Those of earlier tokens, which are inputs, and those of the call's, which are outputs, have to
    be the same integers. As ExecuTorch's `annotate_kv_8bit`, which knows projections as
    convolutions.
    """
    from executorch.backends.qualcomm.quantizer import quantizer
    from torchao.quantization.pt2e import MinMaxObserver
    from torchao.quantization.pt2e.quantizer import QuantizationAnnotation, SharedQuantizationSpec

    eight, sixteen = quantizer.get_8a8w_qnn_ptq_config, quantizer.get_16a8w_qnn_ptq_config
    product = eight if spec.quantization in EIGHT_BIT_SCHEMES else sixteen
    aten = torch.ops.aten

    def annotate(node: torch.fx.Node, inputs: dict[Any, Any], output: Any) -> None:
        node.meta["quantization_annotation"] = QuantizationAnnotation(
            input_qspec_map=inputs, output_qspec=output, _annotated=True
        )

    for node in graph_module.graph.nodes:
        if node.target != aten.matmul.default or not _joins(node.args[1]):
            continue
        config = product(act_observer=MinMaxObserver)
        first, second = node.args
        inputs = {first: config.input_activation, second: config.weight}
        annotate(node, inputs, config.output_activation)
        # One object for a cache: torchao shares a range among equal specifications.
        cached = eight(act_symmetric=True, act_observer=MinMaxObserver).input_activation
        while second.target in _PASSED_ON:
            joined = second.target == aten.cat.default
            source, *others = second.args[0] if joined else second.args[:1]
            shared = SharedQuantizationSpec((source, second))
            annotate(second, {source: cached} | dict.fromkeys(others, shared), shared)
            second = others[0] if others else source


# Between the cache and the product: values stay what they are.
_PASSED_ON = frozenset(
    getattr(torch.ops.aten, name).default
    for name in ("cat", "view", "reshape", "expand", "unsqueeze", "permute")
) | {torch.ops.aten.transpose.int}


def _joins(node: Any) -> bool:
    """Whether a product's second operand is a cache with what is new."""
    while isinstance(node, torch.fx.Node) and node.target in _PASSED_ON:
        if node.target == torch.ops.aten.cat.default:
            return len(node.args[0]) == 2 and node.args[0][0].op == "placeholder"
        node = node.args[0]
    return False
