"""What to measure next, decided from what was measured: values in, values out.

First every value of every knob is tried once, beside the best values so far. Then the combinations
follow whose expected improvement (Jones and others, 1998) is largest for the time that they take: a
program that has to be exported is expensive, other numbers of threads of one that was exported are
cheap. At the end, the best ones are measured again until one of them is ahead, or until the
difference is smaller than what can be measured. `benchmarks/tune.py` compares this with Optuna's
samplers on simulated devices; docs/decisions/tune.md has the figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

from etdeploy.core.values import StrEnum
from etdeploy.tune.model import Posterior, SessionSample, fit, spread_of_starts

NOT_APPLICABLE = "-"
"""The value of a knob that does not apply to a combination."""
# Combinations of one session, besides the best so far.
BATCH = 4
# Smaller differences are not measurable in the time of a search.
MEASURABLE = math.log(1.01)
# An untested combination is left out if it is faster by that much with less probability.
_LEAST_CHANCE = 0.003
_LEAST_CHANCE_OF_NEIGHBOR = 0.0001
# The best ones are measured again at most so often.
_MOST_AGAIN = 6
_NORMAL = NormalDist()


@dataclass(frozen=True)
class Point:
    """A combination of settings as the search sees it.

    Attributes:
        features: The value of each knob, as text.
        program: Equal for those that one export and build serve.
    """

    features: tuple[str, ...]
    program: str


@dataclass(frozen=True)
class SessionTimes:
    """A combination in one session.

    Attributes:
        point: Its number.
        times_ms: What stands for each of its starts.
    """

    point: int
    times_ms: tuple[float, ...]


@dataclass(frozen=True)
class Knowledge:
    """All that a decision is made from.

    Attributes:
        sessions: The combinations that were measured together, in the order of time.
        excluded: Combinations that cannot be the result, by number: they break a limit, cannot be
            exported, or fail on the device.
        exported: Programs that exist.
        export_s: What an export with its build takes.
        measure_s: What one combination takes in a session.
        left_s: The rest of the budget; infinite without one.
    """

    sessions: tuple[tuple[SessionTimes, ...], ...] = ()
    excluded: frozenset[int] = frozenset()
    exported: frozenset[str] = frozenset()
    export_s: float = 30.0
    measure_s: float = 10.0
    left_s: float = math.inf

    @property
    def measured(self) -> frozenset[int]:
        """The combinations that were measured at least once."""
        return frozenset(visit.point for session in self.sessions for visit in session)


class Phase(StrEnum):
    """Why combinations are proposed."""

    BASE = "base"
    COVER = "cover"
    IMPROVE = "improve"
    NEIGHBORS = "neighbors"
    CONFIRM = "confirm"


@dataclass(frozen=True)
class Proposal:
    """The combinations of the next session.

    Attributes:
        points: Their numbers; the best so far is the first where there is one.
        phase: Why.
    """

    points: tuple[int, ...]
    phase: Phase


class EndReason(StrEnum):
    """Why a search ends."""

    COMPLETE = "every combination was measured or excluded"
    NO_GAIN = "no other combination is likely to be faster by more than can be measured"
    BUDGET = "the budget is used up"


@dataclass(frozen=True)
class Finished:
    """That nothing more is to be measured, and why."""

    reason: EndReason


@dataclass(frozen=True)
class Ranking:
    """The combinations that were measured and may be the result, the fastest first.

    Attributes:
        order: Their numbers.
        posterior: What the model knows of all.
    """

    order: tuple[int, ...]
    posterior: Posterior | None = field(default=None, compare=False)

    @property
    def best(self) -> int | None:
        """The fastest; None where none may be the result."""
        return self.order[0] if self.order else None


def rank(points: Sequence[Point], known: Knowledge) -> Ranking:
    """The measured combinations that are not excluded, by what the model estimates."""
    samples = _samples(known.sessions)
    if not samples:
        return Ranking(())
    posterior = fit([p.features for p in points], samples, _spread(known.sessions))
    allowed = [p for p in known.measured if p not in known.excluded]
    return Ranking(tuple(sorted(allowed, key=lambda p: (posterior.mean[p], p))), posterior)


def propose(points: Sequence[Point], known: Knowledge) -> Proposal | Finished:
    """What to measure next. The first combination is the recipe as it is."""
    if not known.sessions:
        return Proposal((0,), Phase.BASE) if 0 not in known.excluded else _first(points, known)
    ranking = rank(points, known)
    if ranking.posterior is None:
        return _first(points, known)
    if known.left_s < known.measure_s * 2:
        return Finished(EndReason.BUDGET)
    open_points = [
        i for i in range(len(points)) if i not in known.measured and i not in known.excluded
    ]
    affordable = [i for i in open_points if _cost_s(points, known, [i]) <= known.left_s]
    if not affordable and open_points:
        return _confirm(ranking, known) or Finished(EndReason.BUDGET)
    chosen = _cover(points, known, ranking, affordable)
    if chosen:
        return Proposal(_with_best(ranking, chosen), Phase.COVER)
    chosen = _improve(points, known, ranking, affordable)
    if chosen:
        return Proposal(_with_best(ranking, chosen), Phase.IMPROVE)
    chosen = _neighbors(points, known, ranking, affordable)
    if chosen:
        return Proposal(_with_best(ranking, chosen), Phase.NEIGHBORS)
    reason = EndReason.NO_GAIN if open_points else EndReason.COMPLETE
    return _confirm(ranking, known) or Finished(reason)


def _first(points: Sequence[Point], known: Knowledge) -> Proposal | Finished:
    """A first combination where the recipe's own cannot be measured: the most similar one."""
    allowed = [i for i in range(len(points)) if i not in known.excluded]
    if not allowed:
        return Finished(EndReason.COMPLETE)
    base = points[0].features
    return Proposal((min(allowed, key=lambda i: _apart(points[i].features, base)),), Phase.BASE)


