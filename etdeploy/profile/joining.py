"""Finds the nodes of the model's graph that a delegate's own nodes compute.

A delegate that reports debug handles says it itself. Another one executes the nodes of a partition
in the order in which it was given them: so where it has as many nodes of a family (all products of
matrices, all sums) as the partition has operators of that family, the first of the one kind is the
first of the other. What is fused into a node, or added by the backend, is in no such pair.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from etdeploy.profile.protocol import GraphNode

# The beginnings of a backend's names for its nodes, each with the operators that become them.
Families = Mapping[str, tuple[str, ...]]


def joined(
    names: Sequence[str],
    handles: Sequence[int],
    graph: Mapping[int, Sequence[GraphNode]],
    families: Families,
) -> dict[int, int]:
    """Debug handles by the position in `names`; nothing for what cannot be said.

    Args:
        names: Of the delegate's nodes in a partition, as they were executed.
        handles: Of the partition's nodes, as they are executed.
        graph: The nodes by handle.
        families: `Backend.traced`.
    """
    found: dict[int, int] = {}
    by_family: dict[tuple[str, ...], list[int]] = {}
    for i, name in enumerate(names):
        if family := _family(name, families):
            by_family.setdefault(family, []).append(i)
    for operators, own in by_family.items():
        wanted = list(_with_operators(handles, graph, operators))
        if len(own) == len(wanted):
            found |= dict(zip(own, wanted, strict=True))
    return found


def _family(name: str, families: Families) -> tuple[str, ...] | None:
    """By the longest beginning, as `Copy (` and `Copy Slice (` may be two."""
    fitting = [start for start in families if name.startswith(start)]
    return families[max(fitting, key=len)] if fitting else None


def _with_operators(
    handles: Sequence[int], graph: Mapping[int, Sequence[GraphNode]], operators: Sequence[str]
) -> Iterator[int]:
    """The handle of each node of a family, in order of execution.

    A handle stands for all that one node of the model became: for a product of matrices, also the
    changes of layout before it. So the last of its places are those of the operator.
    """
    left = Counter(handles)
    for handle in handles:
        of_family = sum(node.op in operators for node in graph.get(handle, ()))
        if left[handle] <= of_family:
            yield handle
        left[handle] -= 1
