"""Bisects: measures candidates in turns with the good one, and halves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from etdeploy.core.values import Kind, Value
from etdeploy.history.series import metrics_of, title
from etdeploy.recipe.load import LoadedRecipe


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


# A candidate between good and bad is measured so often before its side is told anyway.
_MOST_TRIES = 3
_SETS_OF_SINGLES = 4
# Of a reason, in a table.
_LONGEST = 200
# What no other candidate would change.
_ENDS = (DeviceError.exit_code, StoreError.exit_code, Interrupted.exit_code)

Opened = Callable[[Candidate], AbstractContextManager[LoadedRecipe]]
"""Gives a candidate's recipe, with its files for as long as the block runs.

It raises an EtdeployError where there is none.
"""
Measure = Callable[[LoadedRecipe, LoadedRecipe], tuple[StoredRun, StoredRun]]
"""Measures two recipes in turns on the device."""
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Asked:
    """What is looked for.

    Attributes:
        candidates: The earliest first: the first is good, and the last bad.
        device: As the command line names it.
        metric: The number; None for what records are compared by.
        known: Steps of an earlier attempt, which are not measured again.
    """

    candidates: tuple[Candidate, ...]
    device: str
    metric: str | None = None
    known: tuple[BisectStep, ...] = ()


@dataclass(frozen=True)
class _Tools:
    opened: Opened
    measure: Measure
    tell: Tell
    kept: Callable[[BisectStep], None]


def bisect(
    asked: Asked, opened: Opened, measure: Measure, tell: Tell, kept: Callable[[BisectStep], None]
) -> Bisection:
    """Finds the first candidate that is worse.

    Args:
        asked: What is looked for.
        opened: Gives a candidate's recipe.
        measure: Measures two in turns.
        tell: Called with a sentence for each step.
        kept: Called with each step that is done, so that it can be gone on with.

    Raises:
        UsageError: There are fewer than two candidates, or good and bad do not differ.
        EtdeployError: Good or bad cannot be measured, or the device is gone.
        Interrupted: It was stopped; the steps that were kept are known then.
    """
    candidates = asked.candidates
    if len(candidates) < 2:
        raise UsageError("there is nothing between good and bad", remedy="Name two that differ.")
    tools = _Tools(opened, measure, tell, kept)
    good, bad = candidates[0], candidates[-1]
    with opened(good) as reference:
        tell(f"measuring good, {good.label}, and bad, {bad.label}, in turns")
        whole, name = _whole(asked, bad, reference, tools)
        tell(f"bad has {whole.median:.3f} times as much as good")
        tried = {step.candidate.id: step for step in asked.known}
        while candidate := next_candidate(candidates, tried):
            step = _tried(asked, candidate, reference, whole, tools)
            tried[candidate.id] = step
            kept(step)
            tell(_told(step))
    last_good, found = suspects(candidates, tried)
    return Bisection(
        metric=name, device=asked.device, good=good, bad=bad, ratio=whole.median,
        steps=tuple(tried.values()), first_bad=found, last_good=last_good,
    )  # fmt: skip


def _whole(
    asked: Asked, bad: Candidate, reference: LoadedRecipe, tools: _Tools
) -> tuple[Ratio, str]:
    """Bad's number by good's, and what the number is called."""
    pairs: Pairs = ()
    with tools.opened(bad) as recipe:
        for _ in range(_sets(asked.metric)):
            runs = tools.measure(reference, recipe)
            pairs += pairs_of(*runs, asked.metric)
            if len(pairs) >= MIN_PAIRS:
                break
    name = asked.metric or runs[0].record.workload.metric
    found = ratio_of(pairs, asked.metric)
    verdict = judge(found)
    if verdict is Verdict.SLOWER:
        return found, name
    between = "" if found.low is None else f", between {found.low:.3f} and {found.high:.3f}"
    why = "the bad one is the better one" if verdict is Verdict.FASTER else "no difference is found"
    raise UsageError(
        f"{name} of bad is {found.median:.3f} times that of good{between}: {why}",
        place=f"{asked.candidates[0].label} and {bad.label} on {asked.device}",
        remedy="Exchange the two."
        if verdict is Verdict.FASTER
        else "Name two that differ, or take more starts: --runs 40",
    )


def _tried(
    asked: Asked, candidate: Candidate, reference: LoadedRecipe, whole: Ratio, tools: _Tools
) -> BisectStep:
    """A candidate, measured until it is sure to be nearer to good or to bad."""
    pairs: Pairs = ()
    ids: tuple[str, ...] = ()
    tools.tell(f"measuring {candidate.label}")
    try:
        with tools.opened(candidate) as recipe:
            for _ in range(_sets(asked.metric) * _MOST_TRIES):
                runs = tools.measure(reference, recipe)
                ids = (*ids, runs[1].record.run_id)
                pairs += pairs_of(*runs, asked.metric)
                enough = len(pairs) >= MIN_PAIRS or is_exact(asked.metric)
                if enough and _is_sure(ratio_of(pairs, asked.metric), whole):
                    break
    except EtdeployError as error:
        if error.exit_code in _ENDS or isinstance(error, Interrupted):
            raise
        why = cut(" ".join(error.message.split()), _LONGEST)
        return BisectStep(
            candidate=candidate, side=CandidateSide.SKIPPED, reason=f"{error.kind}: {why}"
        )
    return _step(candidate, ratio_of(pairs, asked.metric), whole, ids)


def _sets(metric: str | None) -> int:
    """How many measurements give enough pairs, at most, where each gives a single one."""
    return 1 if metric is None or is_exact(metric) else _SETS_OF_SINGLES


def _middle(whole: Ratio) -> float:
    return math.sqrt(whole.median)


def _is_sure(found: Ratio, whole: Ratio) -> bool:
    """Whether the interval is on one side of the middle between good and bad."""
    if found.low is None or found.high is None:
        return False
    return found.low > _middle(whole) or found.high < _middle(whole)


def _step(candidate: Candidate, found: Ratio, whole: Ratio, ids: Sequence[str]) -> BisectStep:
    side = CandidateSide.BAD if found.median > _middle(whole) else CandidateSide.GOOD
    reason = "" if _is_sure(found, whole) else "nearer to it, but that may be chance"
    return BisectStep(
        candidate=candidate, side=side, ratio=found.median, low=found.low, high=found.high,
        reason=reason, run_ids=tuple(ids),
    )  # fmt: skip


def _told(step: BisectStep) -> str:
    ratio = "" if step.ratio is None else f", {step.ratio:.3f} times as much as good"
    why = f" ({step.reason})" if step.reason else ""
    return f"{step.side}: {step.candidate.label}{ratio}{why}"


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


Tried = Mapping[str, BisectStep]


def bounds(candidates: Sequence[Candidate], tried: Tried) -> tuple[int, int]:
    """The places of the last good and the first bad candidate.

    Args:
        candidates: The earliest first; the first is good, and the last bad.
        tried: The steps by the candidate's id. The first bad one counts, and before it the last
            good one.
    """
    sides = [tried[each.id].side if each.id in tried else None for each in candidates]
    bad = next((i for i in range(1, len(sides)) if sides[i] is CandidateSide.BAD), len(sides) - 1)
    good = next((i for i in range(bad - 1, 0, -1) if sides[i] is CandidateSide.GOOD), 0)
    return good, bad


def next_candidate(candidates: Sequence[Candidate], tried: Tried) -> Candidate | None:
    """The one nearest to the middle that was not tried; None at the end.

    One that was skipped is passed over, as `git bisect skip` does.
    """
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


_LENGTH = 12


class BisectState(Value):
    """What was asked, and the steps that are done."""

    good: Candidate
    bad: Candidate
    steps: tuple[BisectStep, ...] = ()


def state_file(output: Path, asked: Asked, recipe: str, settings: tuple[str, ...]) -> Path:
    """The file of a bisection: another one for everything that changes what is measured.

    Args:
        output: The folder for run records.
        asked: What is looked for.
        recipe: The recipe's path.
        settings: Overrides of the recipe.
    """
    candidates = [each.model_dump() for each in asked.candidates]
    named = [asked.device, asked.metric, recipe, list(settings), candidates]
    return output / f"bisect-{digest_json(named)[:_LENGTH]}.json"


def saved_steps(file: Path) -> tuple[BisectStep, ...]:
    """The steps that are done; none where there is no such file."""
    kept = BisectState.load_or_none(file)
    return kept.steps if kept else ()


def save_step(file: Path, asked: Asked, step: BisectStep) -> None:
    """Adds a step."""
    kept = BisectState(
        good=asked.candidates[0], bad=asked.candidates[-1], steps=(*saved_steps(file), step)
    )
    kept.save(file)
