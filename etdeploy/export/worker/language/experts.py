"""The experts of a language model's layers, of which a router chooses a few for each token.

A program's operators are fixed, but ExecuTorch's runtime has conditional jumps. With XNNPACK, each
expert is a separate partition that runs only if the router chose it: marker operators prevent the
partitioner from fusing experts, and after lowering, `conditional_experts` wraps the nodes between
two markers in a `cond`. A `cond` in the traced graph does not work: it passes the weights to its
branches as inputs, and a delegate packs only constants.

With other backends, and for models with very many experts, the experts of a layer are joined into
larger linear layers, and each token computes all of them.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.integrations.moe import ExpertsInterface, _default_apply_gate

from etdeploy.export.worker.backends.base import patched
from etdeploy.export.worker.failures import UnsupportedModelError
from etdeploy.export.worker.operators import register_operator

JOINED, SEPARATE, ROUTED = "etdeploy_joined", "etdeploy_separate", "etdeploy_routed"
# In all layers together: each adds about a second to the export, and a few microseconds to a token.
_MOST_SEPARATE = 512

# Markers, which `conditional_experts` removes: the input of an expert, which depends on the sum of
# those before; an expert's column of the weights; and the sum of all.
INPUT = register_operator(
    "etdeploy::expert_input",
    "Tensor x, Tensor sum, Tensor chosen",
    lambda x, *_: x.clone(),
    lambda x, *_: x.new_empty(x.shape),
)
WEIGHT = register_operator(
    "etdeploy::expert_weight",
    "Tensor weights, Tensor x, int expert",
    lambda weights, _, expert: weights[:, expert : expert + 1].clone(),
    lambda weights, *_: weights.new_empty((weights.shape[0], 1)),
)
SUM = register_operator(
    "etdeploy::expert_sum", "Tensor sum", lambda x: x.clone(), lambda x: x.new_empty(x.shape)
)


def register_experts() -> None:
    """Registers all implementations with transformers, by their names."""
    ExpertsInterface.register(JOINED, joined_experts)
    ExpertsInterface.register(SEPARATE, separate_experts)
    ExpertsInterface.register(ROUTED, routed_experts)


def split_experts(model: Any, *, conditional: bool) -> None:
    """Replaces the weights of a model's experts by linear layers, in place.

    Args:
        model: Of transformers.
        conditional: Whether the backend can run an expert on a condition.
    """
    every = (m for m in model.modules() if hasattr(m, "has_post_expert_norm"))
    found = [each for each in every if not hasattr(each, "expert_count")]
    for each in found:
        if each.has_post_expert_norm:
            raise UnsupportedModelError(
                "its experts' outputs are normalized before they are weighted"
            )
    total = sum(_rows(each, "down_proj").shape[0] for each in found)
    separate = conditional and total <= _MOST_SEPARATE
    for each in found:
        each.expert_count = _rows(each, "down_proj").shape[0]
        if separate:
            for index in range(each.expert_count):
                each.add_module(str(index), Expert(each, index))
        else:
            each.joined = Joined(each)
        for name in ("gate_up_proj", "up_proj", "down_proj"):
            for own in (name, f"{name}_bias"):
                if own in each._parameters:
                    delattr(each, own)
    if found:
        model.set_experts_implementation(SEPARATE if separate else JOINED)


def cost_note(model: Any) -> str | None:
    """A sentence about which experts are computed; None where a model has none."""
    found = next((m for m in model.modules() if hasattr(m, "expert_count")), None)
    if found is None:
        return None
    chosen = getattr(model.config.get_text_config(decoder=True), "num_experts_per_tok", None)
    if not hasattr(found, "joined"):
        of_them = f"the {chosen}" if chosen else "those"
        return (
            f"Of the {found.expert_count} experts of a layer, a token computes {of_them} that its "
            "router chooses, and a part of a prompt those of all its tokens."
        )
    of_them = f", {chosen} of which its router chooses" if chosen else ""
    return f"Each token computes all {found.expert_count} experts of a layer{of_them}."


class Expert(torch.nn.Module):  # type: ignore[misc]
    """An expert, whose layers are named as in most checkpoints."""

    def __init__(self, experts: Any, index: int) -> None:
        super().__init__()
        first = "gate_up_proj" if experts.has_gate else "up_proj"
        rows, bias = _rows(experts, first)[index], _bias(experts, first)
        parts = {first: slice(None)}
        if _has_halves(experts):
            half = rows.shape[0] // 2
            parts = {"gate_proj": slice(half), "up_proj": slice(half, None)}
        for name, part in parts.items():
            own = None if bias is None else bias[index, part].clone()
            setattr(self, name, _linear(_contiguous_copy(rows[part]), own))
        bias, last = _bias(experts, "down_proj"), _rows(experts, "down_proj")[index]
        own = None if bias is None else bias[index].clone()
        self.down_proj = _linear(_contiguous_copy(last), own)

    def forward(self, x: torch.Tensor, experts: Any) -> torch.Tensor:
        """The output for all tokens, of shape (S, hidden)."""
        if hasattr(self, "gate_proj"):
            inner = experts.act_fn(self.gate_proj(x)) * self.up_proj(x)
        elif experts.has_gate:
            inner = experts._apply_gate(self.gate_up_proj(x))
        else:
            inner = experts.act_fn(self.up_proj(x))
        out: torch.Tensor = self.down_proj(inner)
        return out


def separate_experts(
    self: Any,
    hidden_states: torch.Tensor,
    top_k_index: torch.Tensor,
    top_k_weights: torch.Tensor,
) -> torch.Tensor:
    """The output of a layer of experts, one after the other between markers."""
    weights = _by_expert(self.expert_count, top_k_index, top_k_weights)
    chosen = (weights != 0).any(0)
    total = torch.zeros_like(hidden_states)
    for index in range(self.expert_count):
        x = INPUT(hidden_states, total, chosen[index])
        weighted = getattr(self, str(index))(x, self) * WEIGHT(weights, x, index)
        total = total + weighted
    out: torch.Tensor = SUM(total)
    return out


def routed_experts(
    self: Any,
    hidden_states: torch.Tensor,
    top_k_index: torch.Tensor,
    top_k_weights: torch.Tensor,
) -> torch.Tensor:
    """The same, where an expert is given the tokens that the router chose it for, and no others."""
    weights = _by_expert(self.expert_count, top_k_index, top_k_weights)
    total = torch.zeros_like(hidden_states)
    for index in range(self.expert_count):
        [tokens] = weights[:, index].nonzero(as_tuple=True)
        if len(tokens):
            given = getattr(self, str(index))(hidden_states[tokens], self)
            total[tokens] += given * weights[tokens, index : index + 1]
    return total


@contextmanager
def experts_routed(model: Any) -> Iterator[None]:
    """While the block runs, separate experts are given the tokens that they are chosen for."""
    separate = any(hasattr(m, "expert_count") and not hasattr(m, "joined") for m in model.modules())
    if not separate:
        yield
        return
    model.set_experts_implementation(ROUTED)
    try:
        yield
    finally:
        model.set_experts_implementation(SEPARATE)


class Joined(torch.nn.Module):  # type: ignore[misc]
    """The weights of a layer's experts, in linear layers.

    Attributes:
        into: One layer, or those of the gates and of the values; outputs expert by expert.
        out: From all experts' inner values.
        bias: Of shape (experts, hidden), or None.
    """

    def __init__(self, experts: Any) -> None:
        super().__init__()
        first = _rows(experts, "gate_up_proj" if experts.has_gate else "up_proj")
        last = _rows(experts, "down_proj")
        _, hidden, inner = last.shape
        bias = _bias(experts, "gate_up_proj" if experts.has_gate else "up_proj")
        size = inner if _has_halves(experts) else first.shape[1]
        self.into = torch.nn.ModuleList(
            _linear(
                first[:, start : start + size].reshape(-1, hidden),
                None if bias is None else bias[:, start : start + size].reshape(-1),
            )
            for start in range(0, first.shape[1], size)
        )
        self.out = _linear(last.transpose(0, 1).reshape(hidden, -1), None)
        bias = _bias(experts, "down_proj")
        self.bias = None if bias is None else torch.nn.Parameter(bias, requires_grad=False)


def joined_experts(
    self: Any,
    hidden_states: torch.Tensor,
    top_k_index: torch.Tensor,
    top_k_weights: torch.Tensor,
) -> torch.Tensor:
    """The output of a layer of experts: all of them, those that are not chosen times zero."""
    joined: Joined = self.joined
    weights = _by_expert(self.expert_count, top_k_index, top_k_weights)
    values = [layer(hidden_states) for layer in joined.into]
    if len(values) > 1:
        inner = self.act_fn(values[0]) * values[1]
    else:
        each = values[0].reshape(-1, self.expert_count, values[0].shape[-1] // self.expert_count)
        inner = self._apply_gate(each) if self.has_gate else self.act_fn(each)
    inner = inner.reshape(-1, self.expert_count, joined.out.in_features // self.expert_count)
    weighted = inner * weights.unsqueeze(-1)
    out: torch.Tensor = joined.out(weighted.reshape(-1, joined.out.in_features))
    return out if joined.bias is None else out + weights @ joined.bias


def _by_expert(experts: int, index: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The weight of each expert, of shape (S, experts); 0 for those that are not chosen."""
    none = torch.zeros(index.shape[0], experts)
    return none.scatter(1, index, weights.to(none.dtype))


