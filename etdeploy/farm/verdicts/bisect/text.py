"""A bisection for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from etdeploy.core.text.layout import table
from etdeploy.farm.verdicts.bisect.model import Bisection, Side, Step
from etdeploy.history.metrics import title


def bisection_text(found: Bisection, width: int | None = None) -> str:
    """The log and the result."""
    return "\n".join(_lines(found, width))


def _lines(found: Bisection, width: int | None) -> Iterator[str]:
    ends = (
        Step(candidate=found.good, side=Side.GOOD, ratio=1.0),
        Step(candidate=found.bad, side=Side.BAD, ratio=found.ratio),
    )
    rows = [
        [step.candidate.label, str(step.side), _ratio(step), step.reason or None]
        for step in (*ends, *found.steps)
    ]
    yield table(("candidate", "is", "by good", "remark"), rows, right=("by good",), width=width)
    yield ""
    what = f"{title(found.metric)} on {found.device}, {100 * (found.ratio - 1):+.1f} % in all"
    if len(found.first_bad) == 1:
        yield f"first bad: {found.first_bad[0].label}"
        yield f"last good: {found.last_good.label}"
    else:
        yield "first bad: one of these, since those before the last cannot be measured"
        yield from (f"  {candidate.label}" for candidate in found.first_bad)
        yield f"last good: {found.last_good.label}"
    yield what


def _ratio(step: Step) -> str | None:
    if step.ratio is None:
        return None
    between = "" if step.low is None else f" ({step.low:.3f} to {step.high:.3f})"
    return f"{step.ratio:.3f}{between}"
