"""The largest value along a dimension, where nobody asks for its place.

XNNPACK's partitioner takes `max.dim` whatever its dimension, and lowers it for sides of images that
stay alone: with ExecuTorch 1.5.1, others fail.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from etdeploy.export.worker.rewrites.base import Program, Told, Writer, bound

_aten = torch.ops.aten
_IMAGE, _SIDES = 4, (2, 3)


def maxima_without_places(program: Program, told: Told) -> None:
    """Replaces every one of floats that XNNPACK does not lower; in place."""
    for node in list(program.graph.nodes):
        if node.target is not _aten.max.dim:
            continue
        given = bound(node)
        value, dim = given["self"].meta["val"], given["dim"] % given["self"].meta["val"].dim()
        is_lowered = given["keepdim"] and value.dim() == _IMAGE and dim in _SIDES
        if is_lowered or takes_places(node) or not value.is_floating_point():
            continue
        replace_largest(program, node, _aten.amax.default, given["self"], [dim], given["keepdim"])
        told.applied()
    program.graph_module.recompile()


def takes_places(node: torch.fx.Node) -> bool:
    """Whether anyone takes more of a maximum than its values, which come first."""
    return any(user.target is not operator.getitem or user.args[1] != 0 for user in node.users)


def replace_largest(program: Program, node: torch.fx.Node, target: Any, *args: Any) -> None:
    """Gives an operator for the values alone to all that take a maximum's."""
    for user in list(node.users):
        write = Writer(program, user)
        write.replace(write(target, *args))
    program.graph.erase_node(node)
