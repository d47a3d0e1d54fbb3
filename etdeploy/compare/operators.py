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

    Changes below 1 % of the longer inference are left out. An operator that only A has and one that
    only B has are one row where they do the work of the same module: a quantised layer has another
    name.

    Args:
        a_ms: By name and module.
        b_ms: The same of B.
    """
    least = _LEAST_SHARE * max(sum(a_ms.values()), sum(b_ms.values()))
    replaced = _replaced(a_ms, b_ms)
    changes = [
        OperatorChange(name=key[0], module=key[1], a_ms=a_ms.get(key), b_ms=b_ms.get(key))
        for key in dict.fromkeys((*a_ms, *b_ms))
        if key not in replaced and key not in replaced.values()
    ]
    changes += [
        OperatorChange(name=f"{a[0]} -> {b[0]}", module=a[1], a_ms=a_ms[a], b_ms=b_ms[b])
        for a, b in replaced.items()
    ]
    changes.sort(key=_size, reverse=True)
    return tuple(change for change in changes[:_MOST] if _size(change) >= least > 0)


def _replaced(a_ms: OperatorTimes, b_ms: OperatorTimes) -> dict[tuple[str, str], tuple[str, str]]:
    """Operators of A with what stands in their place in B."""
    gone, new = (
        {module: [key for key in own if key[1] == module and key not in other] for _, module in own}
        for own, other in ((a_ms, b_ms), (b_ms, a_ms))
    )
    return {
        keys[0]: new[module][0]
        for module, keys in gone.items()
        if module and len(keys) == 1 and len(new.get(module, ())) == 1
    }


def _size(change: OperatorChange) -> float:
    return abs((change.b_ms or 0.0) - (change.a_ms or 0.0))
