"""Nights in which something goes wrong, in simulated time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest

from etdeploy.core import cancel
from etdeploy.farm.model import (
    STOPPED,
    AttemptFailure,
    AttemptResult,
    AvailableDevice,
    Fate,
    Gates,
    Health,
    Order,
    Standing,
    Visit,
    VisitState,
)
from etdeploy.farm.night.lease import TakenError
from etdeploy.farm.night.model import Event, EventKind, NightEnd
from etdeploy.farm.spec.matrix import NightPlan, Unsatisfied
from etdeploy.farm.work.prepare import PreparedArtifacts
from tests.support.farm_sim import (
    SimNight,
    make_farm,
    plan,
    prepare,
)
from tests.support.farm_sim_engine import BEGIN, CRASH, OFFLINE, Script, offer_of
from tests.support.farm_sim_ledger import reserved

PHONES = [offer_of(number, 2) for number in range(4)]


def by_device(end: NightEnd, identity: str) -> list[VisitState]:
    return [state for state in end.states if state.visit.device == identity]


def standings(states: Sequence[VisitState]) -> Counter[Standing]:
    return Counter(state.standing for state in states)


def failing_on(identity: str, **health: object) -> SimNight:
    told = Health.model_validate(health) if health else None

    def behave(order: Order, _: int) -> Script:
        if order.offer.identity == identity:
            return Script(60.0, Fate.FAILED, OFFLINE, told)
        return Script(60.0)

    return SimNight(make_farm("abc", repeats=2), PHONES, behave)


def test_a_recipe_that_crashes_every_phone_is_stopped_after_three() -> None:
    phones = [offer_of(number) for number in range(50)]
    night = SimNight(
        make_farm("ab", repeats=3),
        phones,
        lambda order, _: Script(
            60.0, *((Fate.FAILED, CRASH) if order.artifact.recipe == "a" else ())
        ),
    )
    end = night.run()
    crashed = {o.offer.identity for o in night.engine.started if o.artifact.recipe == "a"}
    assert len(crashed) == 3
    of_a = [state for state in end.states if state.visit.recipe == "a"]
    assert standings(of_a) == {Standing.FAILED: 150}
    assert all(s.reason.startswith(STOPPED) and "3 devices" in s.reason for s in of_a)
    assert all(s.standing is Standing.DONE for s in end.states if s.visit.recipe == "b")


@pytest.mark.parametrize("recipes", ["a", "ab"])
def test_a_recipe_that_takes_every_phone_down_is_stopped_and_no_phone_quarantined(
    recipes: str,
) -> None:
    phones = [offer_of(number) for number in range(4)]
    night = SimNight(
        make_farm(recipes, repeats=3),
        phones,
        lambda order, _: Script(
            60.0, *((Fate.FAILED, OFFLINE) if order.artifact.recipe == "a" else ())
        ),
    )
    end = night.run()
    of_a = [state for state in end.states if state.visit.recipe == "a"]
    assert standings(of_a) == {Standing.FAILED: 12}
    assert all(s.reason.startswith(STOPPED) and "3 devices" in s.reason for s in of_a)
    assert all(s.standing is Standing.DONE for s in end.states if s.visit.recipe == "b")
    started = Counter(o.offer.identity for o in night.engine.started if o.artifact.recipe == "a")
    assert max(started.values()) <= 2
    assert end.quarantined == {}


def test_a_device_that_fails_is_recovered_and_then_quarantined() -> None:
    night = failing_on("phone-001")
    end = night.run()
    assert [step for _, step in night.engine.recovered] == ["reconnect", "reboot"]
    assert "3 attempts in a row" in end.quarantined["phone-001"]
    assert [aside.identity for aside in night.shelf.aside] == ["phone-001"]
    own = by_device(end, "phone-001")
    assert set(standings(own)) <= {Standing.FAILED, Standing.MISSED}
    missed = [state for state in own if state.standing is Standing.MISSED]
    assert all("quarantined: " in state.reason for state in missed)
    assert missed
    assert standings(end.states)[Standing.DONE] == 3 * 6


def test_a_phone_without_room_is_quarantined_and_not_rebooted() -> None:
    night = failing_on("phone-001", free_bytes=5)
    night.loaded = make_farm("abc", repeats=2, gates=Gates(free_bytes=1000))
    end = night.run()
    assert "no room" in end.quarantined["phone-001"]
    assert night.engine.recovered == []


def test_a_full_disk_of_a_host_blames_neither_recipe_nor_phone() -> None:
    remedy = "Make room on this host.\nThen it goes on."
    full = AttemptFailure(kind="disk full", exit_code=4, message="the disk is full", remedy=remedy)

    def behave(order: Order, _: int) -> Script:
        is_full = order.offer.host == "host-1" and night.clock.at_s < 3600
        return Script(10.0, Fate.FAILED, full) if is_full else Script(60.0)

    night = SimNight(make_farm("ab"), PHONES, behave)
    end = night.run()
    assert standings(end.states) == {Standing.DONE: 24}
    assert end.quarantined == {}
    left_alone = [text for text in night.texts if text.startswith("host-1 is left alone")]
    assert all("(Make room on this host.)" in text for text in left_alone)
    # Once for each pause, although two phones failed there.
    assert len(left_alone) == len(set(left_alone)) > 0


def test_it_says_for_which_devices_it_waits_when_nothing_else_is_left() -> None:
    night = SimNight(make_farm("a"), PHONES[:2])
    night.shelf.claims = [reserved("phone-000", "anna", BEGIN + timedelta(hours=9))]
    end = night.run()
    assert standings(by_device(end, "phone-000")) == {Standing.MISSED: 3}
    [told] = [text for text in night.texts if text.startswith("waiting")]
    assert {"15", "min", "android:phone-000", "anna", "Ctrl-C"} <= set(told.split())
    measured_s = max(ending.seconds for state in end.states for ending in state.attempts) * 3
    assert measured_s + 900 <= night.clock.at_s <= measured_s + 1100


def test_in_a_window_it_waits_until_that_closes_and_says_so() -> None:
    night = SimNight(make_farm("a"), PHONES[:2], hours=8.0)
    night.clock.at(30.0, lambda: night.engine.unplug("phone-001"))
    night.run()
    [told] = [text for text in night.texts if text.startswith("waiting")]
    assert {"2026-11-24", "android:phone-001"} <= set(told.split())


def test_it_waits_for_a_device_that_matches_and_names_what_is_unsatisfied_once() -> None:
    night = SimNight(make_farm("a"), [])
    night.run()
    assert any(text.startswith("waiting up to 15 min") for text in night.texts)
    assert sum("a on phones: " in text for text in night.texts) == 1
    night.named = frozenset({("a", "phones")})
    night.events.clear()
    assert night.run().unsatisfied == ("a on phones",)
    assert not any("no device matches" in text for text in night.texts)


def test_in_a_window_the_first_device_may_come_late() -> None:
    night = SimNight(make_farm("a"), [], hours=8.0)
    night.clock.at(3 * 3600.0, lambda: night.engine.plug(PHONES[0]))
    assert standings(night.run().states) == {Standing.DONE: 3}
    nobody = SimNight(make_farm("a"), [], hours=8.0)
    [state] = nobody.run().states
    assert (state.standing, state.reason) == (Standing.MISSED, "no device matches")
    assert nobody.clock.at_s == pytest.approx(8 * 3600, abs=120)


def test_what_no_device_could_measure_is_a_missed_visit_of_the_night() -> None:
    night = SimNight(make_farm("ab"), PHONES[:1])
    lacks = Unsatisfied(recipe="a", group="bench", reason="there is no device android:X")

    def without_bench(*arguments: Any) -> NightPlan:
        return plan(*arguments).model_copy(update={"unsatisfied": (lacks,)})

    night.plan = without_bench
    end = night.run()
    [missed] = [state for state in end.states if state.standing is Standing.MISSED]
    assert (missed.visit.recipe, missed.visit.group) == ("a", "bench")
    assert missed.reason == lacks.reason
    assert len({state.visit.id for state in end.states}) == len(end.states) == 7
    assert night.ledger.nights[end.night][missed.visit.id] == missed


def test_a_device_of_an_earlier_night_that_is_not_there_is_missed_by_name() -> None:
    night = SimNight(make_farm("a", repeats=1), PHONES[:1])
    for number, phone in enumerate(PHONES[:2]):
        visit = Visit(
            id=f"before-{number}", recipe="a", group="phones", device=phone.identity,
            among=(phone.identity,), name=phone.name,
        )  # fmt: skip
        done = AttemptResult(
            visit=visit.id, attempt=1, identity=phone.identity, host="h", fate=Fate.DONE
        )
        night.times.learn([VisitState(visit=visit, standing=Standing.DONE, attempts=(done,))])
    end = night.run()
    assert standings(end.states) == {Standing.DONE: 1, Standing.MISSED: 1}
    [missed] = [state for state in end.states if state.standing is Standing.MISSED]
    assert (missed.visit.device, missed.visit.name) == (None, PHONES[1].name)
    assert missed.reason == "it was not there, and was measured in night before"


def test_a_phone_that_was_offline_before_it_said_who_it_is_is_one_device() -> None:
    silent = PHONES[0].model_copy(update={"identity": "android-?", "problem": "offline"})
    night = SimNight(make_farm("a"), [silent, PHONES[1]])
    planned: list[set[str]] = []

    def watched(*arguments: Any) -> NightPlan:
        planned.append({offer.identity for offer in arguments[2]})
        return plan(*arguments)

    def answer() -> None:
        night.engine.plugged = list(PHONES[:2])

    night.plan = watched
    night.clock.at(70.0, answer)
    end = night.run()
    assert standings(end.states) == {Standing.DONE: 6}
    assert "android-?" in end.devices
    assert planned[-1] == {"phone-000", "phone-001"}


def test_a_device_that_appears_later_gets_its_visits() -> None:
    night = SimNight(make_farm("a"), PHONES[:1], lambda *_: Script(900.0))
    night.clock.at(1000.0, lambda: night.engine.plug(PHONES[1]))
    end = night.run()
    assert standings(by_device(end, "phone-001")) == {Standing.DONE: 3}
    assert len({state.visit.id for state in end.states}) == 6
    assert any("3 more visits" in t and "android:phone-001" in t for t in night.texts)


def test_a_phone_on_two_hosts_is_measured_once_and_both_are_told() -> None:
    twice = [offer_of(0, host="one"), offer_of(0, host="two")]
    night = SimNight(make_farm("a", repeats=1), twice)
    end = night.run()
    assert standings(end.states) == {Standing.DONE: 1}
    assert [order.offer.host for order in night.engine.started] == ["one"]
    assert any("offered by one and two" in text for text in night.texts)


def test_an_attempt_that_was_put_off_too_often_is_missed() -> None:
    empty = AttemptFailure(kind="gate", exit_code=6, message="battery at 4 % (at least 30 %)")
    night = SimNight(
        make_farm("a", repeats=1), PHONES[:1], lambda *_: Script(600.0, Fate.PUT_OFF, empty)
    )
    [state] = night.run().states
    assert state.standing is Standing.MISSED
    assert len(state.attempts) == 10
    assert "battery at 4 %" in state.reason


def test_what_cannot_be_exported_fails_at_once_and_the_rest_is_measured() -> None:
    failure = AttemptFailure(kind="export", exit_code=3, message="no such model\nlog: x")

    def partly(wanted: Mapping[str, Sequence[AvailableDevice]]) -> PreparedArtifacts:
        made = prepare(wanted)
        bad = {key: failure for key in made.artifacts if key[0] == "b"}
        good = {key: artifact for key, artifact in made.artifacts.items() if key[0] != "b"}
        return PreparedArtifacts(good, bad)

    night = SimNight(make_farm("ab"), PHONES)
    night.prepare = partly
    end = night.run()
    assert standings(end.states) == {Standing.DONE: 12, Standing.FAILED: 12}
    failed = [state for state in end.states if state.visit.recipe == "b"]
    assert {state.reason for state in failed} == {"export: no such model"}
    assert failed[0].attempts[0].failure == failure


def test_odd_numbers_quarantine_a_device() -> None:
    def number(ending: AttemptResult) -> float:
        slower = 6.0 if ending.identity == "phone-002" else 0.1
        return 10.0 + slower * night.ledger.states[ending.visit].visit.repeat

    night = SimNight(make_farm("abc", repeats=3), [offer_of(number) for number in range(6)])
    night.numbers = number
    end = night.run()
    assert list(end.quarantined) == ["phone-002"]
    assert "apart" in end.quarantined["phone-002"]


def test_trouble_with_engine_and_database_ends_nothing() -> None:
    night = SimNight(make_farm("a"), PHONES)
    real, calls = night.engine.offers, Counter[str]()

    def sometimes() -> Sequence[AvailableDevice]:
        calls["offers"] += 1
        if calls["offers"] % 3 == 0:
            raise OSError("the scheduler does not answer")
        return real()

    night.engine.offers = sometimes  # type: ignore[method-assign]
    night.clock.at(10.0, lambda: setattr(night.ledger, "down", True))
    night.clock.at(700.0, lambda: setattr(night.ledger, "down", False))
    end = night.run()
    assert standings(end.states) == {Standing.DONE: 12}
    assert standings(list(night.ledger.states.values())) == {Standing.DONE: 12}


def test_a_stop_ends_what_is_under_way_and_the_same_call_goes_on() -> None:
    night = SimNight(make_farm("a"), PHONES)

    def stop(event: Event) -> None:
        if event.kind is EventKind.FINISHED:
            cancel.request()

    night.heard = stop
    with cancel.trapped_signals():
        first = night.run()
    assert first.stopped
    assert night.engine.under_way == {}
    night.heard = lambda _: None
    end = night.run()
    assert not end.stopped
    assert standings(end.states) == {Standing.DONE: 12}
    assert max(night.ledger.counted.values()) == 1


def test_a_farm_that_another_process_took_over_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    night = SimNight(make_farm("a"), PHONES)

    def taken(*_: object) -> None:
        raise TakenError("another process runs this farm")

    monkeypatch.setattr(night.ledger, "running", taken)
    with pytest.raises(TakenError):
        night.run()
    assert night.engine.started == []


def test_a_result_that_comes_late_counts_and_its_repetition_is_ended() -> None:
    night = SimNight(make_farm("a", repeats=1), PHONES[:1], lambda *_: Script(600.0))
    late = AttemptResult(
        visit="lab-1-1", attempt=1, identity="phone-000", host="host-0", fate=Fate.DONE,
        run_id="late", seconds=1.0,
    )  # fmt: skip

    def lose() -> None:
        night.engine.lose(lambda _: True)
        night.clock.at(night.clock.at_s + 200.0, lambda: night.engine.late.append(late))

    night.clock.at(60.0, lose)
    [state] = night.run().states
    assert state.result == late
    assert night.engine.cancelled == ["lab-1-1"]
    assert night.ledger.counted == {"lab-1-1": 1}
