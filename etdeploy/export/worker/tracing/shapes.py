"""The shapes that a traced program takes, for sizes that a recipe names.

A dimension of a traced program is an expression of symbols, `s0` or `2*s0`; one symbol may stand in
several inputs. Sizes are solved for the symbols, which give every other shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch

from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.failures import WorkerError, fail
from etdeploy.export.worker.loading.source import Source
from etdeploy.export.worker.tracing.dims import RequestedDim, requested_dims
from etdeploy.export.worker.tracing.structure import fixed_size, input_values
from etdeploy.export.worker.tracing.tensors import flat_inputs

# A dimension of an input: the input's place, and the dimension.
_Spot = tuple[int, int]


class Shapes:
    """What sizes a traced program takes, and which shapes follow from them.

    Attributes:
        inputs: The example's, by name.
    """

    def __init__(self, source: Source, traced: torch.export.ExportedProgram) -> None:
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
        """The shape of every input at one of the recipe's sizes; () for one that is no tensor.

        Raises:
            WorkerError: A dimension is not there, is fixed, or does not take its size.
        """
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
        told = [
            f"{names.get(s) or f'{self.inputs[s[0]].name}.{s[1]}'} ({self._bounds(s)})"
            for s in spots
        ]
        return f"there are {', '.join(dict.fromkeys(told))}"


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