def _apart(a: Sequence[str], b: Sequence[str]) -> tuple[int, int]:
    """How many values differ, and the first knob that does: the first ones matter most."""
    places = differing_knobs(a, b)
    return len(places), places[0] if places else 0


def differing_knobs(a: Sequence[str], b: Sequence[str]) -> list[int]:
    """Return the places of the knobs that have different values and apply to both combinations."""
    pairs = enumerate(zip(a, b, strict=True))
    return [place for place, (x, y) in pairs if x != y and NOT_APPLICABLE not in (x, y)]


def _with_best(ranking: Ranking, chosen: Iterable[int]) -> tuple[int, ...]:
    best = () if ranking.best is None else (ranking.best,)
    return (*best, *(p for p in chosen if p not in best))


def _samples(sessions: Sequence[Sequence[SessionTimes]]) -> list[SessionSample]:
    return [
        SessionSample(visit.point, number, math.log(min(visit.times_ms)), len(visit.times_ms))
        for number, session in enumerate(sessions)
        for visit in session
    ]


def _spread(sessions: Sequence[Sequence[SessionTimes]]) -> float:
    return spread_of_starts([visit.times_ms for session in sessions for visit in session])


def _cost_s(points: Sequence[Point], known: Knowledge, chosen: Sequence[int]) -> float:
    """What the combinations take, with the best so far beside them."""
    programs = {points[i].program for i in chosen} - known.exported
    return known.export_s * len(programs) + known.measure_s * (len(chosen) + 1)


def _cover(
    points: Sequence[Point], known: Knowledge, ranking: Ranking, affordable: Sequence[int]
) -> list[int]:
    """Combinations with values that none has that was measured or excluded.

    Each differs from the best so far in as few values as possible, and all of a session have one
    program if a knob of that kind is left: then they are cheap.
    """
    tried = known.measured | known.excluded
    seen = {(k, v) for i in tried for k, v in enumerate(points[i].features)}
    near = points[ranking.order[0] if ranking.order else 0].features
    chosen: list[int] = []
    while len(chosen) < BATCH:
        new = {
            i: {(k, v) for k, v in enumerate(points[i].features)} - seen
            for i in affordable
            if i not in chosen
        }
        with_new = [i for i, values in new.items() if values]
        if not with_new:
            break
        programs = {points[i].program for i in chosen} | known.exported
        pick = min(
            with_new,
            key=lambda i: (
                points[i].program not in programs,
                _apart(points[i].features, near),
                i,
            ),
        )
        if chosen and points[pick].program not in programs:
            break
        if chosen and _cost_s(points, known, [*chosen, pick]) > known.left_s:
            break
        chosen.append(pick)
        seen |= new[pick]
    return chosen


