"""Evaluates a graph in eager with the values that a device computed, node by node.

Each node is computed three times: from eager values only; from the device's values of what was
observed before it; and from the latter with the rounding that the scheme explains. The first shows
the accumulated error, the second the local one, and the third how large the local one may be: a
node that cancels large values, or sums thousands, amplifies rounding by as much as it does here.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch.fx import Node
from torch.utils import _pytree as pytree

from etdeploy.export.diff import (
    GRAPH_FILE,
    NODES_FILE,
    ModelNode,
    NodeError,
    ObservedGraph,
    Replay,
    ReplayRequest,
)
from etdeploy.export.protocol import progress_line
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.diff.instrument import (
    bound_constants,
    is_dequantization,
    is_quantization,
)
from etdeploy.export.worker.failures import fail, failure_of
from etdeploy.export.worker.loading.paths import add_user_folder, pin_installed
from etdeploy.export.worker.loading.source import prepare
from etdeploy.export.worker.loading.user_code import run_user_files
from etdeploy.export.worker.lowering.overrides import path_in_model
from etdeploy.export.worker.tracing.trace import stack_line
from etdeploy.program.folder import TensorFile
from etdeploy.program.model import PlainValue

# Relative rounding of values, by the type that they are computed in.
_UNIT = {"float32": 2.0**-24, "float64": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
# Of schemes that compute values of 32 bits in fewer.
_SCHEME_UNIT = {"fp16": 2.0**-11}
# How many times the effect of a single rounding is explained: sums in another order, approximations
# of functions. docs/diff.md has the figures from which they were chosen.
_EFFECTS, _LAST_PLACES = 64.0, 64.0
# Share of the values that another rounding moves to the next step of a quantization.
_MOVED_STEPS = 0.05
# A quantized value may be rounded to the next step.
_STEPS = 1.01
# What a kernel may compute with the operator before, whose result is not rounded then. None of them
# makes a difference much larger.
_ACTIVATIONS = frozenset({
    "clamp", "gelu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "relu", "relu6",
    "sigmoid", "silu", "tanh",
})  # fmt: skip
# Of all values: below, one thread evaluates the graph.
_SMALL_BYTES = 64 << 20


@dataclass
class Values:
    """Values of a node: in eager, from the device's sources, and the latter with rounding."""

    eager: Any
    forced: Any
    rounded: Any


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
        unit: Relative rounding; None for that of each value's type.
        undefined: The first node that gives NaN from values without; it counts only if an output
            has NaN, since a mask may hide it.
    """

    program: torch.export.ExportedProgram
    given: Mapping[str, Any]
    observed: Mapping[Node, ObservedValue]
    outputs: int = 0
    unit: float | None = None
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
            if not any(_is_undefined(self.values[n].eager) for n in ends):
                self.undefined = None
        elif node.op == "call_function":
            self.values[node] = self._computed(node)
            if node in self.observed:
                self._compare(node, self.observed[node], segments[node])

    def _computed(self, node: Node) -> Values:
        eager = _call(node, self._arguments(node, "eager"))
        if self.undefined is None and _is_undefined(eager) and not self._from_undefined(node):
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
            return Values(eager, forced, _other_steps(rounded, node))
        return Values(eager, forced, self._rounded(rounded))

    def _arguments(self, node: Node, kind: str) -> Any:
        return torch.fx.map_arg((node.args, node.kwargs), lambda n: getattr(self.values[n], kind))

    def _from_undefined(self, node: Node) -> bool:
        return any(_is_undefined(self.values[each].eager) for each in node.all_input_nodes)

    def _rounded(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        unit = self._unit(value)
        return value * (1 + unit * (2 * torch.rand(value.shape, dtype=value.dtype) - 1))

    def _unit(self, value: torch.Tensor) -> float:
        return self.unit or _UNIT.get(str(value.dtype).removeprefix("torch."), 2.0**-24)

    def _compare(self, node: Node, seen: ObservedValue, segment: Any) -> None:
        values = self.values[node]
        if seen.value is None:
            return
        eager, forced, rounded = (
            _floats(v, node) for v in (values.eager, values.forced, values.rounded)
        )
        device = seen.value.to(torch.float64)
        local, odd = _distance(device, forced)
        effect, _ = _distance(rounded, forced)
        accumulated, _ = _distance(device, eager)
        largest = _largest(forced)
        unit = self._unit(seen.value) if seen.value.is_floating_point() else 0.0
        allowed = _EFFECTS * (effect or 0.0) + _LAST_PLACES * unit * largest
        inside, sources = segment
        if seen.node.step:
            steps = seen.node.step + self._unrounded_step(seen.node, sources)
            allowed = max(_STEPS * steps, effect or 0.0) + _LAST_PLACES * unit * largest
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


def _is_undefined(value: Any) -> bool:
    """Whether a value has NaN; infinities are what masks are made of."""
    return (
        isinstance(value, torch.Tensor) and value.is_floating_point() and bool(value.isnan().any())
    )


def _other_steps(quantized: torch.Tensor, node: Node) -> torch.Tensor:
    """Moves a share of quantized values to a neighbour, as a kernel's own rounding may."""
    low, high = int(node.args[3]), int(node.args[4])
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


