"""Which nodes of a graph stay on the CPU, and why each does.

ExecuTorch asks Qualcomm's compiler about each node. What both accept and what then fails or gives
other values is refused here, as found by running it in the simulator (QNN 2.49, ExecuTorch 1.5.1).
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import torch

from etdeploy.export.worker.backends.base import REASON
from etdeploy.export.worker.native_output import overheard

# 64-bit floats have a place in ExecuTorch's table, as 32-bit ones, whose bytes they do not have.
_DTYPES = frozenset(
    {torch.bool, torch.float16, torch.float32, torch.int8, torch.int16, torch.int32, torch.int64}
    | {torch.uint8, torch.uint16, torch.uint32}
)


@contextmanager
def placing() -> Iterator[None]:
    """Refuses more nodes than ExecuTorch does while it lasts; `meta[REASON]` of a node says why."""
    from executorch.backends.qualcomm.partition import qnn_partitioner as module

    asked = module.QnnOperatorSupport.is_node_supported
    parted = module.QnnPartitioner.generate_partitions
    kept_whole = module.filter_fn

    def is_supported(self: Any, submodules: Any, node: torch.fx.Node) -> bool:
        if node.op != "call_function":
            return False
        reason = own_reason(node) or _their_reason(
            self, node, lambda: bool(asked(self, submodules, node))
        )
        if reason:
            node.meta[REASON] = reason
        return reason is None

    def partitions(self: Any, program: Any) -> list[Any]:
        found = parted(self, program)
        for partition in found:
            _leave_out_constants(partition.nodes, module.constant_operator)
        return [partition for partition in found if partition.nodes]

    def keeps_whole(node: torch.fx.Node) -> bool:
        # The CPU has kernels for the parts only of what QNN takes whole.
        return _dtype_reason(node) is None and bool(kept_whole(node))

    with (
        _replaced(module.QnnOperatorSupport, "is_node_supported", is_supported),
        _replaced(module.QnnPartitioner, "generate_partitions", partitions),
        _replaced(module, "filter_fn", keeps_whole),
    ):
        yield


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def own_reason(node: torch.fx.Node) -> str | None:
    """Why a node must not run on the HTP although ExecuTorch would compile it."""
    if reason := _dtype_reason(node):
        return reason
    if any(_is_plain_byte(source) for source in node.all_input_nodes) and not _dequantizes(node):
        return "the HTP reads plain uint8 values as true or false"
    if len(_tensors(node)) > 1 and any(_is_used_index(user) for user in node.users):
        return "its second output is int64, and QNN writes 32 bits for each value"
    return None


def _dtype_reason(node: torch.fx.Node) -> str | None:
    values = [value for each in (*node.all_input_nodes, node) for value in _tensors(each)]
    dtypes = {value.dtype for value in values}
    if torch.float64 in dtypes:
        return "the HTP has no 64-bit floats"
    foreign = sorted(str(dtype).removeprefix("torch.") for dtype in dtypes - _DTYPES)
    return f"QNN has no {foreign[0]}" if foreign else None


def _dequantizes(node: torch.fx.Node) -> bool:
    """Whether a node gives weights that are stored as bytes: the compiler takes both as one."""
    return "dequantize" in str(node.target)


def _tensors(node: torch.fx.Node) -> list[torch.Tensor]:
    value = node.meta.get("val")
    values = value if isinstance(value, tuple | list) else [value]
    return [each for each in values if isinstance(each, torch.Tensor)]


def _is_plain_byte(node: torch.fx.Node) -> bool:
    """Whether a node gives bytes that stand for no quantised values."""
    from executorch.backends.qualcomm.utils.constants import QCOM_QUANT_ATTRS

    plain = not node.meta.get(QCOM_QUANT_ATTRS)
    return plain and any(value.dtype == torch.uint8 for value in _tensors(node))


def _is_used_index(node: torch.fx.Node) -> bool:
    """Whether a node takes one of several outputs, of 64-bit integers, and something uses it."""
    return bool(node.users) and any(value.dtype == torch.int64 for value in _tensors(node))


def _their_reason(support: Any, node: torch.fx.Node, ask: Callable[[], bool]) -> str | None:
    """Why ExecuTorch or Qualcomm's compiler refuses a node; None if both take it."""
    with overheard() as said:
        try:
            if ask():
                return None
        except Exception as error:
            # For other backends as well, what cannot be converted is left to the CPU.
            traceback.print_exc()
            support.nodes_to_wrappers.clear()
            return f"ExecuTorch cannot convert it: {type(error).__name__}: {error}"
    if node.target.__name__ not in support.node_visitors:
        return "ExecuTorch's QNN backend has no such operator"
    return validation_reason(said()) or "ExecuTorch's QNN backend leaves it to the CPU"


def _leave_out_constants(nodes: MutableMapping[torch.fx.Node, Any], constant: Any) -> None:
    """Takes out of a partition what depends on no input and what something outside of it uses.

    QNN makes it a constant of the graph and no output, and the run fails since the program expects
    one more (`binds 2 tensors ... but ExecuTorch passed 3`).
    """
    for node in [n for n in nodes if n.target in constant]:
        if not set(node.users) <= nodes.keys():
            del nodes[node]
            node.meta[REASON] = "its values are constant, and no output of a QNN partition may be"


_ERROR = re.compile(r"^\[ERROR\] \[Qnn ExecuTorch\]: *(?:<E>)? *(.+)$", re.MULTILINE)
# That a node was refused, or where in the compiler, but not why.
_HOLLOW = re.compile(
    r"validateOpConfig|validateNativeOps|Failed to validate op|validation failed|not well formed"
    r"|^Requested I/O|^Supported I/O|^Please refer"
)
# `[4294967295] has incorrect Rank 6.`: the number stands for every tensor.
_PREFIX = re.compile(r"^\[\d+\] (?:has )?")
_LONGEST = 160


def validation_reason(text: str) -> str | None:
    """Why the compiler refuses a node: `the HTP's compiler: incorrect Rank 6`; None if unsaid."""
    for found in _ERROR.finditer(text):
        line = _PREFIX.sub("", found[1].strip())
        if not _HOLLOW.search(line):
            sentence = line.partition(". ")[0].rstrip(".")
            return f"the HTP's compiler: {sentence[:_LONGEST]}"
    return None
