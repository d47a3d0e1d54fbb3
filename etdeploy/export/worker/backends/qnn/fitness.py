"""What a model must be for the HTP: refused before the compile, or made to fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from etdeploy.export.protocol import Failure
from etdeploy.export.worker.failures import WorkerError, fail
from etdeploy.export.worker.loading.source import Source
from etdeploy.export.worker.tracing.structure import Call, leaves
from etdeploy.export.worker.tracing.trace import stack_line

_OTHER = "--set export.backend=xnnpack"
_INT32 = torch.iinfo(torch.int32)
# Of torch's operators on graphs, those whose parts run once, often or not at all.
_CONTROL_FLOW = ("cond", "while_loop", "map_impl", "scan", "associative_scan")


@dataclass(frozen=True)
class Positional:
    """A module, with inputs that it takes by position alone."""

    module: torch.nn.Module
    inputs: tuple[Any, ...]


class _ByKeyword(torch.nn.Module):  # type: ignore[misc]
    """Takes by position what the model takes by keyword, behind its other inputs."""

    def __init__(self, module: torch.nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.module = module
        self.names = names

    def forward(self, *values: Any) -> Any:
        first = len(values) - len(self.names)
        keywords = dict(zip(self.names, values[first:], strict=True))
        return self.module(*values[:first], **keywords)


def positional(module: torch.nn.Module, call: Call) -> Positional:
    """What ExecuTorch's entry point for QNN takes, which knows no keywords.

    The program's inputs keep the order that torch.export gives them: keywords behind the others, as
    they are given.
    """
    if not call.keywords:
        return Positional(module, call.args)
    wrapped = _ByKeyword(module, tuple(call.keywords))
    # Not eval(), which a module that torch.export made refuses.
    wrapped.training = module.training
    return Positional(wrapped, (*call.args, *call.keywords.values()))


def refuse_unfit(source: Source, traced: torch.export.ExportedProgram) -> None:
    """Ends the export of a model that the HTP cannot run, before it is compiled.

    Raises:
        WorkerError: The model has dynamic shapes or control flow, or integers that need more than
            32 bits.
    """
    if traced.range_constraints:
        raise _dynamic(source, traced)
    for node in traced.graph.nodes:
        name = getattr(node.target, "__name__", None)
        if isinstance(node.target, torch._ops.HigherOrderOperator) and name in _CONTROL_FLOW:
            raise _control_flow(node, name)
    for name, value in _stored(source, traced):
        if _is_wide(value):
            raise fail(
                "lowering",
                f"{name} has 64-bit integers beyond 32 bits, and the HTP computes integers in 32 "
                "bits",
                remedy=f"Keep such values out of the exported model; or\n{_OTHER}",
            )


def _dynamic(source: Source, traced: torch.export.ExportedProgram) -> WorkerError:
    known = sorted({leaf.__name__ for _, leaf in leaves(source.dynamic_shapes) if _is_dim(leaf)})
    names = ", ".join(known or sorted(map(str, traced.range_constraints)))
    return fail(
        "dynamic-shapes",
        f"the model has dynamic shapes ({names}), and a QNN program is compiled for one size of "
        "each tensor",
        remedy="Export it with fixed shapes: without dynamic_shapes in what the factory returns, "
        "and without\nbenchmark.sizes. Fill shorter inputs up to that size, and mask what was "
        f"added. Or\n{_OTHER}",
    )


def _is_dim(leaf: Any) -> bool:
    """Whether a leaf of dynamic_shapes is a named dimension, unlike `Dim.AUTO`."""
    return isinstance(leaf, torch.export.Dim) and hasattr(leaf, "__name__")


def _control_flow(node: torch.fx.Node, name: str) -> WorkerError:
    file, line, code = stack_line(node.meta.get("stack_trace"))
    return WorkerError(
        Failure(
            kind="lowering",
            message=f"the model decides as it runs what it computes ({name}), which a QNN program "
            "cannot",
            file=file,
            line=line,
            code=code,
            remedy="Compute both branches, and choose with torch.where; write a loop out. Or\n"
            f"{_OTHER}",
        )
    )


def _stored(
    source: Source, traced: torch.export.ExportedProgram
) -> Iterator[tuple[str, torch.Tensor]]:
    """The example inputs, and the model's weights and constants, with their names."""
    for index, (_, value) in enumerate(leaves((source.inputs.args, dict(source.inputs.keywords)))):
        if isinstance(value, torch.Tensor):
            yield f"the example input {index}", value
    for name, value in {**traced.state_dict, **traced.constants}.items():
        if isinstance(value, torch.Tensor):
            yield f"the model's {name}", value


def _is_wide(value: torch.Tensor) -> bool:
    if value.dtype != torch.int64 or not value.numel():
        return False
    return bool(value.min() < _INT32.min or value.max() > _INT32.max)
