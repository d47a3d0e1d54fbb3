"""Inputs of other sizes than the example's, for a program with dynamic shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.failures import WorkerError, blaming, described, fail
from etdeploy.export.worker.loading.returned import as_call
from etdeploy.export.worker.loading.source import Source
from etdeploy.export.worker.loading.user_code import load_function
from etdeploy.export.worker.tracing.shapes import Shapes
from etdeploy.export.worker.tracing.structure import Call
from etdeploy.export.worker.tracing.tensors import (
    Values,
    flat_inputs,
    laid_out,
    misfit,
    write_values,
)
from etdeploy.program.folder import InputSet


@dataclass(frozen=True)
class SizedCall:
    """Inputs of one size; `sizes` as the recipe names them."""

    name: str
    sizes: Mapping[str, int]
    call: Call

    @property
    def given(self) -> str:
        """How a message calls them."""
        return f"the inputs of the size {self.name}"


def sized_calls(
    spec: ExportSpec, source: Source, traced: torch.export.ExportedProgram
) -> Iterator[SizedCall]:
    """The inputs of every size that the recipe names.

    Raises:
        WorkerError: The program does not take such a size, or the user's function fails.
    """
    shapes = Shapes(source, traced)
    for name, sizes in spec.sizes.items():
        wanted = shapes.of_sizes(spec, name)
        if spec.inputs and sizes:
            call = laid_out(_from_function(spec, name, source), source.inputs)
            _check_made(spec, name, shapes, wanted, flat_inputs(source.module, call))
        else:
            call = laid_out(_resized(source.inputs, wanted, spec.seed), source.inputs)
        yield SizedCall(name, sizes, call)


def _resized(call: Call, wanted: Sequence[tuple[int, ...]], seed: int) -> Call:
    """The same inputs, where a shape changes with values drawn from the example's own.

    So integers stay valid as indices, and floats keep their distribution.
    """
    generator = torch.Generator().manual_seed(seed)
    flat, structure = pytree.tree_flatten((call.args, dict(call.keywords)))
    made = [_drawn(leaf, shape, generator) for leaf, shape in zip(flat, wanted, strict=True)]
    return Call(*pytree.tree_unflatten(made, structure))


def _drawn(leaf: Any, shape: tuple[int, ...], generator: torch.Generator) -> Any:
    if not isinstance(leaf, torch.Tensor) or tuple(leaf.shape) == shape:
        return leaf
    values = leaf.detach().flatten()
    if not values.numel():
        return torch.zeros(shape, dtype=leaf.dtype)
    places = torch.randint(values.numel(), shape, generator=generator)
    return values[places.flatten()].reshape(shape)


def _from_function(spec: ExportSpec, name: str, source: Source) -> Call:
    if spec.inputs is None:
        raise ValueError("the spec names no function for inputs")
    function = load_function(spec.inputs, "benchmark.inputs")
    with blaming("inputs", f"{spec.inputs} raised, when called for the size {name},"):
        made = function(**spec.sizes[name])
    example = source.inputs
    both = bool(example.args and example.keywords)
    call = Call(*made) if both and _is_both(made) else as_call(made)
    if call is None or not _same_structure(call, example):
        raise _misfit(spec, name, f"{described(made)}, not inputs as the model takes them")
    # In the order in which the program takes them.
    return Call(tuple(call.args), {key: call.keywords[key] for key in example.keywords})


def _is_both(made: object) -> bool:
    return isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], Mapping)


def _same_structure(call: Call, example: Call) -> bool:
    def structures(of: Call) -> Any:
        named = {key: pytree.tree_structure(value) for key, value in of.keywords.items()}
        return pytree.tree_structure(tuple(of.args)), named

    return bool(structures(call) == structures(example))


def _check_made(
    spec: ExportSpec, name: str, shapes: Shapes, wanted: Sequence[tuple[int, ...]], made: Values
) -> None:
    """Whether the user's own inputs are such that the program takes them, of the named sizes."""
    for value, example, shape in zip(made, shapes.inputs, wanted, strict=True):
        sizes = [range(size, size + 1) for size in shape]
        if problem := misfit(value.name, value.value, example.value, sizes):
            raise _misfit(spec, name, problem)


def _misfit(spec: ExportSpec, name: str, what: str) -> WorkerError:
    return fail(
        "inputs",
        f"{spec.inputs} returned, for the size {name}, {what}",
        remedy="Return the same structure as the factory's example inputs.",
        file=spec.place("benchmark", "sizes", name),
    )


def write_sets(
    folder: Path,
    module: torch.nn.Module,
    sets: Sequence[SizedCall],
    outputs: Sequence[Values],
    below: str = "",
) -> tuple[InputSet, ...]:
    """Writes inputs and expected outputs of every size below folders of its name.

    Args:
        folder: Of the program.
        module: Of the method, as it takes the inputs.
        sets: Inputs of each size.
        outputs: For each of them.
        below: The folder of the method, `/prefill`, where there are several.
    """
    return tuple(
        InputSet(
            name=each.name,
            sizes=dict(each.sizes),
            inputs=write_values(
                folder, f"inputs{below}/{each.name}", flat_inputs(module, each.call)
            ),
            expected=write_values(folder, f"expected{below}/{each.name}", expected),
        )
        for each, expected in zip(sets, outputs, strict=True)
    )
