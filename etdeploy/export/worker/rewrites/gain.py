"""What the rewrites of a graph changed in what a backend takes: the graph as it was is partitioned,
and nothing compiled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from etdeploy.core.console import count
from etdeploy.export.worker.backends.base import edge_config
from etdeploy.export.worker.rewrites.base import Log, Program
from etdeploy.program.folder import IDLE

# Takes one result of an operator with several; nothing is computed.
_NO_OPERATORS = ("getitem",)


class _Counted(Exception):  # noqa: N818 - no error: it ends the lowering
    """What a backend would take of one program."""

    def __init__(self, partitions: int, outside: int) -> None:
        super().__init__()
        self.partitions, self.outside = partitions, outside


def _is_operator(node: torch.fx.Node) -> bool:
    name = getattr(node.target, "__name__", str(node.target))
    return node.op == "call_function" and name not in _NO_OPERATORS


def counted(program: Program, partitioner: Any, passes: Any) -> dict[str, int]:
    """How many `partitions` a program would have, and how many operators `outside` of them."""
    from executorch.exir import to_edge_transform_and_lower
    from executorch.exir.backend.partitioner import Partitioner

    class Counting(Partitioner):  # type: ignore[misc]
        """Asks the other partitioner, and ends the lowering with what that one would take.

        Without the end, ExecuTorch would need a delegate for what it left whole for this one.
        """

        def partition(self, exported_program: Program) -> Any:
            found = partitioner.partition(exported_program)
            left = [n for n in exported_program.graph.nodes if "delegation_tag" not in n.meta]
            raise _Counted(len(found.partition_tags), sum(map(_is_operator, left)))

        def ops_to_not_decompose(self, ep: Program) -> Any:
            return partitioner.ops_to_not_decompose(ep)

    try:
        to_edge_transform_and_lower(
            program,
            partitioner=[Counting(getattr(partitioner, "spec", {}))],
            transform_passes=passes,
            compile_config=edge_config(),
        )
    except _Counted as found:
        return {"partitions": found.partitions, "outside": found.outside}
    raise RuntimeError("ExecuTorch did not ask the partitioner")


def rewrite_record(
    log: Log, before: Mapping[str, int], after: Mapping[str, int], idle: Sequence[str]
) -> dict[str, Any]:
    """Return the rewrites in the form of `export.json`."""
    keys = ("rewrite", "reason", "file", "line")
    return {
        "tried": list(log.names),
        "applied": {name: log.applied[name] for name in log.names if log.applied[name]},
        "left": [
            {**dict(zip(keys, each, strict=True)), "places": n} for each, n in log.skipped.items()
        ],
        "before": dict(before),
        "after": dict(after),
        IDLE: list(idle),
    }


def dropped(names: Sequence[str], problem: str) -> dict[str, Any]:
    """Return the record of rewrites that were given up, since no program with them runs."""
    return {"tried": list(names), "applied": {}, "left": [], "dropped": problem}


def notes(found: Mapping[str, Any]) -> Iterator[str]:
    """Sentences for the user."""
    if "dropped" in found:
        why, names = found["dropped"].rstrip("."), ", ".join(found["tried"])
        what = "without rewrites" if names else "with every step of ExecuTorch's own lowering"
        yield f"The program was exported again {what}, since {why}." + (
            f" To keep those that work, leave out the one at fault of export.rewrites: [{names}]."
            if names
            else ""
        )
    if found["applied"]:
        done = ", ".join(f"{name} ({places} x)" for name, places in found["applied"].items())
        yield f"Rewritten for speed: {done}{_gain(found['before'], found['after'])}."
    by_rewrite: dict[str, list[str]] = {}
    for each in found["left"]:
        by_rewrite.setdefault(each["rewrite"], []).append(each["reason"])
    for name, reasons in by_rewrite.items():
        why = "; ".join(dict.fromkeys(reasons))
        yield f"The rewrite {name} left some operators unchanged: {why}."


def _gain(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    if before in ({}, after):
        return ""
    partitions = count(after["partitions"], "partition")
    outside = count(after["outside"], "operator")
    return (
        f"; {partitions} instead of {before['partitions']}, and {outside} outside of them instead "
        f"of {before['outside']}"
    )
