"""From a traced program to a `.pte`, through the backend's own partitioner."""

from __future__ import annotations

import re
from typing import Any

import torch

from etdeploy.export.protocol import Failure
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.custom_ops import without_out_variant
from etdeploy.export.worker.failures import WorkerError, blaming, exception_text
from etdeploy.export.worker.source import Source
from etdeploy.export.worker.trace import Place, node_place

_NOT_CORE = re.compile(r"Operator torch\._ops\.(\w+)\.(\w+)\.\w+ is not in Core ATen")
_NO_OUT_VARIANT = re.compile(r"Missing out variants: \{(.+?)\}")
_UNBOUNDED = "finite upper bound"


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
    try:
        if spec.backend == "qnn":
            from etdeploy.export.worker.qnn import lower_to_qnn

            return lower_to_qnn(spec, module, source)
        from executorch.exir import to_edge_transform_and_lower

        partitioners, passes = _partitioners(spec)
        return to_edge_transform_and_lower(
            traced, partitioner=partitioners, transform_passes=passes, generate_etrecord=True
        )
    except Exception as error:
        if failure := _operator_failure(error, traced):
            raise WorkerError(failure) from error
        with blaming("lowering", f"lowering to {spec.backend} failed:"):
            raise


def emit(spec: ExportSpec, edge: Any, traced: torch.export.ExportedProgram) -> Any:
    """Plans the memory and makes the program; an `ExecutorchProgramManager`.

    Raises:
        WorkerError: An operator has no kernel with an output argument, or a shape no bound.
    """
    try:
        return edge.to_executorch(_backend_config(spec, edge.exported_program()))
    except Exception as error:
        failure = _operator_failure(error, traced) or _shape_failure(error)
        if failure:
            raise WorkerError(failure) from error
        with blaming("lowering", "making the program failed:"):
            raise


def _backend_config(spec: ExportSpec, lowered: torch.export.ExportedProgram) -> Any:
    from executorch.exir import ExecutorchBackendConfig
    from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass

    config = ExecutorchBackendConfig(
        passes=[InitializedMutableBufferPass(_states_with_values(lowered))]
    )
    if spec.backend == "qnn":
        from etdeploy.export.worker.qnn import segment_alignment

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


def _operator_failure(error: Exception, traced: torch.export.ExportedProgram) -> Failure | None:
    """Names the operator that has no place in a program."""
    text = str(error)
    if found := _NOT_CORE.search(text):
        operator = f"{found[1]}::{found[2]}"
        why = "is not in the core ATen set, so ExecuTorch has no kernel for it"
        remedy = (
            "Replace it by other operators in the model's code, or compute it outside the model."
        )
    elif found := _NO_OUT_VARIANT.search(text):
        operator = min(name.strip(" '\"") for name in found[1].split(","))
        why, remedy = without_out_variant(operator)
    else:
        return None
    file, line, code = _place(operator, traced)
    return Failure(
        kind="operator",
        message=f"the operator {operator} {why}",
        operator=operator,
        file=file,
        line=line,
        code=code,
        remedy=remedy,
    )


def _place(operator: str, traced: torch.export.ExportedProgram) -> Place:
    """Where the model calls the operator, itself or through one that decomposes into it."""
    place = node_place(traced, operator)
    return place if place[0] else node_place(traced.run_decompositions(), operator)


def _shape_failure(error: Exception) -> Failure | None:
    if _UNBOUNDED not in str(error):
        return None
    return Failure(
        kind="dynamic-shapes",
        message="a dynamic size has no upper bound, and a program's memory is planned for the "
        f"largest one: {exception_text(error)}",
        remedy="Give the dimension a bound, torch.export.Dim(name, max=512), or a size that is "
        "read from a\ntensor one with torch._check(size <= 512).",
    )
