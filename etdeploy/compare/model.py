"""A comparison of two runs as a value."""

from __future__ import annotations

from etdeploy.core.kinds import Kind
from etdeploy.core.values import Value


class Verdict(Kind):
    """What a comparison found about B, measured against A."""

    FASTER = "faster"
    SLOWER = "slower"
    NO_DIFFERENCE = "no difference found"
    NOT_COMPARABLE = "not comparable"


class Statistic(Kind):
    """What stands for a start."""

    MEDIAN = "median"
    """Half of its inferences took no longer."""
    FASTEST = "fastest"
    """Its fastest inference: other work delays it least."""


class Side(Value):
    """One of the two.

    Attributes:
        name: The recipe, as a person tells the two apart.
        run_id: Of its record.
        record: The record's file on this machine; null where it is only in the history.
        median_ms: Median of its starts' medians.
        starts: How many there are.
        spread_percent: Between its starts; null with one.
    """

    name: str
    run_id: str
    record: str | None
    median_ms: float
    starts: int
    spread_percent: float | None


class Ratio(Value):
    """B's time by A's, with an interval at 95 % confidence; null where it cannot be said.

    Attributes:
        median: Below 1 where B is faster.
        low: Lower end of the interval.
        high: Upper end of the interval.
    """

    median: float
    low: float | None
    high: float | None


class Pair(Value):
    """Two starts that followed each other.

    Attributes:
        a_ms: Of A's start, as `statistic` says.
        b_ms: The same of B's.
        ratio: B's by A's.
    """

    a_ms: float
    b_ms: float
    ratio: float


class OperatorChange(Value):
    """An operator or delegate node whose time changed.

    Attributes:
        name: Of the operator or the delegate's node.
        module: The module that it belongs to; empty where it is not known.
        a_ms: Self time in one inference of A; null where A does not have it.
        b_ms: The same of B.
    """

    name: str
    module: str
    a_ms: float | None
    b_ms: float | None


class OutputDifference(Value):
    """How far the outputs of both are apart.

    Attributes:
        name: Of the output.
        max_abs_error: The largest difference; null where they cannot be compared.
        cosine_similarity: From -1 to 1; null for integers.
        problem: Why they cannot be compared.
    """

    name: str
    max_abs_error: float | None
    cosine_similarity: float | None
    problem: str | None = None


class Comparison(Value):
    """Two runs, judged.

    Attributes:
        metric: What is compared: `latency_ms`; of text `token_ms`, the time of each token after the
            first at the first point, or `ttft_ms` where there is only a first one.
        a, b: The two.
        ratio: B's by A's; null where they are not comparable.
        pairs: Empty where the starts did not take turns.
        statistic: What stands for a start, in the ratio and in the pairs.
        verdict: What was found.
        reason: Why, in a sentence.
        remarks: Sentences that weaken it.
        differences: What is under test, as `key A -> B`.
        operators: Those that changed most, the largest change first.
        outputs: B's against A's.
    """

    metric: str
    a: Side
    b: Side
    ratio: Ratio | None
    pairs: tuple[Pair, ...]
    verdict: Verdict
    reason: str
    statistic: Statistic = Statistic.MEDIAN
    remarks: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()
    operators: tuple[OperatorChange, ...] = ()
    outputs: tuple[OutputDifference, ...] = ()