def _has_halves(experts: Any) -> bool:
    """Whether the first product is that of the gates above that of the values."""
    return experts.has_gate and type(experts)._apply_gate is _default_apply_gate


def _rows(experts: Any, name: str) -> torch.Tensor:
    """Weights of shape (experts, outputs, inputs)."""
    weight: torch.Tensor = getattr(experts, name).detach()
    return weight.transpose(1, 2) if experts.is_transposed else weight


def _bias(experts: Any, name: str) -> torch.Tensor | None:
    """Of shape (experts, outputs)."""
    return getattr(experts, f"{name}_bias").detach() if experts.has_bias else None


def _contiguous_copy(weight: torch.Tensor) -> torch.Tensor:
    """A copy, so that the weights of all experts of the layer can be freed."""
    return weight.clone(memory_format=torch.contiguous_format)


def _linear(weight: torch.Tensor, bias: torch.Tensor | None) -> torch.nn.Linear:
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = torch.nn.Parameter(bias, requires_grad=False)
    return layer


@contextmanager
def conditional_experts(programs: Iterable[torch.export.ExportedProgram]) -> Iterator[None]:
    """Makes each expert of lowered programs run only if it is chosen, in place.

    ExecuTorch must emit the programs in the block.
    """
    if not sum([_skip_experts(program.graph_module) for program in programs]):
        yield
        return
    # torch.fx considers the delegates in branches unused, and would delete them.
    with patched(torch.fx.GraphModule, delete_all_unused_submodules=lambda _: None):
        yield


