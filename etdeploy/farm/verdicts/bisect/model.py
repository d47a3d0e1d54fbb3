"""A bisection as a value."""

from __future__ import annotations

from etdeploy.core.kinds import Kind
from etdeploy.core.values import Value


class Side(Kind):
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


class Step(Value):
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
    side: Side
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
    steps: tuple[Step, ...]
    first_bad: tuple[Candidate, ...]
    last_good: Candidate
