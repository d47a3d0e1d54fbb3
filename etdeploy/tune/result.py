"""What a search found, as values: the best, the front, and why each value was chosen."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from etdeploy.compare.model import Comparison, Ratio, Verdict, judge
from etdeploy.compare.statistics import MIN_PAIRS, paired_ratio, unpaired_ratio
from etdeploy.core.errors import LimitError
from etdeploy.core.values import Value
from etdeploy.tune.metrics import (
    ERROR,
    METRICS,
    PEAK_MEMORY,
    PERPLEXITY,
    SIZE,
    Breach,
    Figures,
    breaches,
)
from etdeploy.tune.search import NOT_APPLICABLE, differing_knobs
from etdeploy.tune.space import Combination, Knob, LeftOut, plain_feature
from etdeploy.tune.tuner import Tuned

# What the front is about, besides the objective.
_FRONT = (PEAK_MEMORY, SIZE, ERROR, PERPLEXITY)
# Measurements of one number differ by as much: a front of such differences says nothing.
_SAME = 0.01
# An interval whose ends are further apart shows nothing, and not that both are equal.
_WIDE = 1.25


class Claim(Value):
    """How another value of a knob compares with that of the result.

    Attributes:
        key: Of the knob.
        value: Of the result, as text.
        other: The other value.
        ratio: Its time by that of the result; null where it was not measured beside it.
        verdict: What can be said about it.
        reason: Why it is excluded; empty if it is not.
        beside: The other settings of both, where these are not those of the result.
    """

    key: str
    value: str
    other: str
    ratio: Ratio | None
    verdict: Verdict
    reason: str = ""
    beside: str = ""

    @property
    def text(self) -> str:
        """A clause: `1 takes 1.612 times as long (1.551 to 1.684)`."""
        if self.reason:
            return f"{self.other} is excluded: {self.reason}"
        if self.ratio is None:
            return f"{self.other} was not measured beside it"
        where = f" with {self.beside}" if self.beside else ""
        if self.ratio.low is None or self.ratio.high is None:
            return f"{self.other} took {self.ratio.median:.2f} times as long{where}, in one start"
        between = f"{self.ratio.low:.3f} to {self.ratio.high:.3f}"
        includes_1 = self.ratio.low <= 1 <= self.ratio.high
        if includes_1 and self.ratio.high / self.ratio.low > _WIDE:
            return f"{self.other} cannot be told from it ({between} times as long{where})"
        if self.verdict == Verdict.NO_DIFFERENCE:
            return f"{self.other} is not measurably different ({between} times as long{where})"
        return f"{self.other} takes {self.ratio.median:.3f} times as long ({between}){where}"


class TunedCandidate(Value):
    """A combination with its numbers.

    Attributes:
        label: Its changes in short.
        changes: Values that differ from the recipe's, by dotted name; null for the default.
        figures: By metric, in milliseconds, bytes, joules, or without a unit.
        estimate: The objective as the search estimates it from all sessions; null where it was not
            measured.
        excluded: Why it cannot be the result; empty if it can.
        on_front: Whether no other one is better in every number.
        records: The folders of its run records.
    """

    label: str
    changes: dict[str, Any]
    figures: dict[str, float]
    estimate: float | None = None
    excluded: str = ""
    on_front: bool = False
    records: tuple[str, ...] = ()


class TuneResult(Value):
    """The result of a search on one device.

    Attributes:
        recipe: Its name.
        device: The device's name.
        minimize: The objective.
        limits: As the user wrote them.
        reason: Why the search ended.
        spent_s: All time that it took, that of earlier processes included.
        combinations: How many there are.
        best: The result; null if nothing meets the limits.
        base: The recipe as it is.
        measured: All that were measured or excluded after their export, the best first.
        claims: Why each value of the result was chosen.
        comparisons: Of the result with the runner-up and with the recipe as it is.
        preference: Why it was chosen among combinations that are equally fast; empty if it was not.
        knobs: What was varied.
        left_out: What was not, and why.
        files: The recipe and the page that were written.
    """

    recipe: str
    device: str
    minimize: str
    limits: tuple[str, ...]
    reason: str
    spent_s: float
    combinations: int
    best: TunedCandidate | None
    base: TunedCandidate
    measured: tuple[TunedCandidate, ...]
    claims: tuple[Claim, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    preference: str = ""
    knobs: tuple[Knob, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    files: dict[str, str] = {}


def tune_result(tuned: Tuned, recipe: str, device: str) -> TuneResult:
    """Everything that is reported of a search."""
    candidates = tuned.space.candidates
    front = pareto_front(tuned)
    rows = {n: _row(tuned, n, n in front) for n in _known(tuned)}
    ranked = [*tuned.ranking.order, *(n for n in rows if n not in tuned.ranking.order)]
    base = rows.get(0) or TunedCandidate(label=candidates[0].label, changes={}, figures={})
    return TuneResult(
        recipe=recipe,
        device=device,
        minimize=tuned.goal.minimize,
        limits=tuple(limit.text for limit in tuned.goal.limits),
        reason=str(tuned.reason),
        spent_s=tuned.found.spent_s,
        combinations=len(candidates),
        best=None if tuned.best is None else rows[tuned.best],
        base=base,
        measured=tuple(rows[n] for n in ranked),
        claims=tuple(_claims(tuned)),
        comparisons=tuple(comparison for _, comparison in tuned.comparisons),
        preference=tuned.preference,
        knobs=tuned.space.knobs,
        left_out=tuned.space.left_out,
    )


def _known(tuned: Tuned) -> list[int]:
    """The combinations of which there are numbers."""
    found = tuned.found
    exported = found.programs.keys() | found.program_failures.keys()
    return [
        n
        for n, candidate in enumerate(tuned.space.candidates)
        if candidate.key in found.figures
        or (
            n in tuned.excluded and candidate.program in exported and _is_first_of_program(tuned, n)
        )
    ]


def _is_first_of_program(tuned: Tuned, number: int) -> bool:
    """Whether it stands for its program: others differ in how the runner is started."""
    candidates = tuned.space.candidates
    program = candidates[number].program
    return next(n for n, c in enumerate(candidates) if c.program == program) == number


def _row(tuned: Tuned, number: int, on_front: bool) -> TunedCandidate:
    candidate = tuned.space.candidates[number]
    visits = [
        each
        for session in tuned.found.sessions
        for each in session.measured
        if each.candidate == candidate.key
    ]
    posterior = tuned.ranking.posterior
    return TunedCandidate(
        label=candidate.label,
        changes=dict(candidate.changes),
        figures={k: v for k, v in tuned.figures(number).items() if math.isfinite(v)},
        estimate=math.exp(posterior.mean[number]) if posterior is not None and visits else None,
        excluded=tuned.excluded.get(number, ""),
        on_front=on_front,
        records=tuple(visit.record for visit in visits),
    )


def pareto_front(tuned: Tuned) -> frozenset[int]:
    """The combinations of the ranking that no other one is better than in every number."""
    posterior = tuned.ranking.posterior
    if posterior is None:
        return frozenset()
    points = {
        number: {
            tuned.goal.minimize: math.exp(posterior.mean[number]),
            **{name: value for name, value in tuned.figures(number).items() if name in _FRONT},
        }
        for number in tuned.ranking.order
    }
    return frozenset(
        number
        for number, own in points.items()
        if not any(_dominates(other, own) for n, other in points.items() if n != number)
    )


def _dominates(a: Figures, b: Figures) -> bool:
    """Whether A is nowhere worse than B, and somewhere better by more than chance."""
    names = a.keys() & b.keys()
    no_worse = all(a[name] <= b[name] * (1 + _SAME / 10) for name in names)
    return no_worse and any(a[name] < b[name] * (1 - _SAME) for name in names)


def _claims(tuned: Tuned) -> Iterator[Claim]:
    """For each knob, its other values beside the result's."""
    if tuned.best is None:
        return
    own = tuned.space.candidates[tuned.best].features
    for place, knob in enumerate(tuned.space.knobs):
        values = dict.fromkeys(c.features[place] for c in tuned.space.candidates)
        for value in values:
            if value not in (own[place], NOT_APPLICABLE):
                yield _claim(tuned, knob.key, place, tuned.best, value)