def _skip_experts(module: torch.fx.GraphModule) -> int:
    """Wraps each expert in a `cond`; returns the number of experts."""
    markers = [node for node in module.graph.nodes if _calls(node, INPUT)]
    for number, marker in enumerate(markers):
        moved = _expert_nodes(marker)
        results = [node for node in moved if any(user not in moved for user in node.users)]
        if len(results) == 1:
            _make_conditional(module, marker, moved, results[0], number)
        else:  # its partition also computes something that others use
            _make_unconditional(marker, moved)
    for node in list(module.graph.nodes):
        if _calls(node, SUM):
            node.replace_all_uses_with(node.args[0])
            module.graph.erase_node(node)
        elif node.op == "get_attr" and not node.users:
            module.graph.erase_node(node)
    module.graph.lint()
    module.recompile()
    return len(markers)


def _calls(node: torch.fx.Node, overload: Any) -> bool:
    return node.op == "call_function" and getattr(node.target, "_op", node.target) is overload


def _make_conditional(
    module: torch.fx.GraphModule,
    marker: torch.fx.Node,
    moved: list[torch.fx.Node],
    result: torch.fx.Node,
    number: int,
) -> None:
    """Moves an expert's nodes into a branch."""
    graph = module.graph
    x, before, chosen = marker.args
    given = (each for node in moved for each in node.all_input_nodes if each not in moved)
    others = (each for each in given if each.op != "get_attr" and each is not marker)
    operands = tuple(dict.fromkeys((before, x, *others)))
    branches = {
        f"expert_{number}": _chosen(module, moved, result, operands, marker),
        f"no_expert_{number}": _skipped(before, operands),
    }
    for name, branch in branches.items():
        module.add_submodule(name, branch)
    with graph.inserting_before(result):
        attributes = [graph.get_attr(name) for name in branches]
        cond = graph.call_function(torch.ops.higher_order.cond, (chosen, *attributes, operands))
        cond.meta["val"] = (result.meta["val"],)
        first = graph.call_function(operator.getitem, (cond, 0))
        first.meta["val"] = result.meta["val"]
        # The memory planner gives all branches the same memory.
        copy = _copied(graph, first)
    result.replace_all_uses_with(copy)
    for node in reversed(moved):
        graph.erase_node(node)
    graph.erase_node(marker)


