"""Inputs of other sizes than the example's, for a program with dynamic shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch.utils import _pytree as pytree

from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.failures import WorkerError, describe, describe_errors, fail
from etdeploy.export.worker.loading.source import MethodSource, as_call
from etdeploy.export.worker.loading.user_code import load_function
from etdeploy.export.worker.tracing.dims import RequestedDim, requested_dims
from etdeploy.export.worker.tracing.structure import ExampleInputs, fixed_size, input_values
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
    call: ExampleInputs

    @property
    def given(self) -> str:
        """How a message calls them."""
        return f"the inputs of the size {self.name}"


def sized_calls(
    spec: ExportSpec, source: MethodSource, traced: torch.export.ExportedProgram
) -> Iterator[SizedCall]:
    """The inputs of every size that the recipe names."""
    shapes = Shapes(source, traced)
    for name, sizes in spec.sizes.items():
        wanted = shapes.of_sizes(spec, name)
        if spec.inputs and sizes:
            call = laid_out(_from_function(spec, name, source), source.inputs)
            _check_made(spec, name, shapes, wanted, flat_inputs(source.module, call))
        else:
            call = laid_out(_resized(source.inputs, wanted, spec.seed), source.inputs)
        yield SizedCall(name, sizes, call)


def _resized(call: ExampleInputs, wanted: Sequence[tuple[int, ...]], seed: int) -> ExampleInputs:
    """The same inputs, where a shape changes with values drawn from the example's own.

    So integers stay valid as indices, and floats keep their distribution.
    """
    generator = torch.Generator().manual_seed(seed)
    flat, structure = pytree.tree_flatten((call.args, dict(call.keywords)))
    made = [_drawn(leaf, shape, generator) for leaf, shape in zip(flat, wanted, strict=True)]
    return ExampleInputs(*pytree.tree_unflatten(made, structure))


def _drawn(leaf: Any, shape: tuple[int, ...], generator: torch.Generator) -> Any:
    if not isinstance(leaf, torch.Tensor) or tuple(leaf.shape) == shape:
        return leaf
    values = leaf.detach().flatten()
    if not values.numel():
        return torch.zeros(shape, dtype=leaf.dtype)
    places = torch.randint(values.numel(), shape, generator=generator)
    return values[places.flatten()].reshape(shape)


def _from_function(spec: ExportSpec, name: str, source: MethodSource) -> ExampleInputs:
    if spec.inputs is None:
        raise ValueError("the spec names no function for inputs")
    function = load_function(spec.inputs, "benchmark.inputs")
    with describe_errors("inputs", f"{spec.inputs} raised, when called for the size {name},"):
        made = function(**spec.sizes[name])
    example = source.inputs
    both = bool(example.args and example.keywords)
    call = ExampleInputs(*made) if both and _is_both(made) else as_call(made)
    if call is None or not _same_structure(call, example):
        raise _misfit(spec, name, f"{describe(made)}, not inputs as the model takes them")
    # In the order in which the program takes them.
    return ExampleInputs(tuple(call.args), {key: call.keywords[key] for key in example.keywords})


def _is_both(made: object) -> bool:
    return isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], Mapping)


def _same_structure(call: ExampleInputs, example: ExampleInputs) -> bool:
    def structures(of: ExampleInputs) -> Any:
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
    """Writes inputs and expected outputs of every size below folders of its name."""
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


# A dimension of an input: the input's place, and the dimension.
_Spot = tuple[int, int]


class Shapes:
    """What sizes a traced program takes, and which shapes follow from them."""

    def __init__(self, source: MethodSource, traced: torch.export.ExportedProgram) -> None:
        self.inputs = flat_inputs(source.module, source.inputs)
        self._asked = list(requested_dims(source))
        self._values = input_values(traced)
        self._ranges = traced.range_constraints
        # The symbols' values in the example.
        self._example: dict[Any, int] = {}
        for spot, expression in self._dynamic():
            size = self.inputs[spot[0]].value.shape[spot[1]]  # type: ignore[union-attr]
            for symbol, value in _solved(expression, size):
                self._example.setdefault(symbol, value)

    def of_sizes(self, spec: ExportSpec, name: str) -> list[tuple[int, ...]]:
        """The shape of every input at one of the recipe's sizes; () for other than a tensor."""
        found: dict[Any, tuple[int, str]] = {}
        for key, size in spec.sizes[name].items():
            place = spec.place("benchmark", "sizes", name, key)
            for spot, wanted in self._spots(key, size, place):
                for symbol, value in self._required(spot, wanted, key, place):
                    known, other = found.setdefault(symbol, (value, key))
                    if known != value:
                        raise _refused(
                            f"{key} is {size}, but {other} makes it {self._size(spot, known)}: "
                            "the program takes them together",
                            place,
                        )
        symbols = self._example | {symbol: value for symbol, (value, _) in found.items()}
        return [
            tuple(int(_expression(size).subs(symbols)) for size in value.shape)
            if isinstance(value, torch.Tensor)
            else ()
            for value in self._values
        ]

    def _dynamic(self) -> Iterator[tuple[_Spot, Any]]:
        for leaf, value in enumerate(self._values):
            for dim, size in enumerate(getattr(value, "shape", ())):
                if fixed_size(size) is None:
                    yield (leaf, dim), _expression(size)

    def _spots(self, key: str, size: int, place: str) -> list[tuple[_Spot, int]]:
        """The dimensions that a key names, with the size that each is to have."""
        named = [(a, w) for a in self._asked if (w := _by_dim_name(a, key, size)) is not None]
        if named:
            return [((asked.leaf, asked.dim), wanted) for asked, wanted in named]
        name, _, number = key.rpartition(".")
        for leaf, value in enumerate(self.inputs):
            dims = value.value.dim() if isinstance(value.value, torch.Tensor) else 0
            if name == value.name and number.isdecimal() and int(number) < dims:
                return [((leaf, int(number)), size)]
        raise _refused(f"there is no dynamic dimension {key}; {self._choice()}", place)

    def _required(
        self, spot: _Spot, wanted: int, key: str, place: str
    ) -> Iterator[tuple[Any, int]]:
        """The symbols' values that give a dimension its size."""
        size = self._values[spot[0]].shape[spot[1]]
        fixed = fixed_size(size)
        if fixed == wanted:
            return
        if fixed is not None:
            raise _refused(
                f"{self._label(spot)} is {fixed} in the program and takes no other size; "
                + self._choice(),
                place,
            )
        solved = list(_solved(_expression(size), wanted))
        if not solved:
            shown = _expression(size)
            shown = shown.subs(dict.fromkeys(shown.free_symbols, sympy.Symbol("n")))
            raise _refused(
                f"{self._label(spot)} cannot be {wanted}; it is {shown} for a whole number n", place
            )
        for symbol, value in solved:
            bounds = self._ranges.get(symbol)
            if bounds and not bounds.lower <= value <= bounds.upper:
                raise _refused(f"{key} is {wanted}; the program takes {self._bounds(spot)}", place)
            yield symbol, value

    def _size(self, spot: _Spot, symbol_value: int) -> int:
        expression = _expression(self._values[spot[0]].shape[spot[1]])
        return int(expression.subs(dict.fromkeys(expression.free_symbols, symbol_value)))

    def _label(self, spot: _Spot) -> str:
        return f"dimension {spot[1]} of the input {self.inputs[spot[0]].name}"

    def _bounds(self, spot: _Spot) -> str:
        expression = _expression(self._values[spot[0]].shape[spot[1]])
        ends = []
        for end in ("lower", "upper"):
            values = {s: getattr(self._ranges.get(s), end, s) for s in expression.free_symbols}
            ends.append(expression.subs(values))
        lower, upper = ends
        return f"{lower} to {upper}" if upper.is_Integer else f"{lower} and more"

    def _choice(self) -> str:
        spots = [spot for spot, _ in self._dynamic()]
        if not spots:
            return "every dimension of the program is fixed"
        names = {(a.leaf, a.dim): getattr(a.asked, "__name__", None) for a in self._asked}
        choices = [
            f"{names.get(s) or f'{self.inputs[s[0]].name}.{s[1]}'} ({self._bounds(s)})"
            for s in spots
        ]
        return f"there are {', '.join(dict.fromkeys(choices))}"


def _expression(size: int | torch.SymInt) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)


def _by_dim_name(asked: RequestedDim, key: str, size: int) -> int | None:
    """The size of a dimension whose torch.export.Dim has the name, or is derived from such one."""
    if getattr(asked.asked, "__name__", None) == key:
        return size
    root = getattr(asked.asked, "root", None)
    return int(asked.asked.fn(size)) if getattr(root, "__name__", None) == key else None


def _solved(expression: Any, size: int) -> Iterator[tuple[Any, int]]:
    """The value of an expression's only symbol that gives the size; nothing without such one."""
    symbols = expression.free_symbols
    if len(symbols) != 1:
        return
    [symbol] = symbols
    # A symbol of torch is a positive integer, which sympy takes into account.
    for value in sympy.solve(sympy.Eq(expression, size), symbol):
        if value.is_Integer:
            yield symbol, int(value)
            return


def _refused(message: str, place: str) -> WorkerError:
    return fail("sizes", message, file=place)
