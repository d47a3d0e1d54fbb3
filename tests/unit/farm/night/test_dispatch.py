"""Which visit begins where."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from etdeploy.farm.model import AttemptResult, Fate, Visit, VisitState
from etdeploy.farm.night.model import Unavailable, UnavailableKind
from etdeploy.farm.night.scheduler import (
    AttemptDurations,
    DispatchState,
    VisitStart,
    candidates,
    dispatch,
    is_stuck,
    is_stuck_for_good,
    missed_reason,
)
from tests.support.farm_sim_engine import CRASH, offer_of

DEVICES = [f"phone-{number:03d}" for number in range(4)]
NOW = datetime(2026, 11, 23, 22, 0, tzinfo=timezone.utc)


def state_of(
    number: int, recipe: str, device: str | None = None, failed: Sequence[str] = (), **changes: Any
) -> VisitState:
    among = (device,) if device else tuple(changes.pop("among", DEVICES))
    visit = Visit(id=f"n-{number}", recipe=recipe, group="g", device=device, among=among, **changes)
    endings = tuple(
        AttemptResult(visit=visit.id, attempt=i + 1, identity=each, host="h", fate=Fate.FAILED,
               failure=CRASH)
        for i, each in enumerate(failed)
    )  # fmt: skip
    return VisitState(visit=visit, attempts=endings)


def situation_of(
    bound: Sequence[VisitState] = (), floating: Sequence[VisitState] = (), **changes: Any
) -> DispatchState:
    by_device: dict[str, list[VisitState]] = {}
    for state in bound:
        by_device.setdefault(state.visit.device or "", []).append(state)
    free = changes.pop("free", DEVICES)
    recipes = {state.visit.recipe for state in (*bound, *floating)}
    values: dict[str, Any] = {
        "now_s": 0.0,
        "free": {each: offer_of(int(each[-3:])) for each in free},
        "ready": {(recipe, each) for recipe in recipes for each in DEVICES},
    }
    return DispatchState(bound=by_device, floating=list(floating), **(values | changes))


def times_of(**seconds: float) -> AttemptDurations:
    times = AttemptDurations()
    for recipe, each in seconds.items():
        times.add(recipe, "", each)
    return times


def test_a_device_gets_one_visit_the_earliest_repeat_first() -> None:
    phone = DEVICES[0]
    states = [state_of(1, "a", phone, repeat=2), state_of(2, "b", phone), state_of(3, "a", phone)]
    assert dispatch(situation_of(states, times=times_of(a=10, b=20))) == [VisitStart("n-2", phone)]


def test_recipes_take_turns_on_a_device() -> None:
    phone = DEVICES[0]
    states = [state_of(1, "a", phone), state_of(2, "b", phone)]
    found = dispatch(situation_of(states, times=times_of(a=20, b=10), last={phone: "a"}))
    assert found == [VisitStart("n-2", phone)]


def test_a_visit_waits_for_its_time_its_pause_and_its_artifact() -> None:
    phone = DEVICES[0]
    assert dispatch(situation_of([state_of(1, "a", phone, not_before_s=60.0)])) == []
    assert dispatch(situation_of([state_of(1, "a", phone)], pauses={"n-1": 1.0})) == []
    assert dispatch(situation_of([state_of(1, "a", phone)], ready=())) == []
    assert dispatch(situation_of([state_of(1, "a", phone)], pauses={"n-1": 0.0}))


def test_floating_visits_go_longest_first_to_the_device_with_the_least_to_do() -> None:
    later = [state_of(9, "a", DEVICES[0], not_before_s=9e9)]
    floating = [state_of(1, "a"), state_of(2, "b")]
    found = dispatch(situation_of(later, floating, free=DEVICES[:2], times=times_of(a=10, b=99)))
    assert found == [VisitStart("n-2", DEVICES[1]), VisitStart("n-1", DEVICES[0])]


def test_a_retry_goes_elsewhere_and_waits_for_another_device() -> None:
    state = state_of(1, "a", failed=[DEVICES[0]], among=DEVICES[:2])
    assert dispatch(situation_of(floating=[state])) == [VisitStart("n-1", DEVICES[1])]
    assert dispatch(situation_of(floating=[state], free=DEVICES[:1])) == []
    away = {DEVICES[1]: Unavailable(UnavailableKind.AWAY, "unplugged since 02:13")}
    alone = situation_of(floating=[state], free=DEVICES[:1], barred=away)
    assert dispatch(alone) == [VisitStart("n-1", DEVICES[0])]
    # After all devices, not on the same twice running.
    state = state_of(1, "a", failed=[DEVICES[1], DEVICES[0]], among=DEVICES[:2])
    assert candidates(state, {}, ()) == (DEVICES[1],)


def test_the_visits_of_a_round_never_share_a_device() -> None:
    floating = [state_of(1, "a", among=DEVICES[:2]), state_of(2, "a", among=DEVICES[:2])]
    found = dispatch(situation_of(floating=floating))
    assert sorted(start.identity for start in found) == DEVICES[:2]
    taken = {("a", "g", 1): {DEVICES[0], DEVICES[1]}}
    assert dispatch(situation_of(floating=floating, taken=taken)) == []
    assert is_stuck(floating[0], situation_of(floating=floating, taken=taken))


def test_what_is_missed_says_why() -> None:
    phone = DEVICES[0]
    state = state_of(1, "a", phone)
    plain = situation_of([state])
    assert missed_reason(state, plain, "it closed") == "it closed before its turn"
    away = situation_of(
        [state], barred={phone: Unavailable(UnavailableKind.AWAY, "unplugged since 02:13")}
    )
    assert missed_reason(state, away, "") == "unplugged since 02:13"
    both = {each: Unavailable(UnavailableKind.RESERVED, "reserved by anna") for each in DEVICES}
    text = missed_reason(state_of(1, "a"), situation_of(barred=both), "")
    assert text.startswith("phone-000 reserved by anna, phone-001")
    assert text.endswith("and 1 more")
    failed = state_of(1, "a", phone, failed=[phone])
    assert missed_reason(failed, away, "").endswith("the attempt before: SIGSEGV")


def test_only_a_person_can_help_with_quarantine_and_long_reservations() -> None:
    phone, until = DEVICES[0], NOW + timedelta(hours=8)
    state = state_of(1, "a", phone)

    def for_good(kind: UnavailableKind, reserved: datetime | None = None) -> bool:
        barred = {phone: Unavailable(kind, "", reserved)}
        return is_stuck_for_good(state, situation_of([state], barred=barred), until)

    assert for_good(UnavailableKind.QUARANTINED)
    assert for_good(UnavailableKind.RESERVED, until)
    assert not for_good(UnavailableKind.RESERVED, NOW)
    assert not for_good(UnavailableKind.AWAY)


STATES = st.builds(
    lambda recipe, device, repeat, before: (recipe, device, repeat, before),
    st.sampled_from("abc"),
    st.none() | st.sampled_from(DEVICES),
    st.integers(1, 3),
    st.sampled_from([0.0, 50.0, 500.0]),
)


@given(
    drawn=st.lists(STATES, max_size=12),
    free=st.sets(st.sampled_from(DEVICES)),
    trials=st.dictionaries(st.sampled_from("abc"), st.integers(0, 3)),
)
def test_what_begins_may_begin(
    drawn: list[tuple[str, str | None, int, float]], free: set[str], trials: dict[str, int]
) -> None:
    states = [
        state_of(number, recipe, device, repeat=repeat, not_before_s=before)
        for number, (recipe, device, repeat, before) in enumerate(drawn)
    ]
    bound = [state for state in states if state.visit.device]
    floating = [state for state in states if not state.visit.device]
    found = dispatch(situation_of(bound, floating, free=free, trials=trials, now_s=100.0))
    by_id = {state.visit.id: state.visit for state in states}
    devices = [start.identity for start in found]
    assert len(devices) == len(set(devices))
    assert len({start.visit for start in found}) == len(found)
    assert set(devices) <= free
    for start in found:
        assert start.identity in by_id[start.visit].among
        assert by_id[start.visit].not_before_s <= 100.0
    for recipe, most in trials.items():
        assert sum(by_id[start.visit].recipe == recipe for start in found) <= most
