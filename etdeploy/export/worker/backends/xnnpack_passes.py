"""Which of the passes that ExecuTorch runs over each of XNNPACK's partitions are needed.

There are 17, and most trace the graph again, whether they found something or not: that is half of
the time in which a language model is lowered. There is no option for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import executorch.backends.xnnpack.xnnpack_preprocess as preprocess
import torch
from executorch.backends.xnnpack._passes import XNNPACKPassManager
from executorch.backends.xnnpack._passes.xnnpack_pass import XNNPACKPass
from executorch.exir.pass_base import ExportPass
from executorch.exir.program._program import _update_exported_program_graph_module
from torch.fx.passes.infra.pass_base import PassResult

_NORMALISED = ("aten.native_batch_norm.", "aten._native_batch_norm_legit_no_training.")
# By the name of the pass: it changes nothing where a partition has no such operator.
_NEEDED_FOR: dict[str, tuple[str, ...]] = {
    "DimOrderOpsRevertPass": ("dim_order_ops.",),
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
# What a graph is made of, as far as a pass can change it: its nodes, and what each is given.
_Shape = list[tuple[torch.fx.Node, Any, Any, Any]]


class NeededPasses(XNNPACKPassManager):  # type: ignore[misc]
    """Without those that look for operators that the partition does not have.

    Attributes:
        skips: Without it, every pass runs, as in ExecuTorch.
    """

    skips = True

    def transform(self) -> torch.export.ExportedProgram:
        """The program after all passes; it is checked and traced again only where one changed it.

        ExecuTorch checks the program twice for each pass.
        """
        if not self.skips:
            return super().transform()
        program = self.exported_program
        for kind in self.passes:
            graph = program.graph_module
            if not _is_needed(kind, graph.graph):  # asked now: an earlier pass may make operators
                continue
            before = _shape(graph)
            made = _made(kind, program, before)(graph)
            if made.graph_module is not graph or _shape(graph) != before:
                program = _update_exported_program_graph_module(program, made.graph_module)
        return program


class _TracesChanges(ExportPass):  # type: ignore[misc]
    """Stands between a pass and ExportPass, whose `call` traces the graph again.

    Attributes:
        before: The graph as it was given to the pass.
    """

    before: _Shape

    def call(self, graph_module: torch.fx.GraphModule) -> PassResult:
        if _shape(graph_module) == self.before:
            return PassResult(graph_module, False)
        return super().call(graph_module)


def _made(kind: type[ExportPass], program: torch.export.ExportedProgram, before: _Shape) -> Any:
    """The pass; one that changes the graph itself does not trace it where it has not.

    One without a `call` of its own makes its changes while it traces.
    """
    if kind.call is not ExportPass.call:
        kind = type(kind.__name__, (kind, _TracesChanges), {"before": before})
    return kind(program) if issubclass(kind, XNNPACKPass) else kind()


def _shape(graph: torch.fx.GraphModule) -> _Shape:
    return [(node, node.target, node.args, node.kwargs) for node in graph.graph.nodes]


def _is_needed(kind: type[ExportPass], graph: torch.fx.Graph) -> bool:
    if kind.__name__ == "ConstPropPass":  # which takes no inputs of the graph for constants
        return any(not node.all_input_nodes for node in graph.nodes if node.op != "placeholder")
    wanted = _NEEDED_FOR.get(kind.__name__)
    names = (getattr(n.target, "__name__", "") for n in graph.nodes if n.op == "call_function")
    return wanted is None or any(name.startswith(wanted) for name in names)


@contextmanager
def preprocessing_with(manager: type[XNNPACKPassManager]) -> Iterator[None]:
    """While the block runs, ExecuTorch's preprocessing for XNNPACK takes its passes from there."""
    before = preprocess.XNNPACKPassManager
    preprocess.XNNPACKPassManager = manager
    try:
        yield
    finally:
        preprocess.XNNPACKPassManager = before
