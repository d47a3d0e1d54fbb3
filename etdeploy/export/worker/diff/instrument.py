"""A program that returns values of its graph's nodes beside its outputs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.export.graph_signature import InputKind, OutputKind, OutputSpec, TensorArgument
from torch.fx import Node
from torch.utils import _pytree as pytree

from etdeploy.export.diff import GRAPH_FILE, NODES_FILE, ModelNode, ObservedGraph
from etdeploy.export.spec import ExportSpec, NodeObservation
from etdeploy.export.worker.backends.base import Traced
from etdeploy.export.worker.failures import fail
from etdeploy.export.worker.lowering.overrides import path_in_model
from etdeploy.export.worker.rewrites.base import REWRITE
from etdeploy.export.worker.rewrites.constants import depends_on_inputs
from etdeploy.export.worker.rewrites.order import copied_program
from etdeploy.export.worker.tracing.trace import stack_line

_QUANTIZE = "quantized_decomposed.quantize_per_tensor.default"
_DEQUANTIZE = "quantized_decomposed.dequantize_per_tensor.default"
_OF_QUANTIZATION = ("quantize_", "dequantize_", "choose_qparams")
# Move values and compute none: what they give shows in the next node that computes.
_MOVING = frozenset({
    "view", "reshape", "_unsafe_view", "permute", "transpose", "t", "unsqueeze", "squeeze",
    "expand", "slice", "select", "alias", "detach", "clone", "_to_copy", "contiguous", "lift_fresh",
    "lift_fresh_copy", "flatten", "unflatten", "split", "split_with_sizes", "chunk", "unbind",
})  # fmt: skip
# Operators between a quantized one and the quantization of its result, which kernels compute as
# one: an activation, a batch norm, an addition.
_FUSED = 3


@dataclass(frozen=True)
class Observable:
    """A value that a program can return.

    Attributes:
        node: The operator that computes it.
        quantization: The node that quantizes it, where only the quantized value is in memory.
    """

    node: Node
    quantization: Node | None = None


@dataclass(frozen=True)
class WrittenGraph:
    """The graph of an instrumented program as it was before lowering, and what is known of it."""

    program: torch.export.ExportedProgram
    graph: ObservedGraph

    def write(self, folder: Path) -> None:
        """Writes both into the program folder."""
        torch.export.save(self.program, folder / GRAPH_FILE)
        self.graph.save(folder / NODES_FILE)


def observables(program: torch.export.ExportedProgram) -> list[Observable]:
    """The values of floats that are computed from the inputs, in the graph's order."""
    fed = depends_on_inputs(program)
    found = []
    for node in program.graph.nodes:
        if node not in fed or not is_float(node) or operator_of(node) in _MOVING:
            continue
        if node.op != "call_function" or is_of_quantization(node):
            continue
        quantizations = [user for user in node.users if is_quantization(user)]
        if quantizations and len(quantizations) == len(node.users):
            found.append(Observable(node, quantizations[0]))
        elif not (_is_quantized(node) and _is_fused(node)):
            found.append(Observable(node))
    return found


def is_of_quantization(node: Node) -> bool:
    """Whether a node quantizes or dequantizes, or is a scale or a zero point of that."""
    named = operator_of(node)
    source = node.args[0] if named == "getitem" else node
    return isinstance(source, Node) and operator_of(source).startswith(_OF_QUANTIZATION)


def operator_of(node: Node) -> str:
    """The name of an operator without namespace and overload: `linear`."""
    return getattr(node.target, "__name__", str(node.target)).partition(".")[0]


