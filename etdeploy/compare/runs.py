"""Two run records, judged."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median

from etdeploy.bench.outputs.verdict import uncompared_outputs
from etdeploy.bench.records.generation import TextGeneration
from etdeploy.bench.records.record import RunRecord, Workload
from etdeploy.bench.records.stored import StoredRun
from etdeploy.bench.statistics import percentile
from etdeploy.bench.timing.series import spread_of
from etdeploy.compare.comparable import obstacles
from etdeploy.compare.differences import differences, measured_differently
from etdeploy.compare.disturbed import Usable, medians_of, usable_pairs, usable_starts
from etdeploy.compare.model import Comparison, OperatorChange, Pair, Ratio, Side, Verdict
from etdeploy.compare.outputs import output_differences
from etdeploy.compare.pairs import paired_ratio
from etdeploy.compare.statistics import BETWEEN_RECORDS, unpaired_ratio
from etdeploy.compare.texts import loss_remarks, text_remarks
from etdeploy.compare.verdict import MIN_DIFFERENCE_PERCENT, judge, why
from etdeploy.core.console import count

# Starts that are further apart hide a difference of 5 % from ten pairs.
_FAR_APART_PERCENT = 3.0
# The two states of a virtual machine's core, alone or shared with a neighbour, change after some
# tenths of a second. Starts of 50 ms had fastest inferences 4 % apart, and of 250 ms 2 %.
_SHORT_MS = 200.0


def compare_runs(
    a: StoredRun,
    b: StoredRun,
    min_difference_percent: float = MIN_DIFFERENCE_PERCENT,
    operators: Sequence[OperatorChange] = (),
) -> Comparison:
    """Judges B against A by their starts.

    Args:
        a: What B is measured against.
        b: What is judged.
        min_difference_percent: Smaller differences are not called one.
        operators: As `operator_changes` found them, where both have a profile.
    """
    paired = took_turns(a.record, b.record)
    usable = (usable_pairs if paired else usable_starts)(a.record, b.record)
    against = _refusals(a, b, usable)
    ratio = None if against else _ratio(usable, paired)
    pairs = _pairs(usable) if paired and ratio else ()
    if ratio is None:
        verdict, reason = Verdict.NOT_COMPARABLE, "; ".join(against)
    else:
        verdict = judge(ratio, min_difference_percent)
        reason = why(ratio, len(pairs), min_difference_percent)
    return Comparison(
        metric=a.record.workload.metric,
        a=_side(a),
        b=_side(b),
        ratio=ratio,
        pairs=pairs,
        verdict=verdict,
        reason=reason,
        statistic=usable.statistic,
        remarks=() if ratio is None else tuple(_remarks(a.record, b.record, usable, paired)),
        differences=differences(a.record, b.record),
        operators=() if ratio is None else tuple(operators),
        outputs=() if ratio is None else output_differences(a, b),
    )


def took_turns(a: RunRecord, b: RunRecord) -> bool:
    """Whether the starts of both are pairs."""
    together = a.interleaved_with == b.run_id and b.interleaved_with == a.run_id
    return together and len(a.workload.runs) == len(b.workload.runs) > 0


def _refusals(a: StoredRun, b: StoredRun, usable: Usable) -> tuple[str, ...]:
    found = obstacles(a, b)
    # A simulator's times, or a device's that is another, need no further reason.
    if found:
        return found
    if usable.obstacles:
        return usable.obstacles
    if not all(0 < time < float("inf") for time in (*usable.a_ms, *usable.b_ms)):
        return ("a start's median is not a positive time",)
    return ()


def _ratio(usable: Usable, paired: bool) -> Ratio:
    if paired:
        return paired_ratio(usable.a_ms, usable.b_ms)
    return unpaired_ratio(usable.a_ms, usable.b_ms)


def _pairs(usable: Usable) -> tuple[Pair, ...]:
    return tuple(
        Pair(a_ms=a, b_ms=b, ratio=b / a) for a, b in zip(usable.a_ms, usable.b_ms, strict=True)
    )


def _side(run: StoredRun) -> Side:
    """What the record says of itself, disturbed starts included."""
    medians = medians_of(run.record)
    return Side(
        name=run.record.recipe.name,
        run_id=run.record.run_id,
        record=str(run.record_path),
        median_ms=percentile(medians, 50),
        starts=len(medians),
        spread_percent=_spread_percent(run.record),
    )


def _spread_percent(record: RunRecord) -> float | None:
    starts = record.workload.runs
    return spread_of(starts).between_percent if starts else None


def _remarks(a: RunRecord, b: RunRecord, usable: Usable, paired: bool) -> Iterator[str]:
    if not paired:
        yield (
            "The runs were measured at different times: the interval includes what records of "
            f"the same thing are taken to differ by, {100 * BETWEEN_RECORDS:.0f} % or more. "
            "Recipes that take turns show smaller differences: etdeploy compare A.yaml B.yaml"
        )
        if min(len(usable.a_ms), len(usable.b_ms)) == 1:
            yield "A run with one start does not show how far its starts are apart."
    yield from usable.remarks
    if usable.medians_ms:
        yield f"{_by_medians(paired_ratio(*usable.medians_ms))}."
    yield from _conditions(a, b)
    yield from _short_starts(a, b) if paired else ()
    yield from _compared_at(a.workload, b.workload)
    yield from loss_remarks(a.program, b.program)
    unchecked = [n for n, r in zip("AB", (a, b), strict=True) if not r.workload.outputs_compared]
    if unchecked:
        yield f"Outputs were not checked: nothing was expected of {' and '.join(unchecked)}."
    if uncompared_outputs(a) or uncompared_outputs(b):
        yield "Outputs that are NaN or infinite in the model too were not checked."


def _short_starts(a: RunRecord, b: RunRecord) -> Iterator[str]:
    """That starts are too short to agree well, where they do not."""
    if max(_spread_percent(record) or 0 for record in (a, b)) < _FAR_APART_PERCENT:
        return
    times_ms = [median(medians_of(record)) for record in (a, b)]
    samples = min(start.samples for record in (a, b) for start in record.workload.runs)
    if samples * max(times_ms) < _SHORT_MS:
        enough = min(_round_up(2 * _SHORT_MS / min(times_ms)), 1_000_000)
        yield (
            f"A start times {count(samples, a.workload.sample)} in "
            f"{samples * max(times_ms):.3g} ms. Longer starts agree better: "
            f"--set benchmark.iterations={enough}"
        )


def _round_up(number: float) -> int:
    """To one digit."""
    unit: int = 10 ** (len(str(int(number))) - 1)
    return unit * math.ceil(number / unit)


def _by_medians(ratio: Ratio) -> str:
    between = "" if ratio.low is None else f", between {ratio.low:.3f} and {ratio.high:.3f}"
    return f"By medians, B takes {ratio.median:.3f} times as long as A{between}"


def _compared_at(a: Workload, b: Workload) -> Iterator[str]:
    """At which of several sizes or points."""
    if isinstance(a, TextGeneration):
        if len(a.points) > 1:
            yield f"Compared at the first point: {a.first.label}."
        yield from text_remarks(a, b)
    elif a.sizes:
        yield f"Compared at the first size, {a.sizes[0].name}."


def _conditions(a: RunRecord, b: RunRecord) -> Iterator[str]:
    changed = measured_differently(a, b)
    if changed:
        yield f"They were measured differently: {', '.join(changed)}."
    hot = [n for n, r in zip("AB", (a, b), strict=True) if _stayed_hot(r)]
    if hot:
        yield f"The device did not cool down before every start of {' and '.join(hot)}."
    if not differences(a, b):
        yield "Nothing that is known differs between A and B: any difference is the measurement's."
    if a.device.facts.emulator:
        yield "Measured in an emulator: the ratio on a device is another."


def _stayed_hot(record: RunRecord) -> bool:
    return any(start.cooldown and not start.cooldown.reached for start in record.workload.runs)
