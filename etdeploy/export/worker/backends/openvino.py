"""Lowering to OpenVINO.

ExecuTorch's partitioner converts each partition with OpenVINO's own frontend for PyTorch and saves
what OpenVINO's CPU plug-in compiles from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from etdeploy.backends.openvino import has_vnni
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.backends.base import Lowering, Traced, patched
from etdeploy.export.worker.failures import fail, name_method
from etdeploy.export.worker.tracing.dims import dynamic_symbols

_BY_CHANNEL = (torch.per_channel_affine, torch.per_channel_symmetric)
# Between a softmax and the product with it: dropout, a cast, a reshape.
_HOPS = 3


class OpenvinoLowering(Lowering):
    """ExecuTorch's quantizer and partitioner for OpenVINO."""

    # OpenVINO's frontend finds quantized layers by the pairs that quantize and dequantize floats;
    # it refuses convolutions of integers.
    folds_weights = False
    fixed_shapes = True

    def quantizer(self, spec: ExportSpec) -> Any:
        """NNCF's, in the mode that fits the graph.

        The mode for transformers keeps the asymmetric activations between layers of attention: the
        example encoder's largest error is 0.05 with it and 0.19 without, of outputs up to 4.5.
        """
        from executorch.backends.openvino.quantizer import OpenVINOQuantizer, QuantizationMode
        from torchao.quantization.pt2e.quantizer import Quantizer

        class ByGraph(Quantizer):  # type: ignore[misc]
            """Chooses the mode when it sees the graph."""

            def transform_for_annotation(self, model: torch.fx.GraphModule) -> Any:
                mode = QuantizationMode
                chosen = mode.INT8_TRANSFORMER if _has_attention(model.graph) else mode.INT8_SYM
                self.chosen = OpenVINOQuantizer(mode=chosen)
                return self.chosen.transform_for_annotation(model)

            def annotate(self, model: torch.fx.GraphModule) -> Any:
                with _shapes_of_all_edges():
                    annotated = self.chosen.annotate(model)
                _keep_observable(annotated.graph)
                if not has_vnni():
                    _use_half_range(annotated.graph)
                return annotated

            def validate(self, model: torch.fx.GraphModule) -> None:
                self.chosen.validate(model)

        return ByGraph()

    def partitioners(self, spec: ExportSpec) -> list[Any]:
        """ExecuTorch's partitioner, for the CPU."""
        from executorch.backends.openvino.partitioner import OpenvinoPartitioner
        from executorch.exir.backend.backend_details import CompileSpec

        return [OpenvinoPartitioner([CompileSpec("device", b"CPU")])]

    def lower(self, spec: ExportSpec, methods: Mapping[str, Traced]) -> Any:
        """Lowers what OpenVINO's delegate can run; see `Lowering.lower`."""
        for name, method in methods.items():
            with name_method(name, methods):
                _refuse_dynamic(method.program)
        compiling: dict[str | None, Callable[[], AbstractContextManager[None]]] = {
            "fp16": _half_weights,
            "none": _in_32_bits,
        }
        with compiling.get(spec.quantization, nullcontext)():
            edge = super().lower(spec, methods)
        for name in methods:
            with name_method(name, methods):
                _refuse_single_values(edge.exported_program(name).graph)
        return edge

    def notes(self, spec: ExportSpec) -> Iterator[str]:
        """What precision the program has elsewhere, and what 8-bit layers need."""
        if spec.quantization == "none":
            yield (
                "etdeploy runs this program in 32-bit floats. An app of yours computes it in "
                "bfloat16 on processors that can, unless ONEDNN_MAX_CPU_ISA=AVX512_CORE_VNNI is "
                "set there."
            )
        if spec.quantization == "int8_static" and not has_vnni():
            yield (
                "This processor has no VNNI, so OpenVINO adds products of 8-bit numbers in 16 "
                "bits: weights use 7 of 8 bits, which keeps these sums from saturating. For 8-bit "
                "weights, export and run on a processor with VNNI."
            )


@contextmanager
def _shapes_of_all_edges() -> Iterator[None]:
    """While the block runs, NNCF gets a shape for outputs of operators that it does not know.

    It knows few that have several, and fails on the others, as on an LSTM.
    """
    from nncf.experimental.torch.fx.nncf_graph_builder import (  # type: ignore[import-untyped]
        GraphConverter,
    )

    original = GraphConverter.get_edge_params

    def with_shape(model: Any, source: torch.fx.Node, *rest: Any) -> tuple[int, tuple[int, ...]]:
        port, shape = original(model, source, *rest)
        if shape is None:
            value, index = source.meta.get("val"), rest[-1]
            several = isinstance(value, tuple | list) and index < len(value)
            value = value[index] if several else value
            sizes = value.shape if isinstance(value, torch.Tensor) else ()
            shape = tuple(size if isinstance(size, int) else -1 for size in sizes)
        return port, shape

    with patched(GraphConverter, get_edge_params=staticmethod(with_shape)):
        yield


def _keep_observable(graph: torch.fx.Graph) -> None:
    """Takes away what NNCF would observe and PT2E cannot: lists, integers, too few dimensions.

    It wants what is taken of a list observed on its way; that is the same tensor afterwards.
    """
    key = "quantization_annotation"
    annotations = {node: node.meta[key] for node in graph.nodes if key in node.meta}
    moved: dict[Any, Any] = {}
    for node, annotation in annotations.items():
        if "getitem" in str(node.target) and annotation.input_qspec_map:
            ((source, wanted),) = annotation.input_qspec_map.items()
            annotation.input_qspec_map = {}
            annotation.output_qspec = annotation.output_qspec or wanted
            moved[source, node] = node
    dropped: set[Any] = set()
    while True:  # what shares the range of something goes with it
        before = len(dropped)
        for node, annotation in annotations.items():
            for source, wanted in list(annotation.input_qspec_map.items()):
                if not _is_observable(source, wanted, moved, dropped):
                    del annotation.input_qspec_map[source]
                    dropped.add((source, node))
            wanted = annotation.output_qspec
            if wanted and not _is_observable(node, wanted, moved, dropped):
                annotation.output_qspec = None
                dropped.add(node)
        if len(dropped) == before:
            return


