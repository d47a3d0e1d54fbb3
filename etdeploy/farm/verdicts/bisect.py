"""Bisects: measures candidates interleaved with the good one, and halves."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from etdeploy.bench.records.stored import StoredRun
from etdeploy.compare.model import Ratio, Verdict, judge
from etdeploy.compare.runs import compare_runs
from etdeploy.compare.statistics import MIN_PAIRS, paired_ratio
from etdeploy.core.errors import (
    DeviceError,
    EtdeployError,
    Interrupted,
    MismatchError,
    RunError,
    StoreError,
    UsageError,
)
from etdeploy.core.hashing import digest_json
from etdeploy.core.layout import cut, table
from etdeploy.core.values import StrEnum, Value
from etdeploy.history.series import metric_title, read_metrics
from etdeploy.recipe.load import LoadedRecipe


class CandidateSide(StrEnum):
    """Whether a candidate is good or bad; a skipped one cannot be measured."""

    GOOD = "good"
    BAD = "bad"
    SKIPPED = "skipped"


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
        ratio: Its number by the good one's; null where it could not be measured.
        low, high: The interval at 95 % confidence; null without one.
        reason: Why it was skipped, or how sure the side is.
    """

    candidate: Candidate
    side: CandidateSide
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str = ""
    run_ids: tuple[str, ...] = ()


class Bisection(Value):
    """The result of a bisection.

    Attributes:
        ratio: Bad's number by good's.
        steps: In their order, without good and bad themselves.
        first_bad: The first candidate that is worse. Several, if all but the last of them could not
            be measured.
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
    ends = (
        BisectStep(candidate=found.good, side=CandidateSide.GOOD, ratio=1.0),
        BisectStep(candidate=found.bad, side=CandidateSide.BAD, ratio=found.ratio),
    )
    rows = [
        [step.candidate.label, str(step.side), _ratio(step), step.reason or None]
        for step in (*ends, *found.steps)
    ]
    columns = ("candidate", "is", "by good", "remark")
    lines = [table(columns, rows, right=("by good",), width=width), ""]
    if len(found.first_bad) == 1:
        lines.append(f"first bad: {found.first_bad[0].label}")
    else:
        lines.append("first bad: one of these; all but the last cannot be measured")
        lines += [f"  {candidate.label}" for candidate in found.first_bad]
    change = 100 * (found.ratio - 1)
    lines.append(f"last good: {found.last_good.label}")
    lines.append(f"{metric_title(found.metric)} on {found.device}, {change:+.1f} % in all")
    return "\n".join(lines)


def _ratio(step: BisectStep) -> str | None:
    if step.ratio is None:
        return None
    between = "" if step.low is None else f" ({step.low:.3f} to {step.high:.3f})"
    return f"{step.ratio:.3f}{between}"


# A candidate between good and bad is measured so often before it is assigned to a side anyway.
_MOST_TRIES = 3
_SETS_OF_SINGLES = 4
# Characters of a reason in the table.
_LONGEST = 200
# Errors that another candidate would not change.
_ENDS = (DeviceError.exit_code, StoreError.exit_code, Interrupted.exit_code)

OpenCandidate = Callable[[Candidate], AbstractContextManager[LoadedRecipe]]
"""Yields a candidate's recipe, with its files for as long as the block runs.

