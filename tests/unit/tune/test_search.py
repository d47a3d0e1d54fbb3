"""The search: which combinations it measures next, and whether it finds a planted optimum."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import pytest

from etdeploy.tune.model import LEAST_SPREAD, USUAL_SPREAD, SessionSample, fit, spread_of_starts
from etdeploy.tune.search import (
    NOT_APPLICABLE,
    EndReason,
    Finished,
    Knowledge,
    Phase,
    Point,
    Proposal,
    SessionTimes,
    propose,
    rank,
)

# Two schemes with an interaction, three numbers of threads, two rewrites.
GRID = tuple(
    Point((a, b, c), f"{a}{c}") for a, b, c in itertools.product("xy", "123", ("on", "off"))
)
TRUE_MS = {
    (a, b, c): 10
    * {"x": 1.0, "y": 0.7}[a]
    * {"1": 1.2, "2": 1.0, "3": 1.1}[b]
    * {"on": 1.0, "off": 1.05}[c]
    * (0.85 if (a, b) == ("y", "3") else 1.0)
    for a, b, c in itertools.product("xy", "123", ("on", "off"))
}
OPTIMUM = min(range(len(GRID)), key=lambda n: TRUE_MS[GRID[n].features])  # type: ignore[index]


def _session(
    points: tuple[int, ...], draw: random.Random, noise: float
) -> tuple[SessionTimes, ...]:
    drift = math.exp(draw.gauss(0, 0.05))
    return tuple(
        SessionTimes(
            p,
            tuple(
                TRUE_MS[GRID[p].features] * drift * math.exp(draw.gauss(0, noise))  # type: ignore[index]
                for _ in range(3)
            ),
        )
        for p in points
    )


def _search(seed: int, noise: float = 0.01) -> tuple[Knowledge, list[Phase], Finished]:
    draw, known, phases = random.Random(seed), Knowledge(), []
    while isinstance(step := propose(GRID, known), Proposal):
        phases.append(step.phase)
        assert not set(step.points) & known.excluded
        visits = _session(step.points, draw, noise)
        exported = known.exported | {GRID[p].program for p in step.points}
        known = replace(known, sessions=(*known.sessions, visits), exported=exported)
    return known, phases, step


@pytest.mark.parametrize("seed", range(6))
def test_a_planted_optimum_is_found_through_noise_and_drift(seed: int) -> None:
    known, phases, _ = _search(seed)
    assert rank(GRID, known).best == OPTIMUM
    assert phases[0] == Phase.BASE


def test_it_ends_before_the_whole_grid_is_measured() -> None:
    measured = [len(_search(seed)[0].measured) for seed in range(6)]
    assert max(measured) <= len(GRID)
    assert sum(measured) / len(measured) < 0.9 * len(GRID)


def test_every_value_is_tried_and_threads_of_one_program_come_together() -> None:
    known, phases, _ = _search(0)
    values = {v for p in known.measured for v in enumerate(GRID[p].features)}
    assert values == {v for point in GRID for v in enumerate(point.features)}
    second = known.sessions[1]
    assert phases[1] == Phase.COVER
    assert {GRID[visit.point].program for visit in second} == {"xon"}


def test_the_same_knowledge_gives_the_same_proposal() -> None:
    known = Knowledge(sessions=(_session((0, 1), random.Random(1), 0.01),))
    assert propose(GRID, known) == propose(GRID, known)


def test_an_excluded_value_is_not_proposed_again() -> None:
    excluded = frozenset(n for n, p in enumerate(GRID) if p.features[0] == "y")
    known = Knowledge(excluded=excluded)
    draw = random.Random(2)
    while isinstance(step := propose(GRID, known), Proposal):
        assert not set(step.points) & excluded
        known = replace(known, sessions=(*known.sessions, _session(step.points, draw, 0.01)))
    best = rank(GRID, known).best
    assert best is not None
    assert GRID[best].features == ("x", "2", "on")


def test_a_base_that_is_excluded_is_replaced_by_the_most_similar_one() -> None:
    step = propose(GRID, Knowledge(excluded=frozenset({0})))
    assert isinstance(step, Proposal)
    pairs = zip(GRID[step.points[0]].features, GRID[0].features, strict=True)
    assert sum(a != b for a, b in pairs) == 1


def test_another_backend_is_tried_before_what_it_has_not() -> None:
    features = [("a", "none", "auto"), ("a", "int8", "auto"), ("a", "none", "off")]
    grid = [Point(each, str(each)) for each in features]
    grid.append(Point(("b", "none", NOT_APPLICABLE), "b"))
    measured = ((SessionTimes(0, (10.0, 10.0, 10.0)),),)
    step = propose(grid, Knowledge(measured, exported=frozenset({grid[0].program})))
    assert isinstance(step, Proposal)
    assert step.points == (0, 3)


def test_nothing_is_left_where_all_are_excluded() -> None:
    step = propose(GRID, Knowledge(excluded=frozenset(range(len(GRID)))))
    assert step == Finished(EndReason.COMPLETE)


def test_no_export_is_begun_that_the_budget_has_no_room_for() -> None:
    known = Knowledge(
        sessions=(_session((0,), random.Random(1), 0.01),),
        exported=frozenset({GRID[0].program}),
        export_s=100,
        measure_s=1,
        left_s=50,
    )
    draw = random.Random(1)
    while isinstance(step := propose(GRID, known), Proposal):
        assert {GRID[p].program for p in step.points} == {"xon"}
        known = replace(known, sessions=(*known.sessions, _session(step.points, draw, 0.01)))
    assert step.reason == EndReason.BUDGET
    assert len(known.measured) == 3


def test_the_model_separates_drift_of_sessions_from_effects() -> None:
    # The second session is 40 % slower as a whole; the common combination shows that.
    features = [("a",), ("b",), ("c",)]
    samples = [
        SessionSample(0, 0, math.log(10.0), 3),
        SessionSample(1, 0, math.log(9.0), 3),
        SessionSample(1, 1, math.log(9.0 * 1.4), 3),
        SessionSample(2, 1, math.log(8.0 * 1.4), 3),
    ]
    found = fit(features, samples, 0.01)
    mean, spread = found.difference(0, 2)
    assert math.exp(mean) == pytest.approx(0.8, rel=0.03)
    assert spread < 0.05


def test_the_spread_of_starts_is_that_of_most_of_them() -> None:
    assert spread_of_starts([]) == USUAL_SPREAD
    assert spread_of_starts([(1.0,), (2.0,)]) == USUAL_SPREAD
    assert spread_of_starts([(1.0, 1.0)]) == LEAST_SPREAD
    quiet, disturbed = (1.0, 1.02, 0.98), (1.0, 1.5, 1.0)
    assert spread_of_starts([quiet, quiet, disturbed]) == pytest.approx(0.02, rel=0.05)
