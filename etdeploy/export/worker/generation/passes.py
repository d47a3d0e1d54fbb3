"""What is changed in the graphs of programs that generate text, before they are partitioned."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx.passes.infra.pass_base import PassResult

from etdeploy.export.worker.tracing.structure import fixed_sizes

_VIEWS = ("view_copy", "squeeze_copy", "unsqueeze_copy")
# Of the GELU with tanh, doubled: 2 sqrt(2 / pi) (x + 0.044715 x^3), from arXiv:1606.08415.
_LINEAR, _CUBIC = 2 * math.sqrt(2 / math.pi), 0.044715


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
    fixed = fixed_sizes(shape)
    return [-1 if size is None else size for size in fixed]


def exact_activations(program: torch.export.ExportedProgram) -> None:
    """Writes out the GELU that is computed with tanh, as Gemma has it; in place.

    ExecuTorch 1.5.1 hands every GELU to XNNPACK without its `approximate` (operators/op_gelu.py),
    which computes the other one: logits then differ by 1e-3.
    """
    aten = torch.ops.aten
    for node in list(program.graph.nodes):
        if node.target is not aten.gelu.default or node.kwargs.get("approximate") != "tanh":
            continue
        with program.graph.inserting_before(node):
            x = node.args[0]
            # (1 + tanh(z)) / 2 is sigmoid(2 z).
            square = _like(node, aten.mul.Tensor, x, x)
            weighted = _like(node, aten.mul.Tensor, square, _CUBIC * _LINEAR)
            inner = _like(node, aten.mul.Tensor, _like(node, aten.add.Tensor, weighted, _LINEAR), x)
            gate = _like(node, aten.sigmoid.default, inner)
            node.replace_all_uses_with(_like(node, aten.mul.Tensor, x, gate))
        program.graph.erase_node(node)
    program.graph_module.recompile()


def _like(node: torch.fx.Node, operator: Any, *args: Any) -> torch.fx.Node:
    made = node.graph.call_function(operator, args)
    made.meta = dict(node.meta)  # of the same shape and type, from the same line
    return made