It raises an EtdeployError where there is none.
"""
Measure = Callable[[LoadedRecipe, LoadedRecipe], tuple[StoredRun, StoredRun]]
"""Measures two recipes interleaved on the device."""
Tell = Callable[[str], None]


@dataclass(frozen=True)
class BisectRequest:
    """Which candidates to bisect, by which metric.

    Attributes:
        candidates: The earliest first: the first is good, and the last bad.
        metric: None for the metric that records are compared by.
        known: Steps of an earlier attempt, which are not measured again.
    """

    candidates: tuple[Candidate, ...]
    device: str
    metric: str | None = None
    known: tuple[BisectStep, ...] = ()


@dataclass(frozen=True)
class _Tools:
    open: OpenCandidate
    measure: Measure
    tell: Tell


def bisect(
    request: BisectRequest,
    open_candidate: OpenCandidate,
    measure: Measure,
    tell: Tell,
    save: Callable[[BisectStep], None],
) -> Bisection:
    """Find the first candidate that is worse.

    `tell` is called with a message for each step, and `save` with each step that is done: a
    bisection that was stopped resumes from those.

    Raises:
        UsageError: There are fewer than two candidates, or good and bad do not differ.
        EtdeployError: Good or bad cannot be measured, or the device is gone.
        Interrupted: It was stopped.
    """
    candidates = request.candidates
    if len(candidates) < 2:
        raise UsageError("there is nothing between good and bad", remedy="Name two that differ")
    tools = _Tools(open_candidate, measure, tell)
    good, bad = candidates[0], candidates[-1]
    with open_candidate(good) as reference:
        tell(f"measuring good, {good.label}, and bad, {bad.label}, interleaved")
        whole, name = _compare_ends(request, bad, reference, tools)
        tell(f"bad has {whole.median:.3f} times as much as good")
        tried = {step.candidate.id: step for step in request.known}
        while candidate := next_candidate(candidates, tried):
            step = _try_candidate(request, candidate, reference, whole, tools)
            tried[candidate.id] = step
            save(step)
            tell(_step_text(step))
    last_good, found = suspects(candidates, tried)
    return Bisection(
        metric=name, device=request.device, good=good, bad=bad, ratio=whole.median,
        steps=tuple(tried.values()), first_bad=found, last_good=last_good,
    )  # fmt: skip


def _compare_ends(
    request: BisectRequest, bad: Candidate, reference: LoadedRecipe, tools: _Tools
) -> tuple[Ratio, str]:
    """Measure bad's number by good's, and the number's name."""
    pairs: Pairs = ()
    with tools.open(bad) as recipe:
        for _ in range(_sets(request.metric)):
            runs = tools.measure(reference, recipe)
            pairs += pairs_of(*runs, request.metric)
            if len(pairs) >= MIN_PAIRS:
                break
    name = request.metric or runs[0].record.workload.metric
    found = ratio_of(pairs, request.metric)
    verdict = judge(found)
    if verdict is Verdict.SLOWER:
        return found, name
    between = "" if found.low is None else f", between {found.low:.3f} and {found.high:.3f}"
    why = "the bad one is the better one" if verdict is Verdict.FASTER else "no difference is found"
    raise UsageError(
        f"{name} of bad is {found.median:.3f} times that of good{between}: {why}",
        place=f"{request.candidates[0].label} and {bad.label} on {request.device}",
        remedy="Exchange the two."
        if verdict is Verdict.FASTER
        else "Name two that differ, or take more starts: --runs 40",
    )


def _try_candidate(
    request: BisectRequest,
    candidate: Candidate,
    reference: LoadedRecipe,
    whole: Ratio,
    tools: _Tools,
) -> BisectStep:
    """Measure a candidate until it is sure to be nearer to good or to bad."""
    pairs: Pairs = ()
    ids: tuple[str, ...] = ()
    tools.tell(f"measuring {candidate.label}")
    try:
        with tools.open(candidate) as recipe:
            for _ in range(_sets(request.metric) * _MOST_TRIES):
                runs = tools.measure(reference, recipe)
                ids = (*ids, runs[1].record.run_id)
                pairs += pairs_of(*runs, request.metric)
                enough = len(pairs) >= MIN_PAIRS or is_exact(request.metric)
                if enough and _is_sure(ratio_of(pairs, request.metric), whole):
                    break
    except EtdeployError as error:
        if error.exit_code in _ENDS or isinstance(error, Interrupted):
            raise
        why = cut(" ".join(error.message.split()), _LONGEST)
        return BisectStep(
            candidate=candidate, side=CandidateSide.SKIPPED, reason=f"{error.kind}: {why}"
        )
    return _step(candidate, ratio_of(pairs, request.metric), whole, ids)


def _sets(metric: str | None) -> int:
    """How many measurements give enough pairs, at most."""
    return 1 if metric is None or is_exact(metric) else _SETS_OF_SINGLES


def _is_sure(found: Ratio, whole: Ratio) -> bool:
    """Whether the interval is on one side of the middle between good and bad."""
    if found.low is None or found.high is None:
        return False
    middle = math.sqrt(whole.median)
    return found.low > middle or found.high < middle


def _step(candidate: Candidate, found: Ratio, whole: Ratio, ids: Sequence[str]) -> BisectStep:
    is_bad = found.median > math.sqrt(whole.median)
    return BisectStep(
        candidate=candidate, side=CandidateSide.BAD if is_bad else CandidateSide.GOOD,
        ratio=found.median, low=found.low, high=found.high, run_ids=tuple(ids),
        reason="" if _is_sure(found, whole) else "nearer to it, but that may be chance",
    )  # fmt: skip


