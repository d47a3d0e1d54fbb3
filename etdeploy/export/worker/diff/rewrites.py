"""Whether the rewrites of a graph keep its outputs, and where they do not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Node

from etdeploy.export.diff import RewriteError
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.backends.base import Traced
from etdeploy.export.worker.diff.instrument import (
    Observable,
    bound_constants,
    described,
    is_float,
    observables,
    results,
)
from etdeploy.export.worker.rewrites.base import REWRITE
from etdeploy.export.worker.rewrites.constants import depends_on_inputs
from etdeploy.export.worker.tracing.tensors import Values

# Rewrites compute sums in another order: of float32, some thousand units in the last place.
_ALLOWED = 2.0**-12
# Above it, values of all nodes are not compared.
_MOST_BYTES = 1 << 30


def rewrite_error(spec: ExportSpec, traced: Traced, inputs: Values) -> RewriteError | None:
    """The first value that the rewrites change by more than rounding; None if outputs stay.

    Inner values may change without harm: a mask of minus infinity becomes one of large numbers.
    """
    original = traced.original
    if original is None or original is traced.program:
        return None
    before = original.run_decompositions({})
    shared = _shared(before, traced.program)
    values, first = _evaluated(before, inputs, shared)
    others, second = _evaluated(traced.program, inputs, shared)
    ends = zip(first, second, strict=False)
    if all(_distance(a, b) <= _limit(a) for a, b in ends if isinstance(a, torch.Tensor)):
        return None
    for node in traced.program.graph.nodes:
        if node.name not in values or node.name not in others:
            continue
        error, allowed = _distance(values[node.name], others[node.name]), _limit(values[node.name])
        if error > allowed:
            return RewriteError(
                node=described(spec, Observable(node)),
                error=error,
                allowed=allowed,
                rewrites=_rewrites_before(node, values),
            )
    return _of_output(spec, traced, first, second, values)


def _of_output(
    spec: ExportSpec, traced: Traced, first: list[Any], second: list[Any], values: Mapping[str, Any]
) -> RewriteError | None:
    for each, a, b in zip(results(traced.program), first, second, strict=False):
        if each and isinstance(a, torch.Tensor) and _distance(a, b) > _limit(a):
            return RewriteError(
                node=described(spec, each),
                error=_distance(a, b),
                allowed=_limit(a),
                rewrites=_rewrites_before(each.node, values),
            )
    return None


def _shared(a: torch.export.ExportedProgram, b: torch.export.ExportedProgram) -> set[str]:
    """Names of nodes of floats that both graphs have, as far as their values fit in memory."""
    known = {each.node.name: each.node for each in observables(a)}
    fed = depends_on_inputs(b)
    names = {n.name for n in b.graph.nodes if n in fed and is_float(n) and n.name in known}
    same = {n.name: n.meta["val"].shape for n in b.graph.nodes if n.name in names}
    names = {name for name in names if known[name].meta["val"].shape == same[name]}
    size_bytes = sum(known[name].meta["val"].nbytes for name in names)
    return names if size_bytes < _MOST_BYTES else set()


def _evaluated(
    program: torch.export.ExportedProgram, inputs: Values, kept: set[str]
) -> tuple[dict[str, torch.Tensor], list[Any]]:
    """The values of the named nodes, and the outputs."""
    constants, found = bound_constants(program), dict[str, torch.Tensor]()
    given = iter([each.value for each in inputs])

    class Recording(torch.fx.Interpreter):  # type: ignore[misc]
        def run_node(self, n: Node) -> Any:
            value = super().run_node(n)
            if n.name in kept:
                found[n.name] = value
            return value

    arguments = [
        constants[node.name] if node.name in constants else next(given)
        for node in program.graph.nodes
        if node.op == "placeholder"
    ]
    with torch.no_grad():
        ends = Recording(program.graph_module).run(*arguments)
    return found, list(ends)


def _limit(value: torch.Tensor) -> float:
    finite = value[value.isfinite()] if value.is_floating_point() else value
    return _ALLOWED * float(finite.abs().max()) if finite.numel() else 0.0


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    if a.shape != b.shape:
        return float("inf")
    a, b = a.double(), b.double()
    same = (a == b) | (a.isnan() & b.isnan())
    difference = torch.where(same, 0.0, (a - b).abs())
    return float(difference.nan_to_num(nan=float("inf")).max()) if a.numel() else 0.0


def _rewrites_before(node: Node, known: Mapping[str, Any]) -> tuple[str, ...]:
    """The rewrites of the nodes between this one and those whose values are known."""
    found: dict[str, None] = {}
    waiting, seen = [node], {node}
    while waiting:
        each = waiting.pop()
        if name := each.meta.get(REWRITE):
            found[name] = None
        for source in each.all_input_nodes:
            if source not in seen and source.name not in known:
                seen.add(source)
                waiting.append(source)
    return tuple(found)
