"""Lowering to XNNPACK."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any

import torch

from etdeploy.backends.rewrites import REWRITES
from etdeploy.export.needs import may_replace_parts
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.backends.base import Lowering, Traced
from etdeploy.export.worker.lowering.overrides import scheme_of
from etdeploy.export.worker.rewrites.base import Log
from etdeploy.export.worker.rewrites.order import edge_passes


class XnnpackLowering(Lowering):
    """ExecuTorch's quantizer and partitioner for XNNPACK."""

    loads_here = True
    by_pixel = True
    shortens = True
    copies_layers = True
    conditional = True
    stores_once = True  # it asks for no more: CONSTANT_TENSOR_ALIGNMENT of its serialization

    def quantizer(self, spec: ExportSpec) -> Any:
        """Symmetric, with a scale for each channel of the weights."""
        from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
            XNNPACKQuantizer,
            get_symmetric_quantization_config,
        )

        config = get_symmetric_quantization_config(
            is_per_channel=True, is_dynamic=spec.quantization == "int8_dynamic"
        )
        # The only scheme that a part can have beside these: its operators stay in floats.
        quantizer = (
            XNNPACKQuantizer()
            .set_global(config)
            .set_filter_function(lambda node: scheme_of(spec, node) is None)
        )
        transform = quantizer.transform_for_annotation
        quantizer.transform_for_annotation = partial(_transform_floats_only, transform)
        return quantizer

    def partitioners(self, spec: ExportSpec) -> list[Any]:
        """One partitioner for every scheme: it takes float, static and dynamic nodes alike.

        Two of them, the first for dynamically quantized nodes only as ExecuTorch's language model
        exporter has it, make a partition of each such node: on a convolutional net with 8da4w or
        dynamic int8 that takes 1.6 times as long. On transformers both are alike, but for dynamic
        int8, where the pair took 0.83 of the time.
        """
        from etdeploy.export.worker.backends.xnnpack_layouts import ExplainedPartitioner

        return [ExplainedPartitioner(per_op_mode=spec.options["per_op_mode"])]

    def passes(self, spec: ExportSpec, log: Log) -> Any:
        """Those that ExecuTorch's own recipes for XNNPACK run, and the rewrites."""
        from executorch.backends.xnnpack.utils.configs import get_transform_passes

        of_graphs = [name for name in spec.rewrites if not REWRITES[name].for_texts]
        if not spec.generation or of_graphs:
            return get_transform_passes(edge_passes(log))
        from etdeploy.export.worker.language.passes import plain_views

        return get_transform_passes([plain_views])

    def lower(self, spec: ExportSpec, methods: Mapping[str, Traced]) -> Any:
        """As in the base class, with passes for layouts that get them right."""
        for method in methods.values():
            _rewrite(method)
        if not may_replace_parts(spec):
            return super().lower(spec, methods)
        from etdeploy.export.worker.backends.xnnpack_layouts import (
            own_quantizations,
            preprocessing_by_layout,
        )

        is_dynamic = spec.quantization == "int8_dynamic"
        if is_dynamic:
            for method in methods.values():
                own_quantizations(method.program)
        with preprocessing_by_layout(is_dynamic=is_dynamic, skips=spec.shortened):
            return super().lower(spec, methods)

    def shortened(self) -> AbstractContextManager[None]:
        from etdeploy.export.worker.backends.xnnpack_layouts import without_idle_work

        return without_idle_work()

    def preload(self, scheme: str) -> None:
        """Imports the partitioner, and the quantizer where the scheme has one.

        Also traces the graphs that ExecuTorch's passes look for in every model, and then keeps:
        that takes more seconds than the lowering of a small model. It draws random numbers, which
        is why each export seeds them.
        """
        import executorch.backends.xnnpack.partition.xnnpack_partitioner
        import executorch.backends.xnnpack.xnnpack_preprocess

        if scheme in ("int8_static", "int8_dynamic"):
            import executorch.backends.xnnpack.quantizer.xnnpack_quantizer  # noqa: F401
        with suppress(ImportError, AttributeError):  # it has moved in another release
            from executorch.backends.xnnpack.partition.graphs import bilinear_2d, sdpa

            bilinear_2d.get_graphs()
            sdpa.get_graphs()


def _transform_floats_only(transform: Callable[[Any], Any], model: Any) -> Any:
    """Apply ExecuTorch's transform, which makes tensors of numbers, to arithmetic on floats only.

    Its tensors are floats. Added to integers, such as positions or indices, they make floats of
    these, which an embedding or a gather does not take.
    """
    before = {node: node.args for node in model.graph.nodes if _has_integers(node)}
    model = transform(model)
    for node, args in before.items():
        added = [arg for arg in node.args if arg not in args]
        node.args = args
        for constant in added:
            model.graph.erase_node(constant)
            delattr(model, constant.target)
    model.recompile()
    return model


def _has_integers(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and not value.is_floating_point()


def _rewrite(method: Traced) -> None:
    """Rewrites what XNNPACK computes inexactly, or does not take of language models; in place."""
    from etdeploy.export.worker.rewrites.activations import exact_gelus

    exact_gelus(method.program)
    if method.source.is_text:
        from etdeploy.export.worker.language.passes import (
            means_as_products,
            rotations_by_kernel,
        )

        rotations_by_kernel(method.program)
        means_as_products(method.program)


LOWERING = XnnpackLowering()
