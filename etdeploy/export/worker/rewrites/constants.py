"""Computes once what does not depend on the inputs: masks, tables of positions, weights' norms.

ExecuTorch computes them at each inference. Only what is small is kept, or takes the place of other
constants: a program must not grow by a mask that a few operators make.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.export.graph_signature import InputKind

from etdeploy.export.worker.rewrites.base import Program, RewriteLog, constant

_aten = torch.ops.aten
_MOST_BYTES = 4 << 20
_MOST_BYTES_IN_ALL = 64 << 20
# Their inputs tell what they give, and a backend reads them with what they are applied to.
_KEPT_NAMESPACES = ("quantized_decomposed", "torchao")
_SCALARS_BYTES = 256
# What they give depends on the shape of their input alone.
_OF_A_SHAPE = {
    _aten.new_zeros.default,
    _aten.new_ones.default,
    _aten.new_full.default,
    _aten.zeros_like.default,
    _aten.ones_like.default,
    _aten.full_like.default,
}


def constant_of(program: Program, node: Any) -> torch.Tensor | None:
    """The tensor that a node always gives, if it is one of the program's own."""
    return _given(program, node) if node.op == "placeholder" else None


def folded_scalars(program: Program, log: RewriteLog) -> None:
    """The same in ExecuTorch's own graph, which converts each number to the type of a tensor."""
    folded_constants(program, log, _SCALARS_BYTES)


def folded_constants(program: Program, log: RewriteLog, most_bytes: int = _MOST_BYTES) -> None:
    """Replaces operators whose inputs are all constant by what they give; in place."""
    known: dict[torch.fx.Node, torch.Tensor] = {}
    for node in program.graph.nodes:
        value = _given(program, node) if node.op == "placeholder" else _computed(node, known)
        if value is not None:
            known[node] = value
    added_bytes = 0
    for node in list(program.graph.nodes):
        value = known.get(node)
        if value is None or node.op == "placeholder" or not _is_worth_it(node, known):
            continue
        more_bytes = value.nbytes
        if most_bytes < more_bytes and most_bytes == _MOST_BYTES:
            more_bytes -= _replaced_bytes(node, known)
        if more_bytes > most_bytes or added_bytes + more_bytes > _MOST_BYTES_IN_ALL:
            if more_bytes > _MOST_BYTES:
                log.skipped(node, f"its result is large ({value.nbytes >> 20} MiB)")
            continue
        added_bytes += max(0, more_bytes)
        _replace(program, node, value)
    before = len(program.graph.nodes)
    program.graph.eliminate_dead_code()
    for _ in range(before - len(program.graph.nodes)):
        log.applied()
    program.graph_module.recompile()


def depends_on_inputs(program: Program) -> set[torch.fx.Node]:
    """The nodes whose values are not constants of the program."""
    signature = program.graph_signature
    given = {*signature.user_inputs, *_mutated_buffers(program)}
    fed: set[torch.fx.Node] = set()
    for node in program.graph.nodes:
        if node.name in given or any(each in fed for each in node.all_input_nodes):
            fed.add(node)
    return fed


def _mutated_buffers(program: Program) -> Iterator[str]:
    signature = program.graph_signature
    written = set(signature.buffers_to_mutate.values())
    yield from (p for p, name in signature.inputs_to_buffers.items() if name in written)


def makes_constant(node: torch.fx.Node) -> bool:
    """Whether an operator takes no tensors and always gives the same, as `zeros` and `arange`."""
    return _is_plain(node) and not node.all_input_nodes


def _given(program: Program, node: torch.fx.Node) -> torch.Tensor | None:
    """A parameter, constant or buffer that no inference changes."""
    signature = program.graph_signature
    [spec] = [s for s in signature.input_specs if getattr(s.arg, "name", None) == node.name] or [
        None
    ]
    if spec is None or spec.kind in (InputKind.USER_INPUT, InputKind.TOKEN):
        return None
    if spec.target in signature.buffers_to_mutate.values():
        return None
    found = program.state_dict.get(str(spec.target), program.constants.get(str(spec.target)))
    return found if type(found) in (torch.Tensor, torch.nn.Parameter) else None


def _computed(node: torch.fx.Node, known: dict[torch.fx.Node, torch.Tensor]) -> torch.Tensor | None:
    value, inputs = node.meta.get("val"), node.all_input_nodes
    if node.target in _OF_A_SHAPE:
        known = {each: _empty(each) for each in inputs if _is_fixed(each)}
    if not _is_plain(node) or not all(each in known for each in inputs):
        return None
    if not isinstance(value, torch.Tensor) or not all(isinstance(n, int) for n in value.shape):
        return None
    if value.numel() * value.element_size() > _MOST_BYTES and not inputs:
        return None
    target: Any = node.target
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda each: known[each])
    with torch.no_grad():
        made = target(*args, **kwargs)
    return made if type(made) in (torch.Tensor, torch.nn.Parameter) else None


def _is_fixed(node: torch.fx.Node) -> bool:
    return all(isinstance(size, int) for size in node.meta["val"].shape)


def _empty(node: torch.fx.Node) -> torch.Tensor:
    value = node.meta["val"]
    return torch.empty(value.shape, dtype=value.dtype)


def _is_plain(node: torch.fx.Node) -> bool:
    """Whether an operator always gives the same, and is none of quantization."""
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None or node.is_impure():
        return False
    operator = getattr(node.target, "_op", node.target)  # ExecuTorch's have PyTorch's inside
    tags = getattr(operator, "tags", ())
    namespace = schema.name.partition("::")[0]
    return namespace not in _KEPT_NAMESPACES and torch.Tag.nondeterministic_seeded not in tags


def _is_worth_it(node: torch.fx.Node, known: dict[torch.fx.Node, torch.Tensor]) -> bool:
    """Whether something that is not constant takes it, and it is more than another shape."""
    if all(user in known for user in node.users):
        return False
    target: Any = node.target
    # An expansion is a view for PyTorch, and a copy for ExecuTorch.
    is_view = target is not _aten.expand.default and any(
        each.alias_info is not None for each in target._schema.returns
    )
    return not (is_view and all(each.op == "placeholder" for each in node.all_input_nodes))


def _replaced_bytes(node: torch.fx.Node, known: dict[torch.fx.Node, torch.Tensor]) -> int:
    """What the program need not have any more: constants of which only this is made."""
    above, found = [node], set[torch.fx.Node]()
    while above:
        new = set(above.pop().all_input_nodes) - found
        found |= new
        above += new
    sources = (each for each in found if each.op == "placeholder")
    return sum(known[each].nbytes for each in sources if _serves_only(each, node, known))


def _serves_only(
    source: torch.fx.Node, node: torch.fx.Node, known: dict[torch.fx.Node, torch.Tensor]
) -> bool:
    below, seen = list(source.users), set[torch.fx.Node]()
    while below:
        user = below.pop()
        if user is node or user in seen:
            continue
        if user not in known or _is_worth_it(user, known):
            return False
        seen.add(user)
        below += user.users
    return True


def _replace(program: Program, node: torch.fx.Node, value: torch.Tensor) -> None:
    # ExecuTorch has no strides of 0, which an expanded tensor has.
    value = value.detach().contiguous().clone()
    mode: Any = node.meta["val"].fake_mode
    made = constant(program, f"p_etdeploy_folded_{node.name}", value, mode)
    outputs = [user for user in node.users if user.op == "output"]
    node.replace_all_uses_with(made, delete_user_cb=lambda user: user not in outputs)
    if not node.users:
        program.graph.erase_node(node)