def is_float(node: Node) -> bool:
    """Whether a node's value is one tensor of floats."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def is_quantization(node: Node) -> bool:
    """Whether a node quantizes with a scale that is known at export."""
    return str(node.target) == _QUANTIZE and isinstance(node.args[1], float)


def is_dequantization(node: object) -> bool:
    """Whether a node makes floats of quantized values."""
    return isinstance(node, Node) and operator_of(node).startswith("dequantize_")


def _is_quantized(node: Node) -> bool:
    return any(is_dequantization(each) for each in node.all_input_nodes)


def _is_fused(node: Node, hops: int = _FUSED) -> bool:
    """Whether the value goes only into what is quantized next."""
    if len(node.users) != 1:
        return False
    [user] = node.users
    return is_quantization(user) or (hops > 0 and _is_fused(user, hops - 1))


def located(spec: ExportSpec, node: Node) -> ModelNode:
    """A node as a report names it, without its value: it may give several tensors."""
    file, line, code = stack_line(node.meta.get("stack_trace"))
    return ModelNode(
        name=node.name,
        operator=str(node.target),
        module=path_in_model(spec, node),
        file=file,
        line=line,
        code=code,
    )


def described(spec: ExportSpec, each: Observable) -> ModelNode:
    """A value as a report names it."""
    value = each.node.meta["val"]
    of_value = {
        "dtype": str(value.dtype).removeprefix("torch."),
        "shape": tuple(_largest(size) for size in value.shape),
        "size_bytes": value.element_size() * _count(value),
        "step": step_of(each.quantization) if each.quantization else None,
        "rewrite": each.node.meta.get(REWRITE),
    }
    return located(spec, each.node).model_copy(update=of_value)


def step_of(quantization: Node) -> float:
    """The scale of a quantization."""
    return float(quantization.args[1])


def _largest(size: Any) -> int:
    return int(size.node.hint) if isinstance(size, torch.SymInt) else int(size)


def _count(value: torch.Tensor) -> int:
    count = 1
    for size in value.shape:
        count *= _largest(size)
    return count


def chosen(
    found: Sequence[tuple[Observable, ModelNode]], observation: NodeObservation
) -> list[Observable]:
    """The values to return: those that are named, else as many as fit, evenly spaced."""
    if observation.nodes is not None:
        return [each for each, node in found if node.name in set(observation.nodes)]
    for stride in range(1, len(found) + 1):
        picked = found[stride - 1 :: stride]
        size_bytes = sum(node.size_bytes for _, node in picked)
        if len(picked) <= observation.most and size_bytes <= observation.limit_bytes:
            return [each for each, _ in picked]
    return []


def instrumented(spec: ExportSpec, method: str, traced: Traced) -> tuple[Traced, ObservedGraph]:
    """A method that returns the values that the spec observes, and what is known of its graph."""
    observation = spec.observation
    if observation is None:
        raise fail("lowering", "the spec observes nothing")
    program = functional(traced)
    found = [(each, described(spec, each)) for each in observables(program)]
    own = [described(spec, each) if each else None for each in results(program)]
    known = {node.name for node in own if node}
    picked = [each for each in chosen(found, observation) if each.node.name not in known]
    made = with_outputs(program, picked)
    names = {each.node.name: node for each, node in found}
    graph = ObservedGraph(
        method=method,
        nodes=tuple(names.values()),
        outputs=(*own, *(names[each.node.name] for each in picked)),
        added=len(picked),
    )
    return replace(traced, program=made, module=made.module(check_guards=False)), graph


def functional(traced: Traced) -> torch.export.ExportedProgram:
    """The graph that is lowered, without operators that change a tensor in place."""
    if traced.original is not None and traced.original is not traced.program:
        return copied_program(traced.program)
    return traced.program.run_decompositions({})


def results(program: torch.export.ExportedProgram) -> list[Observable | None]:
    """What each of the outputs is the value of; None for one that is not a computed tensor."""
    nodes = {node.name: node for node in program.graph.nodes}
    fed = depends_on_inputs(program)
    return [_result(nodes.get(str(name)), fed) for name in program.graph_signature.user_outputs]


def _result(node: Node | None, fed: Collection[Node]) -> Observable | None:
    if node is None or node.op != "call_function" or node not in fed:
        return None
    if not isinstance(node.meta.get("val"), torch.Tensor):
        return None
    source = node.args[0] if is_dequantization(node) else None
    if isinstance(source, Node) and is_quantization(source):
        computed = source.args[0]
        return Observable(computed, source) if isinstance(computed, Node) else None
    return Observable(node)


def with_outputs(
    program: torch.export.ExportedProgram, picked: Iterable[Observable]
) -> torch.export.ExportedProgram:
    """A copy of a program that returns these values after its outputs."""
    made = copied_program(program)
    nodes = {node.name: node for node in made.graph.nodes}
    added = [_value_node(made, nodes, each) for each in picked]
    output = made.graph.output_node()
    output.args = ((*output.args[0], *added),)
    made.graph_signature.output_specs.extend(
        OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(name=node.name), None) for node in added
    )
    count = len(made.graph_signature.user_outputs)
    _, structure = pytree.tree_flatten(tuple(range(count)))
    entry = made._module_call_graph[0]
    signature = replace(entry.signature, out_spec=structure)
    made._module_call_graph = [replace(entry, signature=signature), *made._module_call_graph[1:]]
    made.graph_module.graph._codegen = torch.fx.graph.CodeGen()
    made.graph_module.recompile()
    return made


def _value_node(
    program: torch.export.ExportedProgram, nodes: Mapping[str, Node], each: Observable
) -> Node:
    """The node with the value; a new one where only the quantized value is in memory."""
    if each.quantization is None:
        return nodes[each.node.name]
    quantization = nodes[each.quantization.name]
    dequantize = torch.ops.quantized_decomposed.dequantize_per_tensor.default
    with program.graph.inserting_after(quantization):
        made = program.graph.call_function(dequantize, (quantization, *quantization.args[1:]))
    own = nodes[each.node.name]
    kept = ("stack_trace", "nn_module_stack", "source_fn_stack", "from_node", "torch_fn")
    made.meta = {key: own.meta[key] for key in kept if key in own.meta}
    made.meta["val"] = torch.empty_like(own.meta["val"])
    return made


def bound_constants(
    program: torch.export.ExportedProgram,
) -> dict[str, Any]:
    """The values of the placeholders that are not inputs, by their names."""
    found = {}
    for spec in program.graph_signature.input_specs:
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            name = str(spec.target)
            stored = program.state_dict if name in program.state_dict else program.constants
            found[spec.arg.name] = stored[name]
        elif spec.kind is InputKind.CUSTOM_OBJ:
            found[spec.arg.name] = program.constants[str(spec.target)]
    return found
