"""Evaluates a graph in eager with the values that a device computed, node by node.

Each node is computed three times: from eager values only; from the device's values of what was
observed before it; and from the latter with the rounding that the scheme explains. The first shows
the accumulated error, the second the local one, and the third how large the local one may be: a
node that cancels large values, or sums thousands, amplifies rounding by as much as it does here.
Where values are quantized while the program runs, a fourth time, with some of them a step off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node
from torch.utils import _pytree as pytree

from etdeploy.export.diff import ModelNode, NodeError
from etdeploy.export.worker.diff.instrument import (
    is_quantization,
    operator_of,
)

# Relative rounding of values, by the type that they are computed in.
_UNIT = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
_FINEST_UNIT = 2.0**-24
# How many times the effect of a single rounding is explained: sums in another order, approximations
# of functions. docs/diff.md has the figures from which they were chosen.
_EFFECTS, _LAST_PLACES = 64.0, 64.0
# Share of the values that another rounding moves to the next step of a quantization.
_MOVED_STEPS = 0.05
# A quantized value may be rounded to the next step; kernels of 16 bits approximate functions to
# about 13 (softmax and sigmoid of QNN's HTP are off by 2 to 5 steps).
_STEPS, _EXACT_STEPS = 1.01, 2**13
# How many times the effect of such steps is explained, of values that the program quantizes.
_STEP_EFFECTS = 2.0
# What a kernel may compute with the operator before, whose result is not rounded then. None of them
# makes a difference much larger.
_ACTIVATIONS = frozenset({
    "clamp", "gelu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "relu", "relu6",
    "sigmoid", "silu", "tanh",
})  # fmt: skip


@dataclass
class Values:
    """Values of a node: in eager, from the device's sources, and the latter with rounding.

    `moved` are the latter with steps of dynamic quantizations; None where there is none before.
    """

    eager: Any
    forced: Any
    rounded: Any
    moved: Any = None


@dataclass
class ObservedValue:
    """A value that the device returned.

    Attributes:
        node: As a report names it.
        at: The node of the graph that holds it: the quantization of a quantized value.
        value: The device's; None if it returned none.
    """

    node: ModelNode
    at: Node
    value: torch.Tensor | None


@dataclass
class Replayed:
    """A graph that is evaluated.

    Attributes:
        given: Values of placeholders, by name.
        observed: What the device returned, by the nodes that hold it.
        outputs: How many outputs are the model's own.
        dtype: What the scheme computes floats in; None for each value's own type.
        undefined: The first node that gives NaN from values without; it counts only if an output
            has NaN, since a mask may hide it.
    """

    program: torch.export.ExportedProgram
    given: Mapping[str, Any]
    observed: Mapping[Node, ObservedValue]
    outputs: int = 0
    dtype: torch.dtype | None = None
    values: dict[Node, Values] = field(default_factory=dict)
    random: list[Node] = field(default_factory=list)
    undefined: Node | None = None
    errors: list[NodeError] = field(default_factory=list)

    def run(self, tell: Callable[[str, float], None]) -> None:
        """Evaluates every node; values are dropped after their last use."""
        torch.manual_seed(0)
        last = _last_uses(self.program.graph)
        segments = _segments(self.program.graph, self.observed)
        nodes = list(self.program.graph.nodes)
        for place, node in enumerate(nodes):
            if place % 16 == 0:
                tell(f"evaluating node {place} of {len(nodes)}", place / len(nodes))
            self._evaluate(node, segments)
            for done in last.get(node, ()):
                self.values.pop(done, None)

    def _evaluate(self, node: Node, segments: Mapping[Node, Any]) -> None:
        if node.op == "placeholder":
            value = self.given.get(node.name)
            self.values[node] = Values(value, value, self._rounded(value))
        elif node.op == "get_attr":
            value = getattr(self.program.graph_module, str(node.target))
            self.values[node] = Values(value, value, value)
        elif node.op == "output":
            names = self.program.graph_signature.user_outputs[: self.outputs]
            ends = [n for n in node.all_input_nodes if n.name in names]
            if not any(is_undefined(self.values[n].eager) for n in ends):
                self.undefined = None
        elif node.op == "call_function":
            self.values[node] = self._computed(node)
            if node in self.observed:
                self._compare(node, self.observed[node], segments[node])

    def _computed(self, node: Node) -> Values:
        eager = _call(node, self._arguments(node, "eager"))
        if self.undefined is None and is_undefined(eager) and not self._from_undefined(node):
            self.undefined = node
        if _is_random(node) and not _equal(eager, _call(node, self._arguments(node, "eager"))):
            self.random.append(node)
        forced = eager
        if any(v.forced is not v.eager for v in map(self.values.get, node.all_input_nodes) if v):
            forced = _call(node, self._arguments(node, "forced"))
        try:
            rounded = _call(node, self._arguments(node, "rounded"))
        except (RuntimeError, IndexError):  # an index that rounding has moved out of range
            rounded = forced
        if is_quantization(node):
            low, high = int(node.args[3]), int(node.args[4])
            return Values(eager, forced, _other_steps(rounded, low, high))
        moved = self._moved(node, forced)
        return Values(eager, forced, self._rounded(rounded), moved)

    def _moved(self, node: Node, forced: Any) -> Any:
        """The value, if the quantizations before may have rounded to other steps."""
        if operator_of(node).startswith("quantize_") and not is_quantization(node):
            kinds = torch.iinfo(forced.dtype)
            return _other_steps(forced, kinds.min, kinds.max)
        if all(v.moved is None for v in map(self.values.get, node.all_input_nodes) if v):
            return None
        return _call(node, self._arguments(node, "moved"))

    def _arguments(self, node: Node, kind: str) -> Any:
        def value(source: Node) -> Any:
            values = self.values[source]
            own = getattr(values, kind)
            return values.forced if kind == "moved" and own is None else own

        return torch.fx.map_arg((node.args, node.kwargs), value)

    def _from_undefined(self, node: Node) -> bool:
        return any(is_undefined(self.values[each].eager) for each in node.all_input_nodes)

    def _rounded(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        unit = self._unit(value)
        return value * (1 + unit * (2 * torch.rand(value.shape, dtype=value.dtype) - 1))

    def _unit(self, value: torch.Tensor) -> float:
        return _UNIT.get(self.dtype or value.dtype, _FINEST_UNIT)

    def _in_range(self, value: torch.Tensor) -> torch.Tensor:
        """Clamp values to the range of the type that the scheme computes in."""
        if self.dtype is None:
            return value
        most = torch.finfo(self.dtype).max
        return value.clamp(-most, most)

    def _compare(self, node: Node, seen: ObservedValue, segment: Any) -> None:
        values = self.values[node]
        if seen.value is None:
            return
        eager, forced, rounded = (
            self._in_range(_floats(v, node)) for v in (values.eager, values.forced, values.rounded)
        )
        device = self._in_range(seen.value.to(torch.float64))
        local, odd = _distance(device, forced)
        effect, _ = _distance(rounded, forced)
        accumulated, _ = _distance(device, eager)
        largest = _largest(forced)
        unit = self._unit(seen.value) if seen.value.is_floating_point() else 0.0
        allowed = _EFFECTS * (effect or 0.0) + _LAST_PLACES * unit * largest
        if values.moved is not None:
            moved, _ = _distance(_floats(values.moved, node), forced)
            allowed = max(allowed, _STEP_EFFECTS * (moved or 0.0))
        inside, sources = segment
        if seen.node.step:
            steps = seen.node.step + self._unrounded_step(seen.node, sources)
            allowed = max(_steps(node) * steps, effect or 0.0) + _LAST_PLACES * unit * largest
        self.errors.append(
            NodeError(
                node=seen.node,
                segment=inside,
                sources=sources,
                local_error=local,
                allowed_error=allowed,
                accumulated_error=accumulated,
                relative_error=_relative(device, eager),
                largest=largest,
                odd_places=odd,
            )
        )
        value = _stored(seen.value, node)
        value = value.to(values.forced.dtype)
        self.values[node] = Values(values.eager, value, self._rounded(value))

    def _unrounded_step(self, node: ModelNode, sources: Sequence[str]) -> float:
        """The step of an activation's input, in which the device may not have rounded it."""
        name = node.operator.removeprefix("aten.").partition(".")[0]
        if name not in _ACTIVATIONS or len(sources) != 1:
            return 0.0
        inputs = [each.node for each in self.observed.values() if each.node.name == sources[0]]
        return sum(each.step or 0.0 for each in inputs)