def _use_half_range(graph: torch.fx.Graph) -> None:
    """Doubles the scales of weights: two products of a byte and 64 fit in 16 bits, of 127 not.

    All 256 levels stay, since OpenVINO computes in floats what has fewer.
    """
    from torchao.quantization.pt2e import PerChannelMinMaxObserver

    class PerChannelHalfRangeObserver(PerChannelMinMaxObserver):  # type: ignore[misc]
        def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
            scale, zero_point = super().calculate_qparams()
            return 2 * scale, zero_point

    for node in graph.nodes:
        annotation = node.meta.get("quantization_annotation")
        for source, wanted in annotation.input_qspec_map.items() if annotation else ():
            observer = getattr(wanted, "observer_or_fake_quant_ctr", None)
            if source.op == "get_attr" and observer and observer.p.func is PerChannelMinMaxObserver:
                changed = PerChannelHalfRangeObserver.with_args(**observer.p.keywords)
                object.__setattr__(wanted, "observer_or_fake_quant_ctr", changed)


def _is_observable(
    node: torch.fx.Node, wanted: Any, moved: dict[Any, Any], dropped: set[Any]
) -> bool:
    shared = getattr(wanted, "edge_or_node", None)
    if shared is not None:
        object.__setattr__(wanted, "edge_or_node", shared := moved.get(shared, shared))
    value = node.meta.get("val")
    if node.op == "get_attr":  # a weight, whose shape NNCF has looked at
        return shared not in dropped
    by_channel = getattr(wanted, "qscheme", None) in _BY_CHANNEL
    axis = wanted.ch_axis if by_channel else -1
    floats = isinstance(value, torch.Tensor) and value.is_floating_point()
    return floats and value.dim() > axis and shared not in dropped


def _has_attention(graph: torch.fx.Graph) -> bool:
    """Whether weights that a softmax gives are multiplied with a matrix, as a head's are not."""
    return any(
        "scaled_dot_product_attention" in str(node.target)
        or ("softmax" in str(node.target) and _feeds_product(node))
        for node in graph.nodes
    )


def _feeds_product(node: torch.fx.Node, hops: int = _HOPS) -> bool:
    return any(
        "matmul" in str(user.target)
        or "bmm" in str(user.target)
        or (hops > 0 and _feeds_product(user, hops - 1))
        for user in node.users
    )


def _refuse_dynamic(traced: torch.export.ExportedProgram) -> None:
    """The delegate leaves every output at its largest size."""
    if not dynamic_symbols(traced):
        return
    raise fail(
        "lowering",
        "the model has dynamic shapes, and ExecuTorch's OpenVINO delegate gives outputs of the "
        "largest size whatever the inputs are",
        remedy="Export it with fixed shapes, without dynamic_shapes and benchmark.sizes; or\n"
        "--set export.backend=xnnpack",
    )


def _refuse_single_values(graph: torch.fx.Graph) -> None:
    """The delegate cannot hand over a tensor without dimensions: its run fails without a word."""
    from executorch.exir.delegate import executorch_call_delegate

    for node in graph.nodes:
        if node.target is executorch_call_delegate:
            given = [n.meta.get("val") for n in node.all_input_nodes if n.op != "get_attr"]
            made = node.meta.get("val")
            made = made if isinstance(made, tuple | list) else [made]
            if any(_is_single(value) for value in (*given, *made)):
                raise fail(
                    "lowering",
                    "a tensor without dimensions goes into an OpenVINO partition or comes out of "
                    "it, which ExecuTorch's delegate does not support",
                    remedy="Give it a dimension, as x.reshape(1) does, or make an input a plain "
                    "number; or\n--set export.backend=xnnpack",
                )


def _is_single(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() == 0


@contextmanager
def _in_32_bits() -> Iterator[None]:
    """Compiles for 32-bit floats while it lasts, as programs without quantization are run.

    On a processor with AMX, OpenVINO would join layers to one that exists in 16 bits only, and such
    a program cannot be loaded in 32.
    """
    from openvino import Core
    from openvino.frontend.pytorch.torchdynamo import (
        compile as compiler,
    )

    class Exact(Core):  # type: ignore[misc]
        """Compiles in 32 bits."""

        def compile_model(self, model: Any, device: str, config: Any = None) -> Any:
            exact = {**(config or {}), "INFERENCE_PRECISION_HINT": "f32"}
            return super().compile_model(model, device, exact)

    with patched(compiler, Core=Exact):
        yield


@contextmanager
def _half_weights() -> Iterator[None]:
    """Stores weights as 16-bit floats while it lasts.

    ExecuTorch gives the converted model to OpenVINO's compiler without a way to say so.
    """
    from openvino import Core
    from openvino._offline_transformations import (
        compress_model_transformation,
    )
    from openvino.frontend.pytorch.torchdynamo import (
        compile as compiler,
    )

    class Compressing(Core):  # type: ignore[misc]
        """Compresses what it is to compile."""

        def compile_model(self, model: Any, *arguments: Any) -> Any:
            compress_model_transformation(model)
            return super().compile_model(model, *arguments)

    with patched(compiler, Core=Compressing):
        yield


LOWERING = OpenvinoLowering()