def _step_text(step: BisectStep) -> str:
    ratio = "" if step.ratio is None else f", {step.ratio:.3f} times as much as good"
    why = f" ({step.reason})" if step.reason else ""
    return f"{step.side}: {step.candidate.label}{ratio}{why}"


Pairs = tuple[tuple[float, float], ...]
# HeadlineValues of each start, besides the headline metric.
_OF_STARTS = ("load_ms", "first_inference_ms")


def pairs_of(good: StoredRun, other: StoredRun, metric: str | None) -> Pairs:
    """Pair the number of two runs, start by start; a single pair where a run has it once."""
    comparison = compare_runs(good, other)
    if comparison.verdict is Verdict.NOT_COMPARABLE:
        kind = MismatchError if "outputs" in comparison.reason else RunError
        raise kind(f"the runs cannot be compared: {comparison.reason}")
    if metric is None or metric == comparison.metric:
        return tuple((pair.a_ms, pair.b_ms) for pair in comparison.pairs)
    if metric in _OF_STARTS:
        sides = [[getattr(start, metric) for start in run.record.workload.runs]
                 for run in (good, other)]  # fmt: skip
        return tuple(zip(*sides, strict=True))
    values = [read_metrics(run.record).get(metric) for run in (good, other)]
    if not values[0] or not values[1]:
        raise UsageError(
            f"the runs have no {metric}",
            place="--metric",
            remedy=f"They have {', '.join(read_metrics(good.record))}",
        )
    return ((values[0], values[1]),)


def ratio_of(pairs: Pairs, metric: str | None) -> Ratio:
    """The other's number by the good one's, over all measurements of the two."""
    if is_exact(metric):
        value = pairs[-1][1] / pairs[-1][0]
        return Ratio(median=value, low=value, high=value)
    return paired_ratio([a for a, _ in pairs], [b for _, b in pairs])


def is_exact(metric: str | None) -> bool:
    """Whether another measurement gives the same number."""
    return metric == "program_bytes"


Tried = Mapping[str, BisectStep]


def bounds(candidates: Sequence[Candidate], tried: Tried) -> tuple[int, int]:
    """The places of the first bad candidate, and of the last good one before it."""
    sides = [tried[each.id].side if each.id in tried else None for each in candidates]
    bad = next((i for i in range(1, len(sides)) if sides[i] is CandidateSide.BAD), len(sides) - 1)
    good = next((i for i in range(bad - 1, 0, -1) if sides[i] is CandidateSide.GOOD), 0)
    return good, bad


def next_candidate(candidates: Sequence[Candidate], tried: Tried) -> Candidate | None:
    """The untried candidate nearest to the middle, as `git bisect skip` has it; None at the end."""
    good, bad = bounds(candidates, tried)
    middle = (good + bad) / 2
    left = [i for i in range(good + 1, bad) if candidates[i].id not in tried]
    return candidates[min(left, key=lambda i: (abs(i - middle), i))] if left else None


def suspects(
    candidates: Sequence[Candidate], tried: Tried
) -> tuple[Candidate, tuple[Candidate, ...]]:
    """The last good candidate, and those of which one is the first bad one."""
    good, bad = bounds(candidates, tried)
    return candidates[good], tuple(candidates[good + 1 : bad + 1])


def most_steps(candidates: Sequence[Candidate]) -> int:
    """How many are tried at most if none is skipped."""
    return max(0, (len(candidates) - 2).bit_length())


class BisectState(Value):
    """What was request, and the steps that are done."""

    good: Candidate
    bad: Candidate
    steps: tuple[BisectStep, ...] = ()


def state_file(
    output: Path, request: BisectRequest, recipe: str, settings: tuple[str, ...]
) -> Path:
    """The file of a bisection: another one for everything that changes what is measured."""
    candidates = [each.model_dump() for each in request.candidates]
    named = [request.device, request.metric, recipe, list(settings), candidates]
    return output / f"bisect-{digest_json(named)[:12]}.json"


def saved_steps(file: Path) -> tuple[BisectStep, ...]:
    """The steps that are done; none without a file."""
    state = BisectState.load_or_none(file)
    return state.steps if state else ()


def save_step(file: Path, request: BisectRequest, step: BisectStep) -> None:
    steps = (*saved_steps(file), step)
    BisectState(good=request.candidates[0], bad=request.candidates[-1], steps=steps).save(file)
