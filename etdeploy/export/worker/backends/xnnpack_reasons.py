"""Why ExecuTorch's partitioner for XNNPACK leaves an operator to the CPU's kernels.

It says so in debug messages of its loggers, each with the node and a reason
(executorch/exir/backend/utils.py: WhyNoPartition). What it takes, but XNNPACK does not load, is
left as well.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir.backend.canonical_partitioners.config_partitioner import format_target_name

from etdeploy.export.worker.backends.base import REASON

_LOGGER = "executorch.backends.xnnpack.partition.config"
_WRONG_TYPE = "invalid dtype"
_PAD = "constant_pad_nd.default"
_PAD_REASON = "XNNPACK does not load a pad from 8 bits to floats"
_NO_RULE = "XNNPACK's partitioner has no rule for the operator"


class ExplainedPartitioner(XnnpackPartitioner):  # type: ignore[misc]
    """The same, which leaves its reason in `meta[REASON]` of each node that it does not take."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if pad := self.target_partitioner_configs.get(_PAD):
            takes = pad.check_constraints
            pad.check_constraints = lambda node, ep: not _changes_type(node) and takes(node, ep)

    def generate_partitions(self, ep: Any) -> Any:
        """As in the base class."""
        with _told() as reasons:
            partitions = super().generate_partitions(ep)
        taken = {node for partition in partitions for node in partition.nodes}
        for node in ep.graph.nodes:
            left = node.op == "call_function" and node not in taken
            if left and (reason := self._reason(node, reasons)):
                node.meta[REASON] = reason
        return partitions

    def _reason(self, node: torch.fx.Node, reasons: dict[torch.fx.Node, str]) -> str | None:
        target = getattr(node.target, "__name__", str(node.target))
        if format_target_name(target) not in self.target_partitioner_configs:
            return _NO_RULE
        if format_target_name(target) == _PAD and _changes_type(node):
            return _PAD_REASON
        reason = reasons.get(node)
        return _type_reason(node) if reason == _WRONG_TYPE else reason


def _changes_type(node: torch.fx.Node) -> bool:
    """Whether a node has quantised values, and not all that take its own quantise them."""
    given: Any = node.args[0]
    return _is_a("dequantize", given) and not all(_is_a("quantize", u) for u in node.users)


def _is_a(kind: str, node: torch.fx.Node) -> bool:
    name = getattr(node.target, "__name__", "").rpartition("::")[2]
    return name.removeprefix("quantized_decomposed.").startswith(f"{kind}_per")


def _type_reason(node: torch.fx.Node) -> str:
    values = [each.meta.get("val") for each in (*node.all_input_nodes, node)]
    dtypes = {str(v.dtype).removeprefix("torch.") for v in values if isinstance(v, torch.Tensor)}
    others = sorted(dtypes - {"float32", "float16"})
    if not others:
        return "a shape or type of its tensors is none that XNNPACK takes"
    return f"it has {' and '.join(others)} tensors, and XNNPACK takes floats here"


@contextmanager
def _told() -> Iterator[dict[torch.fx.Node, str]]:
    """The first reason that is told of each node while the block runs."""
    reasons: dict[torch.fx.Node, str] = {}

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            # The message is the same object each time, so it is read at once.
            node, reason = getattr(record.msg, "node", None), getattr(record.msg, "reason", "")
            if isinstance(node, torch.fx.Node):
                reasons.setdefault(node, reason)

    logger, handler = logging.getLogger(_LOGGER), Listening()
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    try:
        yield reasons
    finally:
        logger.level, logger.propagate = before
        logger.removeHandler(handler)
