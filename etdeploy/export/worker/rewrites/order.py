"""Which rewrite runs when.

Before PT2E quantization come those that change what is quantized, then, in the graph that is
lowered, those that take an operator of PyTorch apart, and last those for operators that only
ExecuTorch's own graph has. Models that are not quantized so have the first two at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from etdeploy.export.worker.failures import describe_errors
from etdeploy.export.worker.lowering.lower_failures import explain_errors
from etdeploy.export.worker.rewrites.activations import (
    prelu_as_relus,
    silu_as_product,
    softmax_last,
)
from etdeploy.export.worker.rewrites.attention import masks_as_products, plain_attention
from etdeploy.export.worker.rewrites.base import REWRITE, Log, Program, Rewrite
from etdeploy.export.worker.rewrites.constants import folded_constants, folded_scalars
from etdeploy.export.worker.rewrites.images import (
    depthwise_strips,
    has_large_depthwise,
    patches_as_views,
    pools_as_convolutions,
    upsampling_by_ones,
)
from etdeploy.export.worker.rewrites.norms import norms_as_products
from etdeploy.export.worker.rewrites.reductions import (
    maxima_without_places,
    powers_as_products,
    sums_as_products,
)
from etdeploy.export.worker.rewrites.shapes import parts_as_slices, plain_views, rolls_as_slices

_QUANTIZED: Mapping[str, Rewrite] = {"silu": silu_as_product, "depthwise": depthwise_strips}
_LOWERED: Mapping[str, Rewrite] = {
    "constants": folded_constants,
    "attention": plain_attention,
    "masks": masks_as_products,
    "norms": norms_as_products,
    "powers": powers_as_products,
    "sums": sums_as_products,
    "softmax": softmax_last,
    "pools": pools_as_convolutions,
    "prelu": prelu_as_relus,
    "maxima": maxima_without_places,
    "upsampling": upsampling_by_ones,
    "patches": patches_as_views,
    "slices": rolls_as_slices,
}
_EDGE: Mapping[str, Rewrite] = {
    "constants": folded_scalars,
    "slices": parts_as_slices,
    "views": plain_views,
}


# Those that depend on the target: whether a program has anything for them.
_CONCERNS: Mapping[str, Callable[[Program], bool]] = {"depthwise": has_large_depthwise}


def rewritten_to_quantize(program: Program, log: Log) -> Program:
    """The graph for PT2E; `program` stays as it is."""
    return _run(copied_program(program), _QUANTIZED, log) if _any(_QUANTIZED, log) else program


def rewritten_to_lower(program: Program, log: Log, *, quantized: bool) -> Program:
    """The graph for a backend's lowering; `program` stays as it is."""
    wanted = _LOWERED if quantized else {**_QUANTIZED, **_LOWERED}
    if not _any(wanted, log):
        return program
    # Without operators that change a tensor in place, and a copy.
    with explain_errors("making the graph functional failed:", [program]):
        functional = program.run_decompositions({})
    # Its own: the lowering takes out what it folds, and `program` is lowered once more to compare.
    functional._constants = dict(functional.constants)
    return _run(functional, wanted, log)


def edge_passes(log: Log) -> list[Any]:
    """Passes over ExecuTorch's own graph before it is partitioned."""
    from executorch.exir.pass_base import ExportedProgramPassBase, ExportedProgramPassResult

    class Rewriting(ExportedProgramPassBase):  # type: ignore[misc]
        def call(self, exported_program: Program) -> Any:
            _run(exported_program, _EDGE, log)
            return ExportedProgramPassResult(exported_program, True)

    return [Rewriting()] if _any(_EDGE, log) else []


def idle_rewrites(programs: Iterable[Program], log: Log) -> list[str]:
    """Of rewrites that depend on the target, those that change nothing, tried or not."""
    found = list(programs)
    return [
        name
        for name, concerns in _CONCERNS.items()
        if not log.applied[name] and not any(map(concerns, found))
    ]


def _any(rewrites: Mapping[str, Rewrite], log: Log) -> bool:
    return any(name in rewrites for name in log.names)


def _run(program: Program, rewrites: Mapping[str, Rewrite], log: Log) -> Program:
    for name in log.names:
        if name in rewrites:
            before = set(program.graph.nodes)
            with describe_errors("lowering", f"the rewrite {name} failed:"):
                rewrites[name](program, log.of(name))
            for node in program.graph.nodes:
                if node not in before:
                    node.meta[REWRITE] = name
    return program


def copied_program(program: Program) -> Program:
    """With another graph, signature and mappings; the weights are the same."""
    from copy import copy, deepcopy

    import torch

    made = copy(program)
    graph = deepcopy(program.graph)
    for own, new in zip(program.graph.nodes, graph.nodes, strict=True):
        new.name = own.name  # a copy of `input` gets another name, which the signature lacks
    module = torch.fx.GraphModule(program.graph_module, graph)
    module.meta.update(program.graph_module.meta)
    made._graph_module = module
    made._graph_signature = deepcopy(program.graph_signature)
    made._state_dict = dict(program.state_dict)
    made._constants = dict(program.constants)
    return made