def _claim(tuned: Tuned, key: str, place: int, best: int, other: str) -> Claim:
    """Another value of a knob beside that of the result, with as much else as possible the same."""
    own = tuned.space.candidates[best].features[place]
    found = _controlled_pair(tuned, place, best, other)
    claim = Claim(
        key=key,
        value=plain_feature(own),
        other=plain_feature(other),
        ratio=None,
        verdict=Verdict.NOT_COMPARABLE,
        reason="" if found else _why_excluded(tuned, place, best, other),
    )
    if found is None:
        return claim
    a, b = found
    ratio = session_ratio(tuned, a, b)
    if ratio is None:
        return claim
    beside = "" if a == best else _without(tuned.space.candidates[a], key)
    reason = tuned.excluded.get(b, "")
    verdict = judge(ratio)
    return claim.model_copy(
        update={"ratio": ratio, "verdict": verdict, "reason": reason, "beside": beside}
    )


def _controlled_pair(tuned: Tuned, place: int, best: int, other: str) -> tuple[int, int] | None:
    """Two measured combinations that differ in this knob alone, as near to the result as possible.

    A knob that does not apply to one of both is no difference.
    """
    candidates = tuned.space.candidates
    measured = [n for n, c in enumerate(candidates) if c.key in tuned.found.figures]
    own = candidates[best].features
    pairs = [
        (a, b)
        for a in measured
        if candidates[a].features[place] == own[place]
        for b in measured
        if candidates[b].features[place] == other
        and {place}.issuperset(differing_knobs(candidates[a].features, candidates[b].features))
    ]

    def distance(pair: tuple[int, int]) -> tuple[bool, int, int]:
        apart = sum(x != y for x, y in zip(candidates[pair[0]].features, own, strict=True))
        return not _shares_session(tuned, *pair), apart, pair[0]

    return min(pairs, key=distance, default=None)


