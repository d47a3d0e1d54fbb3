"""What is changed in the graphs of programs that generate text, before they are partitioned."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.passes.infra.pass_base import PassResult

from etdeploy.export.worker.tracing.structure import fixed_size

_VIEWS = ("view_copy", "squeeze_copy", "unsqueeze_copy")


def plain_views(graph: torch.fx.GraphModule) -> PassResult:
    """Makes every change of shape a view_copy, with -1 for its symbolic size.

    XNNPACK's partitioner refuses symbolic sizes, squeezes, and unsqueezes of all but the last
    dimension. Two symbolic sizes stay: one -1 cannot stand for both.
    """
    from executorch.exir.dialects._ops import ops

    view, changed = ops.edge.aten.view_copy.default, False
    for node in graph.graph.nodes:
        sizes = _sizes(node)
        if sizes is None or sizes.count(-1) > 1:
            continue
        node.target, node.args, node.kwargs = view, (node.args[0], sizes), {}
        changed = True
    graph.recompile()
    return PassResult(graph, changed)


def _sizes(node: torch.fx.Node) -> list[int] | None:
    """The shape that a node gives, with -1 for what is symbolic; None for one that is no view."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or schema.name.removeprefix("aten::") not in _VIEWS:
        return None
    shape: Any = node.meta["val"].shape
    fixed = [fixed_size(size) for size in shape]
    return [-1 if size is None else size for size in fixed]