def _make_unconditional(marker: torch.fx.Node, moved: list[torch.fx.Node]) -> None:
    graph = marker.graph
    for node in moved:
        if _calls(node, WEIGHT):
            with graph.inserting_before(node):
                column = _column(graph, node.args[0], node)
            node.replace_all_uses_with(column)
            graph.erase_node(node)
    marker.replace_all_uses_with(marker.args[0])
    graph.erase_node(marker)


def _expert_nodes(marker: torch.fx.Node) -> list[torch.fx.Node]:
    """The nodes that depend on an expert's input and not on the next one's, in graph order."""
    own, later = {marker: None}, set[torch.fx.Node]()
    for node in marker.graph.nodes:
        if not later.isdisjoint(node.all_input_nodes):
            later.add(node)
        elif not own.keys().isdisjoint(node.all_input_nodes):
            if _calls(node, INPUT) or _calls(node, SUM):
                later.add(node)
            else:
                own[node] = None
    del own[marker]
    return list(own)


def _chosen(
    module: torch.fx.GraphModule,
    moved: list[torch.fx.Node],
    result: torch.fx.Node,
    operands: tuple[torch.fx.Node, ...],
    marker: torch.fx.Node,
) -> torch.fx.GraphModule:
    """The branch of an expert that is chosen."""
    graph, own = torch.fx.Graph(), torch.nn.Module()
    known = dict(_placeholders(graph, operands))
    known[marker] = known[marker.args[0]]
    for node in moved:
        for attribute in node.all_input_nodes:
            if attribute.op == "get_attr":
                setattr(own, attribute.target, getattr(module, attribute.target))
                known[attribute] = graph.node_copy(attribute)
        if _calls(node, WEIGHT):
            known[node] = _column(graph, known[node.args[0]], node)
        else:
            known[node] = graph.node_copy(node, known.__getitem__)
    graph.output((known[result],))
    return torch.fx.GraphModule(own, graph)


def _skipped(before: torch.fx.Node, operands: tuple[torch.fx.Node, ...]) -> torch.fx.GraphModule:
    """The branch of one that is not: the sum stays as it is."""
    graph = torch.fx.Graph()
    known = dict(_placeholders(graph, operands))
    graph.output((_copied(graph, known[before]),))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def _placeholders(
    graph: torch.fx.Graph, operands: tuple[torch.fx.Node, ...]
) -> Iterator[tuple[torch.fx.Node, torch.fx.Node]]:
    for index, operand in enumerate(operands):
        own = graph.placeholder(f"operand_{index}")
        own.meta["val"] = operand.meta["val"]
        yield operand, own


def _copied(graph: torch.fx.Graph, tensor: torch.fx.Node) -> torch.fx.Node:
    from executorch.exir.dialects._ops import ops

    order = list(range(tensor.meta["val"].dim()))
    copy = graph.call_function(
        ops.edge.dim_order_ops._clone_dim_order.default, (tensor,), {"dim_order": order}
    )
    copy.meta["val"] = tensor.meta["val"]
    return copy


def _column(graph: torch.fx.Graph, weights: torch.fx.Node, marker: torch.fx.Node) -> torch.fx.Node:
    """The expert's own weights, of shape (S, 1)."""
    from executorch.exir.dialects._ops import ops

    expert = marker.args[2]
    column = graph.call_function(ops.edge.aten.slice_copy.Tensor, (weights, 1, expert, expert + 1))
    column.meta["val"] = marker.meta["val"]
    return column
