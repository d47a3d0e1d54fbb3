"""SiLU in two operators before quantisation.

XNNPACK's quantiser has no rule for SiLU, which stays in floats: values are dequantised before it
and quantised after it. Of x * sigmoid(x), the product is computed in 8 bits. Outputs also come
nearer to those of the floats.
"""

from __future__ import annotations

import torch

from etdeploy.export.worker.rewrites.base import Program, Told, Writer

_aten = torch.ops.aten


def silu_as_product(program: Program, told: Told) -> None:
    """Replaces every SiLU; in place."""
    order = {node: index for index, node in enumerate(program.graph.nodes)}
    for node in list(program.graph.nodes):
        if node.target not in (_aten.silu.default, _aten.silu_.default):
            continue
        x = node.args[0]
        in_place = node.target is _aten.silu_.default
        if in_place and not _is_its_own(x):
            told.left(node, "it changes a tensor in place that others may see")
            continue
        write = Writer(program, node)
        made = write(_aten.mul.Tensor, x, write(_aten.sigmoid.default, x))
        if in_place:  # those after it see what it made of its input
            for user in [u for u in x.users if order.get(u, -1) > order[node]]:
                user.replace_input_with(x, made)
        write.replace(made)
        told.applied()
    program.graph_module.recompile()


def _is_its_own(x: torch.fx.Node) -> bool:
    """Whether a node's tensor is new, and no other looks into it."""
    schema = getattr(x.target, "_schema", None)
    if x.op != "call_function" or schema is None:
        return False
    is_new = all(each.alias_info is None for each in schema.returns)
    return is_new and not any(_is_view(user) for user in x.users)


def _is_view(node: torch.fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    if schema is None or schema.is_mutable:
        return schema is None
    return any(each.alias_info is not None for each in schema.returns)