def _call(node: Node, arguments: Any) -> Any:
    args, kwargs = arguments
    target: Any = node.target
    with torch.no_grad():
        return target(*args, **kwargs)


def _last_uses(graph: torch.fx.Graph) -> dict[Node, list[Node]]:
    last: dict[Node, Node] = {}
    for node in graph.nodes:
        for each in node.all_input_nodes:
            last[each] = node
    found: dict[Node, list[Node]] = {}
    for each, node in last.items():
        found.setdefault(node, []).append(each)
    return found


def _segments(
    graph: torch.fx.Graph, observed: Mapping[Node, ObservedValue]
) -> dict[Node, tuple[tuple[str, ...], tuple[str, ...]]]:
    """For each observed node: the nodes up to other observed ones, and these, in order."""
    places = {node: place for place, node in enumerate(graph.nodes)}
    found = {}
    for node in observed:
        inside, sources, waiting = {node}, set(), list(node.all_input_nodes)
        while waiting:
            each = waiting.pop()
            if each in observed:
                sources.add(each)
            elif each.op == "call_function" and each not in inside:
                inside.add(each)
                waiting += each.all_input_nodes
        found[node] = (
            tuple(each.name for each in sorted(inside, key=places.__getitem__)),
            tuple(observed[each].node.name for each in sorted(sources, key=places.__getitem__)),
        )
    return found