def _shares_session(tuned: Tuned, a: int, b: int) -> bool:
    keys = {tuned.space.candidates[n].key for n in (a, b)}
    return any(keys <= {each.candidate for each in s.measured} for s in tuned.found.sessions)


def _why_excluded(tuned: Tuned, place: int, best: int, other: str) -> str:
    """Why a value is excluded with the other values of the result, or everywhere; or empty."""
    candidates, own = tuned.space.candidates, tuned.space.candidates[best].features
    with_value = [n for n, c in enumerate(candidates) if c.features[place] == other]
    reasons = [tuned.excluded[n] for n in with_value if n in tuned.excluded]
    if not reasons:
        return ""
    near = min(
        (n for n in with_value if n in tuned.excluded),
        key=lambda n: sum(x != y for x, y in zip(candidates[n].features, own, strict=True)),
    )
    return tuned.excluded[near]


def _without(candidate: Combination, key: str) -> str:
    """The settings of a combination without one key, in short."""
    rest = tuple(change for change in candidate.changes if change[0] != key)
    return replace(candidate, changes=rest).label


def session_ratio(tuned: Tuned, a: int, b: int) -> Ratio | None:
    """The time of B by that of A in a session that measured both; None without one.

    That of the comparison at the end, where there is one; without a common session, that of starts
    at different times.
    """
    for number, comparison in tuned.comparisons:
        if (
            number == b
            and comparison.ratio
            and comparison.a.name == tuned.space.candidates[a].label
        ):
            return comparison.ratio
    keys = [tuned.space.candidates[n].key for n in (a, b)]
    found: list[tuple[Sequence[float], Sequence[float]]] = []
    for session in tuned.found.sessions:
        times = {
            each.candidate: each.series.get(tuned.goal.minimize, ()) for each in session.measured
        }
        if all(times.get(key) for key in keys):
            found.append((times[keys[0]], times[keys[1]]))
    if not found:
        return _from_other_sessions(tuned, *keys)
    # Pairs of starts of all sessions that have both.
    pairs = [pair for first, second in found for pair in zip(first, second, strict=False)]
    if len(pairs) >= MIN_PAIRS:
        return paired_ratio([x for x, _ in pairs], [y for _, y in pairs])
    first, second = max(found, key=lambda each: len(each[0]) + len(each[1]))
    return unpaired_ratio(first, second)


def _from_other_sessions(tuned: Tuned, a: str, b: str) -> Ratio | None:
    """The ratio of starts of different sessions; its interval includes what these differ by."""
    times: dict[str, list[float]] = {a: [], b: []}
    for session in tuned.found.sessions:
        for each in session.measured:
            if each.candidate in times:
                times[each.candidate] += each.series.get(tuned.goal.minimize, ())
    return unpaired_ratio(times[a], times[b]) if times[a] and times[b] else None


def closest(tuned: Tuned) -> tuple[int, tuple[Breach, ...]] | None:
    """The combination that breaks the limits by the least, where nothing meets them."""
    found = tuned.found
    base = tuned.figures(0)
    broken = {
        number: breaches(tuned.goal.limits, tuned.figures(number), base)
        for number, candidate in enumerate(tuned.space.candidates)
        if candidate.program in found.programs and candidate.key not in found.wrong_outputs
    }
    known = {number: each for number, each in broken.items() if each}
    if not known:
        return None
    best = min(known, key=lambda n: (max(b.excess for b in known[n]), n))
    return best, known[best]


def require_result(tuned: Tuned) -> None:
    """Raise LimitError if nothing meets the limits: names what comes closest, and by how much."""
    if tuned.best is not None:
        return
    near = closest(tuned)
    if near is None:
        reasons = dict.fromkeys(tuned.excluded.values())
        raise LimitError(
            "no combination can be the result: " + "; ".join(list(reasons)[:3]),
            remedy="Limit error or perplexity yourself, or vary other keys: --vary KEY=A,B",
        )
    number, broken = near
    label = tuned.space.candidates[number].label
    loosest = " ".join(f"--limit {_loosened(each)}" for each in broken)
    raise LimitError(
        f"nothing that was tried meets the limits; closest is {label}: "
        f"{'; '.join(map(str, broken))}",
        remedy=f"Loosen the limits: {loosest}\nOr vary other keys: --vary KEY=A,B",
    )


def _loosened(breach: Breach) -> str:
    """A limit that the combination meets, as a user types it."""
    metric, limit = METRICS[breach.limit.metric], breach.limit
    if limit.relative:
        share = breach.value / breach.bound * (1 + limit.bound) - 1
        return f"{metric.name}={math.ceil(1000 * share) / 10:+g}%"
    unit, factor = next(
        ((u, f) for u, f in metric.units.items() if u and 1 <= breach.value / f < 1000),
        next(iter(metric.units.items())),
    )
    digits = math.ceil(breach.value / factor * 100) / 100 if breach.value / factor >= 1 else (
        float(f"{breach.value / factor * 1.01:.2g}")
    )  # fmt: skip
    return f"{metric.name}={digits:g}{unit}"
