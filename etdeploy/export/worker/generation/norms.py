"""Makes the means of norms products, which XNNPACK takes.

A norm's mean is over a token's values. XNNPACK's partitioner takes only those over the two last of
four dimensions (ExecuTorch 1.5.1, MeanDimConfig), so each of the two norms of a layer would part
what is delegated. A product with a column of 1 / n gives the same, and halves the partitions: what
the runtime does between them is a third of a small model's time outside of them. The epsilon is the
product's bias.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument

from etdeploy.export.worker.tracing.structure import fixed_size

_WEIGHTS, _BIAS = "p_etdeploy_mean_of_{}", "p_etdeploy_added_{}"


def means_as_products(program: torch.export.ExportedProgram) -> None:
    """Replaces every mean over the last dimension of float32 values; in place.

    Args:
        program: As torch.export made it.
    """
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
