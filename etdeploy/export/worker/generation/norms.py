"""Makes the means of norms products, which XNNPACK takes.

A norm's mean is over a token's values. XNNPACK's partitioner takes only those over the two last of
four dimensions (ExecuTorch 1.5.1, MeanDimConfig), so each of the two norms of a layer would part
what is delegated. A product with a column of 1 / n gives the same, and halves the partitions: what
the runtime does between them is a third of a small model's time outside of them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument

from etdeploy.export.worker.tracing.structure import fixed_size

_NAME = "p_etdeploy_mean_of_{}"


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
    x = node.args[0]
    column = _column(program, size, x.meta["val"].fake_mode)
    with node.graph.inserting_before(node):
        made = node.graph.call_function(torch.ops.aten.linear.default, (x, column))
    made.meta = dict(node.meta)  # of the same shape and type, from the same line
    node.replace_all_uses_with(made)
    node.graph.erase_node(node)


def _column(program: torch.export.ExportedProgram, size: int, mode: Any) -> torch.fx.Node:
    """The weights that all means of one size share, as a parameter of the program."""
    name = _NAME.format(size)
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.target == name:
            return node
    weights = torch.nn.Parameter(torch.full((1, size), 1.0 / size), requires_grad=False)
    with program.graph.inserting_before(next(iter(program.graph.nodes))):
        made = program.graph.placeholder(name)
    made.meta["val"] = mode.from_tensor(weights)
    program.state_dict[name] = weights
    spec = InputSpec(InputKind.PARAMETER, TensorArgument(made.name), name)
    program.graph_signature.input_specs.insert(0, spec)
    return made
