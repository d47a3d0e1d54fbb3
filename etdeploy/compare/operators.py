"""Which operators take longer or shorter, from the times that a profile gives."""

from __future__ import annotations

from collections.abc import Mapping

from etdeploy.compare.model import OperatorChange

# An operator, or a delegate's node, with its module; self time in one inference, in milliseconds.
OperatorTimes = Mapping[tuple[str, str], float]
_MOST = 10
# A tracer changes times, and one trace shows no spread: what is smaller says nothing.
_LEAST_SHARE = 0.01


def operator_changes(a_ms: OperatorTimes, b_ms: OperatorTimes) -> tuple[OperatorChange, ...]:
    """The operators whose time changed most, the largest change first.

    Changes below 1 % of the longer inference are left out.

    Args:
        a_ms: By name and module.
        b_ms: The same of B.
    """
    least = _LEAST_SHARE * max(sum(a_ms.values()), sum(b_ms.values()))
    changes = [
        OperatorChange(name=key[0], module=key[1], a_ms=a_ms.get(key), b_ms=b_ms.get(key))
        for key in dict.fromkeys((*a_ms, *b_ms))
    ]
    changes.sort(key=_size, reverse=True)
    return tuple(change for change in changes[:_MOST] if _size(change) >= least > 0)


def _size(change: OperatorChange) -> float:
    return abs((change.b_ms or 0.0) - (change.a_ms or 0.0))