def _improve(
    points: Sequence[Point], known: Knowledge, ranking: Ranking, affordable: Sequence[int]
) -> list[int]:
    """The combinations with the largest expected improvement for their time."""
    if ranking.posterior is None or not affordable:
        return []
    gains = _gains(ranking, affordable, _odds(points, known), _LEAST_CHANCE)
    return _best_rate(points, known, gains) if gains else []


def _neighbors(
    points: Sequence[Point], known: Knowledge, ranking: Ranking, affordable: Sequence[int]
) -> list[int]:
    """Combinations that differ from the best one in a single value, if they are not hopeless.

    The model may be wrong about what it has seen little of; and the reason for each value of the
    result is a measurement of it beside the others.
    """
    if ranking.best is None:
        return []
    own = points[ranking.best].features
    near = [i for i in affordable if _apart(points[i].features, own)[0] == 1]
    gains = _gains(ranking, near, _odds(points, known), _LEAST_CHANCE_OF_NEIGHBOR)
    return _best_rate(points, known, gains) if gains else []


def _best_rate(points: Sequence[Point], known: Knowledge, gains: Mapping[int, float]) -> list[int]:
    """The combinations of one session with the largest gain for their time."""
    by_program: dict[str, list[int]] = {}
    for i in sorted(gains, key=lambda i: (-gains[i], i)):
        by_program.setdefault(points[i].program, []).append(i)

    def rate(program: str) -> float:
        own = by_program[program][:BATCH]
        # Gains of one program are gains of the same thing: the largest counts most.
        gain = sum(gains[i] / (n + 1) for n, i in enumerate(own))
        return gain / _cost_s(points, known, own[:1])

    best = max(by_program, key=rate)
    chosen = [i for i in by_program[best] if gains[i] >= gains[by_program[best][0]] / 4][:BATCH]
    # Other programs that exist cost no export.
    rest = [i for i in gains if i not in chosen and points[i].program in known.exported]
    chosen += sorted(rest, key=lambda i: -gains[i])[: BATCH - len(chosen)] if rest else []
    while len(chosen) > 1 and _cost_s(points, known, chosen) > known.left_s:
        chosen.pop()
    return chosen


def _gains(
    ranking: Ranking, affordable: Sequence[int], odds: Mapping[int, float], least_chance: float
) -> dict[int, float]:
    """The expected improvement, in logarithms, of those that are worth a measurement."""
    posterior, best = ranking.posterior, ranking.best
    if posterior is None:
        return {}
    if best is None:  # nothing that was measured may be the result
        return {i: odds[i] * math.exp(-float(posterior.mean[i])) for i in affordable}
    found = {}
    for i in affordable:
        mean, spread = posterior.difference(i, best)
        if spread <= 0:
            continue
        chance = odds[i] * (1 - _NORMAL.cdf((MEASURABLE - mean) / spread))
        if chance >= least_chance:
            z = mean / spread
            found[i] = odds[i] * (mean * _NORMAL.cdf(z) + spread * _NORMAL.pdf(z))
    return found


def _odds(points: Sequence[Point], known: Knowledge) -> dict[int, float]:
    """How likely each combination is allowed, by how many with the same values are.

    The worst of its values counts: one scheme that breaks a limit does so with every number of
    threads.
    """
    tried = known.measured | known.excluded
    counts: dict[tuple[int, str], list[int]] = {}
    for i in tried:
        for value in enumerate(points[i].features):
            of = counts.setdefault(value, [0, 0])
            of[0] += i not in known.excluded
            of[1] += 1
    return {
        i: min(
            ((counts.get(v, [0, 0])[0] + 1) / (counts.get(v, [0, 0])[1] + 1))
            for v in enumerate(p.features)
        )
        for i, p in enumerate(points)
    }


def _confirm(ranking: Ranking, known: Knowledge) -> Proposal | None:
    """The best ones again, while their order is not certain; None if it is."""
    posterior, best = ranking.posterior, ranking.best
    if posterior is None or best is None:
        return None
    again = [0] * (max(ranking.order) + 1)
    for session in known.sessions:
        for visit in session:
            if visit.point < len(again):
                again[visit.point] += 1
    rivals = []
    for i in ranking.order[1:]:
        mean, spread = posterior.difference(best, i)
        if spread > 0 and _NORMAL.cdf(-mean / spread) > 0.01 and again[i] <= _MOST_AGAIN:
            rivals.append(i)
    if not rivals or known.left_s < known.measure_s * 2:
        return None
    return Proposal((best, *rivals[: BATCH - 1]), Phase.CONFIRM)
