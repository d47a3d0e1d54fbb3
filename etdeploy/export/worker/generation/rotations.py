"""Makes the rotary embedding of queries and keys one operator of etdeploy's own.

In a delegate it is fourteen nodes for each layer, most of which take less than what the delegate
does around each. A program with etdeploy's attention leaves the delegate there anyway.
"""

from __future__ import annotations

from typing import Any

import torch

from etdeploy.export.worker.generation import kernel
from etdeploy.export.worker.tracing.structure import fixed_size

_ATEN = torch.ops.aten


def rotations_by_kernel(program: torch.export.ExportedProgram) -> None:
    """Replaces x cos + rotate_half(x) sin, in place, where the attention is a kernel, too.

    Args:
        program: As torch.export made it.
    """
    if not any(node.target is kernel.ATTENTION for node in program.graph.nodes):
        return
    for node in list(program.graph.nodes):
        if found := _rotation(node):
            _replace(node, *found)
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()


def _replace(node: torch.fx.Node, x: torch.fx.Node, *angles: torch.fx.Node) -> None:
    last, (user, *more) = node, node.users
    with node.graph.inserting_before(node):
        if not more and _of(user, _ATEN.squeeze.dim, 2) == (node, 0):
            # Keys lose their first dimension. After the rotation, that would be a node of the
            # delegate that comes before it.
            last, squeezed = user, node.graph.call_function(_ATEN.squeeze.dim, (x, 0))
            squeezed.meta = {**x.meta, "val": x.meta["val"].squeeze(0)}
            x = squeezed
        made = node.graph.call_function(kernel.ROTATE, (x, *angles))
    made.meta = dict(last.meta)  # of the same shape and type, from the same line
    last.replace_all_uses_with(made)
    for each in dict.fromkeys((last, node)):
        node.graph.erase_node(each)


def _rotation(node: torch.fx.Node) -> tuple[torch.fx.Node, ...] | None:
    """x, cos and sin; None for another sum."""
    terms = _of(node, _ATEN.add.Tensor, 2)
    if terms is None:
        return None
    straight, turned = (_of(term, _ATEN.mul.Tensor, 2) for term in terms)
    if straight is None or turned is None or not _swaps_halves(turned[0], straight[0]):
        return None
    x, cos, sin = straight[0], _of_heads(straight[1]), _of_heads(turned[1])
    if cos is None or sin is None or x.meta["val"].dtype != torch.float32:
        return None
    return x, cos, sin


def _of(node: Any, operator: Any, count: int) -> tuple[Any, ...] | None:
    """The arguments of a call; None where it calls another operator, or has more of them."""
    if not isinstance(node, torch.fx.Node) or node.target is not operator or node.kwargs:
        return None
    return node.args if len(node.args) == count else None


def _swaps_halves(node: Any, x: Any) -> bool:
    """Whether it is (-x2, x1) of x = (x1, x2), of shape (1, heads, S, d)."""
    joined = _of(node, _ATEN.cat.default, 2)
    if joined is None or len(joined[0]) != 2 or not isinstance(x, torch.fx.Node):
        return False
    shape = x.meta["val"].shape
    size = fixed_size(shape[-1])
    negated = _of(joined[0][0], _ATEN.neg.default, 1)
    if len(shape) != 4 or joined[1] % 4 != 3 or size is None or size % 2 or negated is None:
        return False
    return _is_part(negated[0], x, size // 2, size) and _is_part(joined[0][1], x, 0, size // 2)


def _is_part(node: Any, x: torch.fx.Node, start: int, end: int) -> bool:
    found = _of(node, _ATEN.slice.Tensor, 4)
    if found is None or found[0] is not x or found[1] % 4 != 3:
        return False
    return bool(found[2] == start and (found[3] == end or found[3] >= end == 2 * start))


def _of_heads(node: Any) -> torch.fx.Node | None:
    """What is the same for all heads, of shape (1, S, d); None where it is not."""
    found = _of(node, _ATEN.unsqueeze.default, 2)
    values: Any = found[0].meta["val"] if found else None
    if found is None or found[1] != 1 or values.dim() != 3 or values.shape[0] != 1:
        return None
    return found[0] if values.dtype == torch.float32 else None
