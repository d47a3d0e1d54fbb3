"""From a traced program to a `.pte`, through the backend's own partitioner."""

from __future__ import annotations

from typing import Any

import torch

from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.loading.source import Source
from etdeploy.export.worker.lowering.lower_failures import explaining


def lower(
    spec: ExportSpec, module: torch.nn.Module, source: Source, traced: torch.export.ExportedProgram
) -> Any:
    """Hands the traced program to the backend; an `EdgeProgramManager` with an ETRecord.

    Args:
        spec: Names the backend.
        module: The model as it was traced; QNN's own entry point traces it again.
        source: Its inputs and dynamic shapes.
        traced: The model as a graph.

    Raises:
        WorkerError: An operator has no place in a program, or the backend failed.
    """
    with explaining(f"lowering to {spec.backend} failed:", traced):
        if spec.backend == "qnn":
            from etdeploy.export.worker.lowering.qnn import lower_to_qnn

            return lower_to_qnn(spec, module, source)
        from executorch.exir import to_edge_transform_and_lower

        partitioners, passes = _partitioners(spec)
        return to_edge_transform_and_lower(
            traced, partitioner=partitioners, transform_passes=passes, generate_etrecord=True
        )


def emit(spec: ExportSpec, edge: Any, traced: torch.export.ExportedProgram) -> Any:
    """Plans the memory and makes the program; an `ExecutorchProgramManager`.

    Raises:
        WorkerError: An operator has no kernel with an output argument, or a shape no bound.
    """
    with explaining("making the program failed:", traced):
        return edge.to_executorch(_backend_config(spec, edge.exported_program()))


def _backend_config(spec: ExportSpec, lowered: torch.export.ExportedProgram) -> Any:
    from executorch.exir import ExecutorchBackendConfig
    from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass

    config = ExecutorchBackendConfig(
        passes=[InitializedMutableBufferPass(_states_with_values(lowered))]
    )
    if spec.backend == "qnn":
        from etdeploy.export.worker.lowering.qnn import segment_alignment

        config.segment_alignment = segment_alignment()
    return config


def _states_with_values(lowered: torch.export.ExportedProgram) -> list[str]:
    """Placeholders of the buffers that the model writes to and that do not start at zero.

    Without the pass above such a buffer starts at zero on the device. One that is all zero, as an
    empty cache is, needs no place in the file.
    """
    signature = lowered.graph_signature
    written = set(signature.buffers_to_mutate.values())
    return [
        placeholder
        for placeholder, name in signature.inputs_to_buffers.items()
        if name in written and _buffer(lowered, name).count_nonzero()
    ]


def _buffer(lowered: torch.export.ExportedProgram, name: str) -> torch.Tensor:
    """A buffer, also one that is not part of the state dict."""
    stored = lowered.state_dict if name in lowered.state_dict else lowered.constants
    return stored[name]


def _partitioners(spec: ExportSpec) -> tuple[list[Any], Any]:
    """Partitioners, and the passes to run before them."""
    if spec.backend == "xnnpack":
        return _xnnpack()
    if spec.backend == "vulkan":
        from executorch.backends.vulkan.partitioner.vulkan_partitioner import VulkanPartitioner

        return [VulkanPartitioner({"force_fp16": spec.quantization == "fp16"})], None
    if spec.backend == "coreml":
        return [_coreml(half=spec.quantization == "fp16")], None
    return [], None


def _xnnpack() -> tuple[list[Any], Any]:
    """One partitioner for every scheme: it takes float, static and dynamic nodes alike.

    Two of them, the first for dynamically quantised nodes only as ExecuTorch's language model
    exporter has it, make a partition of each such node: on a convolutional net with 8da4w or
    dynamic int8 that takes 1.6 times as long. On transformers both are alike, but for dynamic int8,
    where the pair took 0.83 of the time.
    """
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.backends.xnnpack.utils.configs import get_transform_passes

    return [XnnpackPartitioner()], get_transform_passes()


def _coreml(half: bool) -> Any:
    import coremltools  # type: ignore[import-untyped]
    from executorch.backends.apple.coreml.compiler import CoreMLBackend
    from executorch.backends.apple.coreml.partition import CoreMLPartitioner

    precision = coremltools.precision.FLOAT16 if half else coremltools.precision.FLOAT32
    specs = CoreMLBackend.generate_compile_specs(
        compute_precision=precision,
        # ExecuTorch's own Swift package asks for iOS 17.
        minimum_deployment_target=coremltools.target.iOS17,
    )
    return CoreMLPartitioner(compile_specs=specs)
