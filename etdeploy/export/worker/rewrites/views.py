"""Changes of shape as views, after ExecuTorch has made a graph of its own operators.

XNNPACK's partitioner refuses squeezes, and unsqueezes of all but the last dimension. A clone that
was to make a tensor contiguous copies one that already is: the operators of this graph give new
tensors. An expansion copies what arithmetic expands by itself, a pad by nothing whatever it gets.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from etdeploy.export.worker.rewrites.base import Program, RewriteLog
from etdeploy.export.worker.tracing.structure import fixed_sizes

_COPIES = ("clone", "_clone_dim_order", "alias_copy", "detach_copy", "lift_fresh_copy")
_ARITHMETIC = ("add", "sub", "mul", "div")
_VIEWS = ("view_copy", "squeeze_copy", "unsqueeze_copy")


def plain_views(program: Program, log: RewriteLog) -> None:
    """Makes every change of shape a view_copy, with -1 for its symbolic size; in place.

    Two symbolic sizes stay: one -1 cannot stand for both.
    """
    from executorch.exir.dialects._ops import ops

    view = ops.edge.aten.view_copy.default
    for node in list(program.graph.nodes):
        if _is_needless(node):
            node.replace_all_uses_with(_copied(node))
            program.graph.erase_node(node)
            log.applied()
            continue
        sizes = _sizes(node)
        if sizes is None:
            continue
        if sizes.count(-1) > 1:
            log.skipped(node, "several of its sizes are dynamic")
            continue
        if node.target is view and list(node.args[1]) == sizes:
            continue
        node.target, node.args, node.kwargs = view, (node.args[0], sizes), {}
        log.applied()
    program.graph_module.recompile()


def _is_needless(node: torch.fx.Node) -> bool:
    """Whether all that take a node can take what it copies, which nothing else looks into."""
    x = _copied(node)
    if x is None or x.op != "call_function" or any(user.op == "output" for user in node.users):
        return False
    if _name(node) == "expand_copy":
        return _expands_itself(node)
    return bool(x.meta["val"].dim_order() == node.meta["val"].dim_order())


def _copied(node: torch.fx.Node) -> Any:
    """The node whose values alone another one gives; None if it does more."""
    name, x = _name(node), node.args[0] if node.args else None
    if name == "cat" and isinstance(x, list | tuple) and len(x) == 1:
        return x[0]
    if name == "constant_pad_nd" and not any(node.args[1]):
        return x
    return x if name in (*_COPIES, "expand_copy") else None


def _expands_itself(node: torch.fx.Node) -> bool:
    """Whether arithmetic on what is expanded gives the same."""
    x: Any = node.args[0]
    before, after = x.meta["val"].shape, node.meta["val"].shape
    if len(before) == len(after) and all(map(_is_same, before, after)):
        return True
    for user in node.users:
        others = [each for each in user.all_input_nodes if each is not node]
        if _name(user) not in _ARITHMETIC or len(others) != 1:
            return False
        shapes = [list(each.meta["val"].shape) for each in (x, others[0], user)]
        if any(None in fixed_sizes(shape) for shape in shapes):
            return False
        if list(torch.broadcast_shapes(*shapes[:2])) != shapes[2]:
            return False
    return True


def _is_same(one: int | torch.SymInt, other: int | torch.SymInt) -> bool:
    """For all sizes that the program takes; asking this does not narrow them."""
    return bool(statically_known_true(one == other))


def _name(node: torch.fx.Node) -> str:
    schema = getattr(node.target, "_schema", None)
    return "" if schema is None else str(schema.name).rpartition("::")[2]


def _sizes(node: torch.fx.Node) -> list[int] | None:
    """The shape that a node gives, with -1 for what is symbolic; None for one that is no view."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or schema.name.removeprefix("aten::") not in _VIEWS:
        return None
    shape: Any = node.meta["val"].shape
    fixed = fixed_sizes(shape)
    return [-1 if size is None else size for size in fixed]
