"""Changes of shape as views, after ExecuTorch has made a graph of its own operators.

XNNPACK's partitioner refuses squeezes, and unsqueezes of all but the last dimension. A clone that
was to make a tensor contiguous copies one that already is: the operators of this graph give new
tensors.
"""

from __future__ import annotations

from typing import Any

import torch

from etdeploy.export.worker.rewrites.base import Program, Told
from etdeploy.export.worker.tracing.structure import fixed_size

_COPIES = ("clone", "_clone_dim_order", "alias_copy", "detach_copy", "lift_fresh_copy")
_VIEWS = ("view_copy", "squeeze_copy", "unsqueeze_copy")


def plain_views(program: Program, told: Told) -> None:
    """Makes every change of shape a view_copy, with -1 for its symbolic size; in place.

    Two symbolic sizes stay: one -1 cannot stand for both.
    """
    from executorch.exir.dialects._ops import ops

    view = ops.edge.aten.view_copy.default
    for node in list(program.graph.nodes):
        if _is_needless_clone(node):
            node.replace_all_uses_with(node.args[0])
            program.graph.erase_node(node)
            told.applied()
            continue
        sizes = _sizes(node)
        if sizes is None:
            continue
        if sizes.count(-1) > 1:
            told.left(node, "several of its sizes are dynamic")
            continue
        if node.target is view and list(node.args[1]) == sizes:
            continue
        node.target, node.args, node.kwargs = view, (node.args[0], sizes), {}
        told.applied()
    program.graph_module.recompile()


def _is_needless_clone(node: torch.fx.Node) -> bool:
    """Whether a clone is of a tensor that nothing else looks into, in the same order."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or schema.name.rpartition("::")[2] not in _COPIES:
        return False
    x: Any = node.args[0]
    same = x.meta["val"].dim_order() == node.meta["val"].dim_order()
    given = any(user.op == "output" for user in node.users)
    return bool(x.op == "call_function" and same and not given)


def _sizes(node: torch.fx.Node) -> list[int] | None:
    """The shape that a node gives, with -1 for what is symbolic; None for one that is no view."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or schema.name.removeprefix("aten::") not in _VIEWS:
        return None
    shape: Any = node.meta["val"].shape
    fixed = [fixed_size(size) for size in shape]
    return [-1 if size is None else size for size in fixed]
