"""Whole nights in simulated time: whatever dies, nothing is lost and nothing counts twice."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from etdeploy.farm.model import Fate, Order, Standing
from etdeploy.farm.night.failure_attribution import counts_as_attempt
from etdeploy.farm.night.model import Event, EventKind, NightEnd
from tests.support.farm_sim import SimNight, chaos, make_farm
from tests.support.farm_sim_engine import CRASH, OFFLINE, Behaviour, Script, offer_of

ENDED = (Standing.DONE, Standing.FAILED, Standing.MISSED)


class CoordinatorKilledError(Exception):
    """Stands for SIGKILL: nothing of the coordinator runs after it."""


def killed_at(night: SimNight, moments: list[int]) -> None:
    """Lets the coordinator die when so many events were told."""
    heard = 0

    def hear(event: Event) -> None:
        nonlocal heard
        heard += 1
        if heard in moments:
            # Its workers die with it, as those of an engine on the same host do.
            night.engine.under_way.clear()
            night.kills += 1
            raise CoordinatorKilledError

    night.heard = hear


def run_through(night: SimNight) -> NightEnd:
    """Runs the night, and starts it again each time it was killed, or its database is down."""
    for _ in range(1000):
        try:
            return night.run()
        except CoordinatorKilledError:
            pass
        except Exception as error:
            if "database is down" not in str(error):
                raise
        night.engine.ended(60.0)
    raise AssertionError("the night does not end")


def require_sound(night: SimNight, end: NightEnd) -> None:
    """What holds for every night."""
    night.ledger.down = False  # the next run imports what is left
    states, rules = night.ledger.states, night.loaded.farm
    assert set(states) == {state.visit.id for state in end.states}
    assert night.engine.worst <= 1, "a device had two attempts at once"
    assert max(night.ledger.counted.values(), default=0) <= 1, "a visit was counted twice"
    for state in states.values():
        assert state.standing in ENDED, state
        assert state.reason or state.standing is Standing.DONE, state
        assert (state.result is not None) == (state.standing is Standing.DONE), state
        spent = sum(counts_as_attempt(ending, rules.gates) for ending in state.attempts)
        assert spent <= 1 + rules.retries
        assert len(state.attempts) <= 1 + rules.retries + 10


def random_behaviour(seed: int, failing: float) -> Behaviour:
    draw = random.Random(seed)

    def behave(order: Order, used: int) -> Script:
        seconds = draw.uniform(60, 900)
        chance = draw.random()
        if chance < failing / 2:
            return Script(seconds, Fate.FAILED, CRASH)
        if chance < failing:
            return Script(seconds, Fate.FAILED, OFFLINE)
        return Script(seconds)

    return behave


# Killed when the last failure was written down, and not yet that the recipe is stopped.
@example(
    seed=361, phones=6, recipes=1, repeats=2, take=None, failing=1.0, retries=0, hours=None,
    moments=[80, 100, 31, 10],
)  # fmt: skip
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    phones=st.integers(1, 6),
    recipes=st.integers(1, 3),
    repeats=st.integers(1, 3),
    take=st.none() | st.integers(1, 3),
    failing=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    retries=st.integers(0, 2),
    hours=st.none() | st.floats(0.2, 6.0),
    moments=st.lists(st.integers(1, 120), max_size=4),
)
def test_every_visit_ends_once_with_a_reason(
    seed: int, phones: int, recipes: int, repeats: int, take: int | None, failing: float,
    retries: int, hours: float | None, moments: list[int],
) -> None:  # fmt: skip
    loaded = make_farm("abc"[:recipes], take, repeats=repeats, retries=retries)
    offers = [offer_of(i, hosts=2) for i in range(phones)]
    night = SimNight(loaded, offers, random_behaviour(seed, failing), hours=hours)
    chaos(night, seed, 3.0, offers)
    killed_at(night, moments)
    require_sound(night, run_through(night))


def test_24_hours_with_200_phones_lose_nothing_and_count_nothing_twice() -> None:
    hosts, hours = 4, 24.0
    offers = [offer_of(i, hosts) for i in range(200)]
    loaded = make_farm([f"recipe-{i}" for i in range(6)], repeats=3, spread=True)
    night = SimNight(loaded, offers, random_behaviour(14, 0.02), hours=hours, wait_s=180.0)
    chaos(night, 14, hours, offers)
    killed_at(night, [500, 2000, 2001, 4000, 7000, 9000])
    end = run_through(night)
    require_sound(night, end)
    standings = Counter(state.standing for state in end.states)
    assert len(end.states) == 200 * 6 * 3
    assert standings[Standing.DONE] > 0.95 * len(end.states), standings
    assert night.kills == 6
    lost = [e for state in end.states for e in state.attempts if e.fate is Fate.LOST]
    assert len(lost) > 500, "no worker died"
    assert night.ledger.delayed > 0


@pytest.mark.parametrize("take", [None, 3])
def test_without_failures_the_night_is_near_its_ideal(take: int | None) -> None:
    seconds = {"a": 60.0, "b": 240.0, "c": 900.0}
    offers = [offer_of(i, 4) for i in range(20)]
    night = SimNight(
        make_farm("abc", take, repeats=5),
        offers,
        lambda order, _: Script(seconds[order.artifact.recipe]),
        wait_s=1.0,
    )
    end = night.run()
    total = sum(seconds[state.visit.recipe] for state in end.states)
    # Graham's bound for the last one to begin, and the shortest recipe's trial on three phones.
    assert night.clock.at_s <= total / len(offers) + max(seconds.values()) + min(seconds.values())
    assert all(state.standing is Standing.DONE for state in end.states)


def test_what_is_told_is_in_order() -> None:
    night = SimNight(make_farm("a", repeats=1), [offer_of(0)])
    night.run()
    kinds = [event.kind for event in night.events if event.kind is not EventKind.TOLD]
    assert kinds == [EventKind.PLANNED, EventKind.STARTED, EventKind.ENDED, EventKind.FINISHED]
