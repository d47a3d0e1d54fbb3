"""Dimensions that are to be dynamic, and what torch.export made of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_symbols
from torch.utils._pytree import tree_leaves

from etdeploy.core.console import count
from etdeploy.export.worker.failures import describe, fail
from etdeploy.export.worker.loading.source import MethodSource
from etdeploy.export.worker.tracing.structure import (
    KeyPath,
    by_parameter,
    children,
    dotted,
    fixed_size,
    input_values,
    leaves,
    shapes_by_parameter,
)
from etdeploy.export.worker.tracing.tensors import Values

_RECURRENT = ("aten.lstm.input", "aten.gru.input", "aten.rnn_tanh.input", "aten.rnn_relu.input")
_FEW_STEPS = 100
# Of one processor, with XNNPACK on a server: 80 steps of an LSTM took 23 s, 160 took 64 s, and 480
# in three layers, with rewrites, about 150 s.
_STEP_S = 0.3


def dynamic_symbols(program: torch.export.ExportedProgram) -> set[object]:
    """Return the symbols of sizes that are not fixed.

    The ranges of a program that was traced again may name symbols that no size has any more.
    """
    values = [leaf for node in program.graph.nodes for leaf in tree_leaves(node.meta.get("val"))]
    sized = (value for value in values if isinstance(value, torch.Tensor | torch.SymInt))
    return {s for value in sized for s in free_symbols(value) if s in program.range_constraints}


@dataclass(frozen=True)
class RequestedDim:
    """A dimension of an input tensor that the dynamic shapes leave open.

    `leaf` is the place of the tensor among the program's inputs; `asked` the torch.export.Dim that
    was requested, or a hint such as Dim.AUTO.
    """

    leaf: int
    input: str
    dim: int
    asked: Any


def requested_dims(source: MethodSource) -> Iterator[RequestedDim]:
    """Every dimension that the source's dynamic shapes leave open."""
    shapes = shapes_by_parameter(source.module, source.inputs, source.dynamic_shapes)
    inputs = by_parameter(source.module, source.inputs)
    for index, (path, leaf) in enumerate(leaves(inputs)):
        if not isinstance(leaf, torch.Tensor):
            continue
        for dim, asked in _dims(_at(shapes, path)):
            if _is_open(asked):
                yield RequestedDim(index, dotted(path, "input"), dim, asked)


def _at(shapes: Any, path: KeyPath) -> Any:
    """What the dynamic shapes say of the leaf at a path; None where they say nothing."""
    for key in path:
        below = children(shapes)
        shapes = dict(below).get(key) if below else None
    return shapes


def _dims(shape: Any) -> list[tuple[int, Any]]:
    if isinstance(shape, Mapping):
        return list(shape.items())
    return list(enumerate(shape)) if isinstance(shape, tuple | list) else []


def _is_open(asked: Any) -> bool:
    """Whether a dimension is to be dynamic; None, a number and Dim.STATIC keep it fixed."""
    if asked is None or isinstance(asked, int):
        return False
    return getattr(getattr(asked, "type", asked), "name", "") != "STATIC"


def fixed_notes(source: MethodSource, traced: torch.export.ExportedProgram) -> Iterator[str]:
    """A sentence for each dimension that was to be dynamic and has the example's size only."""
    values = input_values(traced)
    for asked in requested_dims(source):
        size = fixed_size(values[asked.leaf].shape[asked.dim])
        if size is not None:
            yield (
                f"The program takes the size {size} only in dimension {asked.dim} of the input "
                f"{asked.input}, which the dynamic shapes leave open: {_why(asked.dim, size)}"
            )


def check_numbers(source: MethodSource, traced: torch.export.ExportedProgram) -> None:
    """Raises when the dynamic shapes leave a number open.

    ExecuTorch writes None in its place, so that the program cannot be given one.
    """
    paths = leaves(by_parameter(source.module, source.inputs))
    for (path, leaf), value in zip(paths, input_values(traced), strict=True):
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            raise fail(
                "inputs",
                f"the input {dotted(path, 'input')} is {describe(leaf)}, {leaf!r}, that the "
                "dynamic shapes leave open; a program has no place for such a number",
                remedy="Pass it as a tensor, torch.tensor(value), or leave it out of the dynamic "
                "shapes.",
            )


def constant_notes(inputs: Values) -> Iterator[str]:
    """A sentence about numbers among the inputs: torch.export makes them part of the program."""
    numbers = [f"{v.name} = {v.value}" for v in inputs if isinstance(v.value, int | float)]
    if numbers:
        yield (
            f"Plain values are fixed in the program: {', '.join(numbers)}. What is to change "
            "from call to call has to be a tensor."
        )


def _why(dim: int, size: int) -> str:
    if dim < 0:
        return "torch.export does not read negative dimensions."
    if size < 2:
        return f"the example has size {size} there, which torch.export fixes. Give an example of 2."
    return (
        "the model's code fixes it to that of the example, which torch.export.Dim.AUTO allows. "
        "With Dim.DYNAMIC the export reports the cause."
    )


def unrolled_steps(program: torch.export.ExportedProgram) -> int:
    """The steps of recurrent layers that a lowering writes out one by one, in all layers.

    Each layer and direction of an LSTM, a GRU or an RNN has one for each element of the sequence.
    """
    return sum(map(_steps, _recurrences(program)))


def _recurrences(program: torch.export.ExportedProgram) -> Iterator[dict[str, Any]]:
    """The arguments of each recurrent layer by their names."""
    for node in program.graph.nodes:
        if str(node.target) in _RECURRENT:
            names = [argument.name for argument in node.target._schema.arguments]
            yield {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def _steps(given: Mapping[str, Any]) -> int:
    shape = given["input"].meta["val"].shape
    length = fixed_size(shape[1 if given["batch_first"] and len(shape) > 2 else 0]) or 0
    return length * int(given["num_layers"]) * (2 if given["bidirectional"] else 1)


def recurrence_notes(program: torch.export.ExportedProgram) -> Iterator[str]:
    """A sentence about recurrent layers whose steps make a lowering take long."""
    steps = unrolled_steps(program)
    if steps <= _FEW_STEPS:
        return
    if any(each["bidirectional"] for each in _recurrences(program)):
        advice = (
            "Layers in both directions need the whole sequence: use fewer of them, or shorten it."
        )
    else:
        advice = (
            "Export a part of the sequence, such as 10 elements, with the state as an input and an "
            "output (y, state = self.rnn(x, state); return y, state), and call the program for one "
            "part after the other."
        )
    minutes = max(1, round(_STEP_S * steps / 60))
    yield (
        f"ExecuTorch unrolls the recurrent layers into {steps} steps and lowers each of them, "
        f"which takes roughly {count(minutes, 'minute')}. {advice}"
    )
