"""What is changed in the graphs of programs that generate text, before they are partitioned."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.fx.passes.infra.pass_base import PassResult

from etdeploy.export.worker.language import attention
from etdeploy.export.worker.rewrites.shapes import view_sizes
from etdeploy.export.worker.tracing.structure import fixed_size


def plain_views(graph: torch.fx.GraphModule) -> PassResult:
    """Makes every change of shape a view_copy, with -1 for its symbolic size.

    XNNPACK's partitioner refuses symbolic sizes, squeezes, and unsqueezes of all but the last
    dimension. Two symbolic sizes stay: one -1 cannot stand for both.
    """
    from executorch.exir.dialects._ops import ops

    view, changed = ops.edge.aten.view_copy.default, False
    for node in graph.graph.nodes:
        sizes = view_sizes(node)
        if sizes is None or sizes.count(-1) > 1:
            continue
        node.target, node.args, node.kwargs = view, (node.args[0], sizes), {}
        changed = True
    graph.recompile()
    return PassResult(graph, changed)


_WEIGHTS, _BIAS = "p_etdeploy_mean_of_{}", "p_etdeploy_added_{}"


def means_as_products(program: torch.export.ExportedProgram) -> None:
    """Replaces every mean over the last dimension of float32 values; in place."""
    for node in list(program.graph.nodes):
        if node.target is torch.ops.aten.mean.dim and (size := _last_only(node)):
            _replace(program, node, size)
    program.graph_module.recompile()


def _last_only(node: torch.fx.Node) -> int:
    """The size of the last dimension; 0 for a mean that is another one."""
    x, dims, *keepdim = node.args
    values: Any = x.meta["val"] if isinstance(x, torch.fx.Node) else None
    keeps = (keepdim or [node.kwargs.get("keepdim", False)])[0]
    if values is None or not keeps or node.kwargs.get("dtype") not in (None, torch.float32):
        return 0
    own = [each % values.dim() for each in dims] if isinstance(dims, list | tuple) else []
    if values.dtype != torch.float32 or own != [values.dim() - 1]:
        return 0
    return fixed_size(values.shape[-1]) or 0


def _replace(program: torch.export.ExportedProgram, node: torch.fx.Node, size: int) -> None:
    x: Any = node.args[0]
    last, mode = node, x.meta["val"].fake_mode
    operands = [x, _parameter(program, _WEIGHTS.format(size), (1, size), 1.0 / size, mode)]
    added = _constant_added(node)
    if added is not None:
        last = next(iter(node.users))
        name = _BIAS.format(re.sub(r"\W", "_", repr(added)))
        operands.append(_parameter(program, name, (1,), added, mode))
    with node.graph.inserting_before(node):
        made = node.graph.call_function(torch.ops.aten.linear.default, tuple(operands))
    made.meta = dict(last.meta)  # of the same shape and type, from the same line
    last.replace_all_uses_with(made)
    for each in dict.fromkeys((last, node)):
        node.graph.erase_node(each)


def _constant_added(node: torch.fx.Node) -> float | None:
    """The epsilon that is added to a mean; None where it has another use."""
    if len(node.users) != 1:
        return None
    (user,) = node.users
    plain = user.target is torch.ops.aten.add.Tensor and not user.kwargs
    if not plain or user.args[0] is not node or not isinstance(user.args[1], float):
        return None
    return user.args[1]


def _parameter(
    program: torch.export.ExportedProgram,
    name: str,
    shape: tuple[int, ...],
    value: float,
    mode: Any,
) -> torch.fx.Node:
    """Equal values, as a parameter of the program that all norms share."""
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.target == name:
            return node
    weights = torch.nn.Parameter(torch.full(shape, value), requires_grad=False)
    with program.graph.inserting_before(next(iter(program.graph.nodes))):
        made = program.graph.placeholder(name)
    made.meta["val"] = mode.from_tensor(weights)
    program.state_dict[name] = weights
    spec = InputSpec(InputKind.PARAMETER, TensorArgument(made.name), name)
    program.graph_signature.input_specs.insert(0, spec)
    return made


_ATEN = torch.ops.aten


def rotations_by_kernel(program: torch.export.ExportedProgram) -> None:
    """Replaces x cos + rotate_half(x) sin, in place, where the attention is a kernel, too."""
    if not any(node.target is attention.ATTENTION for node in program.graph.nodes):
        return
    for node in list(program.graph.nodes):
        if found := _rotation(node):
            _replace_rotation(node, *found)
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()


def _replace_rotation(node: torch.fx.Node, x: torch.fx.Node, *angles: torch.fx.Node) -> None:
    last, (user, *more) = node, node.users
    with node.graph.inserting_before(node):
        if not more and _of(user, _ATEN.squeeze.dim, 2) == (node, 0):
            # Keys lose their first dimension. After the rotation, that would be a node of the
            # delegate that comes before it.
            last, squeezed = user, node.graph.call_function(_ATEN.squeeze.dim, (x, 0))
            squeezed.meta = {**x.meta, "val": x.meta["val"].squeeze(0)}
            x = squeezed
        made = node.graph.call_function(attention.ROTATE, (x, *angles))
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
