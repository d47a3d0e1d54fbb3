"""A bisection as a value."""

from __future__ import annotations

from collections.abc import Iterator

from etdeploy.core.layout import table
from etdeploy.core.values import Kind, Value
from etdeploy.history.metrics import title


class CandidateSide(Kind):
    """What a candidate turned out to be."""

    GOOD = "good"
    BAD = "bad"
    SKIPPED = "skipped"
    """It cannot be measured."""


class Candidate(Value):
    """A commit or a program.

    Attributes:
        id: The commit's whole digest, or the program's path.
        label: For people: the short digest and the commit's first line, or the file's name.
    """

    id: str
    label: str


class BisectStep(Value):
    """A candidate that was tried.

    Attributes:
        candidate: Which.
        side: What it is.
        ratio: Its number by the good one's; null where it could not be measured.
        low, high: The interval at 95 % confidence; null without one.
        reason: Why it was skipped, or how sure the side is.
        run_ids: Of its records.
    """

    candidate: Candidate
    side: CandidateSide
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str = ""
    run_ids: tuple[str, ...] = ()


class Bisection(Value):
    """What a bisection found.

    Attributes:
        metric: The number that became worse.
        device: Where.
        good, bad: Between which it was looked for.
        ratio: Bad's number by good's.
        steps: Those that were tried, in their order; good and bad themselves are not among them.
        first_bad: The first candidate that is worse. Several, if all but the last of them could not
            be measured.
        last_good: The candidate before.
    """

    metric: str
    device: str
    good: Candidate
    bad: Candidate
    ratio: float
    steps: tuple[BisectStep, ...]
    first_bad: tuple[Candidate, ...]
    last_good: Candidate


def bisection_text(found: Bisection, width: int | None = None) -> str:
    """The log and the result."""
    return "\n".join(_lines(found, width))


def _lines(found: Bisection, width: int | None) -> Iterator[str]:
    ends = (
        BisectStep(candidate=found.good, side=CandidateSide.GOOD, ratio=1.0),
        BisectStep(candidate=found.bad, side=CandidateSide.BAD, ratio=found.ratio),
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


def _ratio(step: BisectStep) -> str | None:
    if step.ratio is None:
        return None
    between = "" if step.low is None else f" ({step.low:.3f} to {step.high:.3f})"
    return f"{step.ratio:.3f}{between}"
