"""Softmax over the last dimension, the only one that XNNPACK's partitioner takes."""

from __future__ import annotations

import torch

from etdeploy.export.worker.rewrites.base import Program, RewriteLog, Writer, bound

_aten = torch.ops.aten


def softmax_last(program: Program, log: RewriteLog) -> None:
    """Exchanges the dimension of a softmax with the last one, and back; in place."""
    for node in list(program.graph.nodes):
        if node.target is not _aten.softmax.int:
            continue
        given = bound(node)
        x, dim = given["input" if "input" in given else "self"], given["dim"]
        values = x.meta["val"]
        if values.dim() == 0 or dim % values.dim() == values.dim() - 1:
            continue
        if given["dtype"] not in (None, torch.float32) or values.dtype != torch.float32:
            log.skipped(node, "its tensors are no 32-bit floats")
            continue
        write = Writer(program, node)
        turned = write(_aten.softmax.int, write(_aten.transpose.int, x, dim, -1), -1)
        write.replace(write(_aten.transpose.int, turned, dim, -1))
        log.applied()
    program.graph_module.recompile()