def read_replay(request: ReplayRequest, tell: Callable[[str, float], None]) -> Replay:
    """Replays a program folder's graph with the outputs of a device."""
    tell("importing ExecuTorch", 0.0)
    add_user_folder(Path.cwd())
    pin_installed()
    run_user_files(request.spec)
    import executorch.exir  # noqa: F401 - registers the operators of quantized graphs

    if request.spec.generation:  # those of language models
        import etdeploy.export.worker.language.attention
        import etdeploy.export.worker.language.experts  # noqa: F401

    prepare(request.spec)
    folder = Path(request.folder)
    graph = ObservedGraph.load(folder / NODES_FILE)
    tell("reading the graph", 0.05)
    program = torch.export.load(folder / GRAPH_FILE)
    given = {**bound_constants(program), **_inputs(program, folder, request)}
    observed, missing = _observed(program, graph, request.outputs)
    unit = _SCHEME_UNIT.get(str(request.spec.quantization))
    if sum(node.size_bytes for node in graph.nodes) < _SMALL_BYTES:
        torch.set_num_threads(1)  # small operators lose more by waiting for threads
    replayed = Replayed(program, given, observed, len(graph.outputs) - graph.added, unit)
    replayed.run(lambda text, share: tell(text, 0.1 + 0.9 * share))
    undefined = replayed.undefined
    names = {node.name: node for node in (*graph.nodes, *filter(None, graph.outputs))}
    return Replay(
        errors=tuple(replayed.errors),
        random=tuple(_named(request.spec, node, names) for node in replayed.random),
        undefined=_named(request.spec, undefined, names) if undefined else None,
        undefined_inputs=tuple(_undefined_inputs(folder, request)),
        missing=tuple(missing),
    )


def _named(spec: ExportSpec, node: Node, names: Mapping[str, ModelNode]) -> ModelNode:
    """A node as a report names it; one that gives several tensors has no shape."""
    file, line, code = stack_line(node.meta.get("stack_trace"))
    return names.get(node.name) or ModelNode(
        name=node.name,
        operator=str(node.target),
        module=path_in_model(spec, node),
        file=file,
        line=line,
        code=code,
    )


def _undefined_inputs(folder: Path, request: ReplayRequest) -> Iterator[str]:
    for each in request.inputs:
        if isinstance(each, TensorFile) and _is_undefined(_tensor(folder, each)):
            yield each.name


def _inputs(
    program: torch.export.ExportedProgram, folder: Path, request: ReplayRequest
) -> dict[str, Any]:
    names = [str(name) for name in program.graph_signature.user_inputs]
    placeholders = [n for n in program.graph.nodes if n.op == "placeholder"]
    own = [n.name for n in placeholders if n.name not in bound_constants(program)]
    if len(own) == len(request.inputs):
        names = own
    values = [
        each.value if isinstance(each, PlainValue) else _tensor(folder, each)
        for each in request.inputs
    ]
    return dict(zip(names, values, strict=False))


def _tensor(folder: Path, file: TensorFile) -> torch.Tensor:
    """A tensor of raw bytes; an absolute path is not in the folder."""
    data = bytearray((folder / file.path).read_bytes())
    dtype: torch.dtype = getattr(torch, file.dtype)
    if len(data) != prod(file.shape) * dtype.itemsize:
        raise fail("outputs", f"{Path(file.path).name} has {len(data)} bytes, for {file.dtype} "
                   f"{list(file.shape)}")  # fmt: skip
    if not data:
        return torch.empty(file.shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).reshape(file.shape)


def _observed(
    program: torch.export.ExportedProgram,
    graph: ObservedGraph,
    outputs: Sequence[TensorFile | None],
) -> tuple[dict[Node, ObservedValue], list[str]]:
    nodes = {node.name: node for node in program.graph.nodes}
    found: dict[Node, ObservedValue] = {}
    missing = []
    for place, name in enumerate(program.graph_signature.user_outputs):
        described = graph.outputs[place]
        if described is None:
            continue
        at = nodes[str(name)]
        source = at.args[0] if is_dequantization(at) else None
        at = source if isinstance(source, Node) and is_quantization(source) else at
        file = outputs[place] if place < len(outputs) else None
        expected = at.meta["val"]
        if file is None or tuple(file.shape) != tuple(expected.shape):
            missing.append(described.name)
            continue
        found.setdefault(at, ObservedValue(described, at, _tensor(Path(), file)))
    return found, missing


def _tell(text: str, share: float) -> None:
    os.write(1, f"{progress_line(text, share)}\n".encode())


def answer(request_file: str, answer_file: str) -> int:
    """Writes the answer to a request; a failure is described in it."""
    try:
        result = read_replay(ReplayRequest.load(Path(request_file)), _tell)
        result.save(Path(answer_file))
    except Exception as error:
        traceback.print_exc()
        Replay(failure=failure_of(error)).save(Path(answer_file))
        return 1
    return 0
