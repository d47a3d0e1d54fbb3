"""How much of the model the backend accepted."""

from __future__ import annotations

from typing import Any

# Takes one result of an operator with several; nothing is computed.
_NO_OPERATORS = ("getitem",)


def delegation(edge: Any) -> dict[str, Any]:
    """Nodes inside and outside the delegates, in total and by operator.

    Counted by ExecuTorch's own `get_delegation_info`, whose names for operators are kept:
    `aten_linear_default`.
    """
    from executorch.devtools.backend_debug import get_delegation_info

    info = get_delegation_info(edge.exported_program().graph_module)
    operators = {
        name: {"delegated": count.delegated, "undelegated": count.non_delegated}
        for name, count in sorted(info.delegation_by_operator.items())
        if name not in _NO_OPERATORS
    }
    return {
        "partitions": info.num_delegated_subgraphs,
        "delegated_nodes": sum(o["delegated"] for o in operators.values()),
        "undelegated_nodes": sum(o["undelegated"] for o in operators.values()),
        "operators": operators,
    }


def delegation_note(backend: str | None, counts: dict[str, Any]) -> str | None:
    """A sentence where the backend took nothing at all."""
    if backend == "portable" or counts["delegated_nodes"]:
        return None
    return f"The backend {backend} took none of the model: every operator runs on portable kernels."
