"""Complex numbers of a traced program, as pairs of real ones.

ExecuTorch has no complex tensors. Models that rotate queries and keys by complex factors, as
DeepSeek V2 does, need a few operators of them only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_arg

aten = torch.ops.aten
Pair = tuple[Node, Node]
Call = Callable[..., Node]
# Move or repeat values, and look at none: each part goes through them by itself.
_MOVING = frozenset({
    aten.unsqueeze.default, aten.squeeze.dim, aten.slice.Tensor, aten.select.int,
    aten.transpose.int, aten.permute.default, aten.expand.default, aten.clone.default,
    aten.alias.default, aten.detach.default,
})  # fmt: skip
# Of these, a copy to the same type changes nothing.
_COPYING = frozenset({
    aten.to.device, aten.to.dtype, aten.to.dtype_layout, aten._to_copy.default,
})  # fmt: skip
_CHECK = aten._assert_tensor_metadata.default


def real_numbers(program: torch.export.ExportedProgram) -> None:
    """Computes with pairs in place of complex numbers; in place.

    Nothing is changed where an operator is not known here: it is told when it is lowered.
    """
    nodes = [node for node in program.graph.nodes if _meets_complex(node)]
    if not nodes or not all(_is_known(node) for node in nodes):
        return
    pairs: dict[Node, Pair] = {}
    for node in nodes:
        with program.graph.inserting_before(node):
            _rewrite(node, pairs)
    for node in reversed(nodes):
        program.graph.erase_node(node)
    program.graph_module.recompile()


def _meets_complex(node: Node) -> bool:
    return any(_is_complex(each) for each in (node, *node.all_input_nodes))


def _is_complex(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_complex()


def _is_known(node: Node) -> bool:
    if node.target in _COPYING:
        return bool(node.meta["val"].dtype == node.all_input_nodes[0].meta["val"].dtype)
    if node.target in _HANDLERS:
        return not node.kwargs
    return node.target in _MOVING or node.target is _CHECK


def _rewrite(node: Node, pairs: dict[Node, Pair]) -> None:
    """Adds what takes the node's place: a pair, or a real value for those that use it."""

    def call(operator: Any, *args: Any, **kwargs: Any) -> Node:
        made = node.graph.call_function(operator, args, kwargs)
        made.meta = dict(node.meta)
        given = map_arg(args, lambda each: each.meta["val"])
        made.meta["val"] = operator(*given, **kwargs)
        return made

    parts = [pairs.get(each, each) if isinstance(each, Node) else each for each in node.args]
    if node.target is _CHECK:
        return
    if node.target in _COPYING:
        pairs[node] = parts[0]
    elif node.target in _MOVING:
        real, imaginary = (call(node.target, p, *node.args[1:], **node.kwargs) for p in parts[0])
        pairs[node] = (real, imaginary)
    else:
        made = _HANDLERS[node.target](call, *parts)
        if isinstance(made, Node):
            node.replace_all_uses_with(made)
        else:
            pairs[node] = made


def _polar(call: Call, length: Node, angle: Node) -> Pair:
    return (
        call(aten.mul.Tensor, length, call(aten.cos.default, angle)),
        call(aten.mul.Tensor, length, call(aten.sin.default, angle)),
    )


def _as_complex(call: Call, values: Node) -> Pair:
    return call(aten.select.int, values, -1, 0), call(aten.select.int, values, -1, 1)


def _as_real(call: Call, pair: Pair) -> Node:
    return call(aten.stack.default, list(pair), -1)


def _product(call: Call, a: Any, b: Any) -> Pair:
    mul = aten.mul.Tensor
    if not isinstance(a, tuple):
        a, b = b, a
    if not isinstance(b, tuple):
        return call(mul, a[0], b), call(mul, a[1], b)
    return (
        call(aten.sub.Tensor, call(mul, a[0], b[0]), call(mul, a[1], b[1])),
        call(aten.add.Tensor, call(mul, a[0], b[1]), call(mul, a[1], b[0])),
    )


_HANDLERS: dict[Any, Callable[..., Pair | Node]] = {
    aten.polar.default: _polar,
    aten.view_as_complex.default: _as_complex,
    aten.view_as_real.default: _as_real,
    aten.mul.Tensor: _product,
}
