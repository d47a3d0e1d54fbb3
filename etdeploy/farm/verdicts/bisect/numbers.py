"""One number of two runs that took turns, as pairs and as a ratio."""

from __future__ import annotations

from collections.abc import Sequence

from etdeploy.bench.records.stored import StoredRun
from etdeploy.compare.model import Ratio, Verdict
from etdeploy.compare.pairs import paired_ratio
from etdeploy.compare.runs import compare_runs
from etdeploy.core.errors import MismatchError, RunError, UsageError
from etdeploy.history.metrics import metrics_of

Pairs = tuple[tuple[float, float], ...]
# Of each start, besides the headline.
_OF_STARTS = {"load_ms": "load_ms", "first_inference_ms": "first_inference_ms"}


def pairs_of(good: StoredRun, other: StoredRun, metric: str | None) -> Pairs:
    """The number of both, start by start; a single pair where a run has it once.

    Args:
        good: The run of the good one.
        other: The run that took turns with it.
        metric: Name of the metric; None for what records are compared by.

    Raises:
        RunError: The two cannot be compared.
        MismatchError: The outputs of one are wrong.
        UsageError: They do not have the number.
    """
    comparison = compare_runs(good, other)
    if comparison.verdict is Verdict.NOT_COMPARABLE:
        kind = MismatchError if "outputs" in comparison.reason else RunError
        raise kind(f"it cannot be compared: {comparison.reason}")
    if metric is None or metric == comparison.metric:
        return tuple((pair.a_ms, pair.b_ms) for pair in comparison.pairs)
    if metric in _OF_STARTS:
        sides = [[getattr(start, _OF_STARTS[metric]) for start in run.record.workload.runs]
                 for run in (good, other)]  # fmt: skip
        return tuple(zip(*sides, strict=True))
    values = [metrics_of(run.record).get(metric) for run in (good, other)]
    if not values[0] or not values[1]:
        raise UsageError(
            f"the runs have no {metric}",
            place="--metric",
            remedy=f"They have {', '.join(metrics_of(good.record))}",
        )
    return ((values[0], values[1]),)


def ratio_of(pairs: Sequence[tuple[float, float]], metric: str | None) -> Ratio:
    """The other's number by the good one's; exact for a number that a run has once.

    Args:
        pairs: Of all measurements of the two.
        metric: As for `pairs_of`.
    """
    if metric in ("program_bytes",):
        return _exact(pairs)
    return paired_ratio([a for a, _ in pairs], [b for _, b in pairs])


def is_exact(metric: str | None) -> bool:
    """Whether measuring again gives the same."""
    return metric == "program_bytes"


def _exact(pairs: Sequence[tuple[float, float]]) -> Ratio:
    value = pairs[-1][1] / pairs[-1][0]
    return Ratio(median=value, low=value, high=value)