def _is_random(node: Node) -> bool:
    """Whether an operator may give something else each time: a random one, or the user's own."""
    tags = getattr(node.target, "tags", ())
    namespace = getattr(node.target, "namespace", "")
    return torch.Tag.nondeterministic_seeded in tags or namespace not in (
        "aten", "prims", "quantized_decomposed", "torchao", "",
    )  # fmt: skip


def _equal(a: Any, b: Any) -> bool:
    pairs = zip(pytree.tree_leaves(a), pytree.tree_leaves(b), strict=True)
    return all(
        torch.equal(x.nan_to_num(), y.nan_to_num()) if isinstance(x, torch.Tensor) else x == y
        for x, y in pairs
    )


def is_undefined(value: Any) -> bool:
    """Whether a value has NaN; infinities are what masks are made of."""
    return (
        isinstance(value, torch.Tensor) and value.is_floating_point() and bool(value.isnan().any())
    )


def _other_steps(quantized: torch.Tensor, low: int, high: int) -> torch.Tensor:
    """Moves a share of quantized values to a neighbour, as a kernel's own rounding may."""
    moved = torch.rand(quantized.shape) < _MOVED_STEPS
    steps = torch.where(torch.rand(quantized.shape) < 0.5, -1, 1) * moved
    return (quantized.to(torch.int64) + steps).clamp(low, high).to(quantized.dtype)


def _floats(value: torch.Tensor, node: Node) -> torch.Tensor:
    """A value as an observer sees it: the numbers that quantized ones stand for."""
    value = value.to(torch.float64)
    if not is_quantization(node):
        return value
    scale, zero_point = node.args[1], node.args[2]
    return (value - zero_point) * scale


def _steps(quantization: Node) -> float:
    """How many steps a kernel's result may be off."""
    low, high = int(quantization.args[3]), int(quantization.args[4])
    return max(_STEPS, (high - low) / _EXACT_STEPS)


def _stored(value: torch.Tensor, node: Node) -> torch.Tensor:
    if not is_quantization(node):
        return value
    scale, zero_point, low, high = (float(node.args[i]) for i in range(1, 5))
    quantized = (value.to(torch.float64) / scale).round() + zero_point
    return quantized.nan_to_num().clamp(low, high)


def _distance(a: torch.Tensor, b: torch.Tensor) -> tuple[float | None, int]:
    """The largest difference, and places that are NaN or infinite on one side only."""
    finite = a.isfinite() & b.isfinite()
    same = finite | (a.isnan() & b.isnan()) | (a == b)
    odd = int((~same).sum())
    if not bool(finite.any()):
        return (None if odd else 0.0), odd
    return float((a - b)[finite].abs().max()), odd


def _largest(value: torch.Tensor) -> float:
    finite = value[value.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


def _relative(a: torch.Tensor, b: torch.Tensor) -> float | None:
    finite = a.isfinite() & b.isfinite()
    size = float(b[finite].square().mean().sqrt()) if bool(finite.any()) else 0.0
    return float((a - b)[finite].square().mean().sqrt()) / size if size else None
