"""How much of a method is delegated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from etdeploy.program.model import Delegate, Operator


@dataclass(frozen=True)
class BackendShare:
    """The share of one backend in a method.

    Attributes:
        backend_id: As the program names it.
        partitions: Its delegates.
        nodes: Nodes in all of them; None if a payload cannot be read.
        size_bytes: Of all their payloads.
    """

    backend_id: str
    partitions: int
    nodes: int | None
    size_bytes: int


def backend_shares(delegates: Sequence[Delegate]) -> tuple[BackendShare, ...]:
    """One entry for each backend, in the order of the program."""
    by_backend: dict[str, list[Delegate]] = {}
    for delegate in delegates:
        by_backend.setdefault(delegate.backend_id, []).append(delegate)
    return tuple(
        BackendShare(name, len(group), _total(group), sum(d.size_bytes for d in group))
        for name, group in by_backend.items()
    )


def delegated_fraction(
    delegates: Sequence[Delegate], operators: Sequence[Operator]
) -> float | None:
    """Nodes in delegates divided by all nodes, 0 to 1; a kernel call outside counts as one node.

    None if the nodes of a delegate are unknown, or for an empty method. Backends fuse operators,
    so this is a share of the work to do, not of the time that it takes.
    """
    nodes = _total(delegates)
    calls = sum(operator.calls for operator in operators)
    if nodes is None or nodes + calls == 0:
        return None
    return nodes / (nodes + calls)


def where_it_runs(delegates: Sequence[Delegate], operators: Sequence[Operator]) -> tuple[str, ...]:
    """Sentences about what runs on backends and what stays outside of them."""
    calls = sum(operator.calls for operator in operators)
    if not delegates:
        return (f"nothing is delegated: {_calls(calls)} {_verb('run', calls)} on CPU kernels",)
    fraction = delegated_fraction(delegates, operators)
    lines = [_taken(share) for share in backend_shares(delegates)]
    if fraction is not None:
        lines[-1] += f" ({_percent(fraction)} of all nodes)"
    if calls:
        lines.append(f"{_calls(calls)} {_verb('stay', calls)} outside, on CPU kernels")
    return tuple(lines)


def _verb(verb: str, number: int) -> str:
    return f"{verb}s" if number == 1 else verb


def _taken(share: BackendShare) -> str:
    partitions = "partition" if share.partitions == 1 else "partitions"
    if share.nodes is None:
        return f"{share.backend_id} takes {share.partitions} {partitions}"
    nodes = "node" if share.nodes == 1 else "nodes"
    return f"{share.backend_id} takes {share.nodes} {nodes} in {share.partitions} {partitions}"


def _calls(calls: int) -> str:
    return "1 operator call" if calls == 1 else f"{calls} operator calls"


def _percent(fraction: float) -> str:
    # 99.9 % must not read as all of it.
    percent = 99 if 0.99 < fraction < 1 else round(100 * fraction)
    return f"{percent} %"


def _total(delegates: Sequence[Delegate]) -> int | None:
    nodes = [d.nodes for d in delegates if d.nodes is not None]
    return sum(nodes) if len(nodes) == len(delegates) else None
