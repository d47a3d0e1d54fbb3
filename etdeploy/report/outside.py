"""The time outside of delegates, in words."""

from __future__ import annotations

from collections.abc import Sequence

from etdeploy.bench.records.outputs import Outside, OutsideOperator
from etdeploy.core.console import count
from etdeploy.report import formatting

_MOST_OPERATORS = 4
# What is below is not worth a look.
_LEAST_SHARE = 0.001


def outside_text(outside: Outside, is_delegated: bool) -> str:
    """A sentence without its end: the share, and the operators that take most of it."""
    worth = [each for each in outside.operators if each.share >= _LEAST_SHARE]
    parts = [_told(each) for each in worth[:_MOST_OPERATORS]]
    share = f"{_percent(outside.share)} of the time is outside of delegates"
    if not is_delegated:
        share = "most of the time"
    if not parts:
        return share if is_delegated else ""
    return f"{share}: {'; '.join(parts)}"


def _told(operator: OutsideOperator) -> str:
    text = f"{_percent(operator.share)} in {operator.name}"
    where = [*_one(operator.modules, "module"), *_one(operator.places, "line")]
    why = operator.reasons[0] if len(operator.reasons) == 1 else ""
    text += f" ({', '.join(where)})" if where else ""
    return f"{text}, since {why}" if why else text


def _one(names: Sequence[str], what: str) -> list[str]:
    return [names[0]] if len(names) == 1 else [count(len(names), what)] if names else []


def _percent(share: float) -> str:
    return formatting.percent(100 * share)
