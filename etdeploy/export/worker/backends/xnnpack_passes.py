"""Which of the passes that ExecuTorch runs over each of XNNPACK's partitions are needed.

There are 17, and most trace the graph again, whether they find something or not: that is half of
the time in which a language model is lowered. There is no option for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import executorch.backends.xnnpack.xnnpack_preprocess as preprocess
from executorch.backends.xnnpack._passes import XNNPACKPassManager

_NORMALISED = ("aten.native_batch_norm.", "aten._native_batch_norm_legit_no_training.")
# By the name of the pass: it changes nothing where a partition has no such operator.
_NEEDED_FOR: dict[str, tuple[str, ...]] = {
    "ConvertToUpsampleBilinear2d": ("aten.upsample_bilinear2d.", "aten.index.", "aten._unsafe_"),
    # Its pattern scales queries and keys by a number.
    "ConvertToSDPAPass": ("aten.mul.Scalar",),
    "FuseBatchNormPass": _NORMALISED,
    "DecomposeBatchNorm": _NORMALISED,
    "DecomposeConcatenate": ("aten.cat.",),
    "InsertPadQDQPass": ("aten.constant_pad_nd.",),
    "Conv1dUnsqueezePass": ("aten.convolution.",),
    "PReLUReshapePass": ("aten._prelu_kernel.", "aten.prelu."),
}


class NeededPasses(XNNPACKPassManager):  # type: ignore[misc]
    """Without those that look for operators that the partition does not have."""

    def __init__(self, exported_program: Any, passes: Any = None) -> None:
        super().__init__(exported_program, passes)
        names = {
            getattr(node.target, "__name__", "")
            for node in exported_program.graph.nodes
            if node.op == "call_function"
        }
        every: list[Any] = vars(self)["passes"]
        self.passes = [each for each in every if _is_needed(each.__name__, names)]


def _is_needed(name: str, operators: set[str]) -> bool:
    wanted = _NEEDED_FOR.get(name)
    return wanted is None or any(o.startswith(wanted) for o in operators)


@contextmanager
def needed_passes_only() -> Iterator[None]:
    """While the block runs, ExecuTorch's preprocessing for XNNPACK skips the others."""
    before = preprocess.XNNPACKPassManager
    preprocess.XNNPACKPassManager = NeededPasses
    try:
        yield
    finally:
        preprocess.XNNPACKPassManager = before
