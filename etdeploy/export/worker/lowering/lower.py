"""From a traced program to a `.pte`, through the backend's own lowering."""

from __future__ import annotations

from typing import Any

import torch

from etdeploy.backends.registry import release_of
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.backends.base import lowering_of
from etdeploy.export.worker.loading.source import Source
from etdeploy.export.worker.lowering.lower_failures import explaining


def lower(
    spec: ExportSpec, module: torch.nn.Module, source: Source, traced: torch.export.ExportedProgram
) -> Any:
    """Hands the traced program to the backend; an `EdgeProgramManager` with an ETRecord.

    Args:
        spec: Names the backend.
        module: The model as it was traced, for a backend that traces it again.
        source: Its inputs and dynamic shapes.
        traced: The model as a graph.

    Raises:
        WorkerError: An operator has no place in a program, or the backend failed.
    """
    release = release_of(str(spec.backend))
    whose = f" of the package {release}" if release else ""
    lowering, prefix = lowering_of(spec), f"lowering to {spec.backend}{whose} failed:"
    with explaining(prefix, traced, meanings=lowering.meanings):
        return lowering.lower(spec, module, source, traced)


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
    lowering_of(spec).adjust(config)
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
