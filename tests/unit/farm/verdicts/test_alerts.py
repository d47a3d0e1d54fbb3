"""Alerts of nights in a real history: opened once, open while the number is worse, and closed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from etdeploy.farm.verdicts.alerts import next_alerts
from etdeploy.farm.verdicts.night import judge_night, save_alerts
from etdeploy.farm.verdicts.pair import NightFinding, PairVerdict, VerdictKind
from etdeploy.history.alerts import Alert, AlertState, followed, group_alerts
from etdeploy.history.store.alerts import save_alert, stored_alerts
from etdeploy.history.store.store import Store, open_store
from tests.support.histories import make_alert
from tests.support.judged_nights import farm, keep_nights, night_id, place_in, quiet, states_of

_BAD = quiet(30, 1.1, seed=5)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(place_in(tmp_path)) as opened:
        yield opened


def play(store: Store, levels: list[float], first: int = 0, judged_from: int = 15) -> PairVerdict:
    """Measures, judges and follows nights; the verdict on the last."""
    made = keep_nights(store, levels, first=first, within=0.001)
    for day, runs in enumerate(made, first):
        if day >= judged_from:
            verdicts = judge_night(store, night_id(day), states_of(day, runs), farm())
            save_alerts(store, verdicts, farm(), night_id(day), runs[0].started_at)
    return verdicts[0]


def stored(store: Store) -> list[Alert]:
    with store.transaction() as connection:
        return stored_alerts(connection, "shelf")


def change(store: Store, alert: Alert, **changes: Any) -> None:
    with store.transaction(writes=True) as connection:
        save_alert(connection, alert.model_copy(update=changes))


def test_a_lasting_slowdown_is_one_alert_that_stays_open(store: Store) -> None:
    verdict = play(store, [*quiet(20), *_BAD])
    [alert] = stored(store)
    assert (alert.id, alert.state, alert.metric) == (1, AlertState.OPEN, "latency_ms")
    assert alert.change_percent == pytest.approx(10, abs=3)
    assert alert.before == pytest.approx(1.0, abs=0.01)
    assert alert.nights > 25
    # The level of the last 30 nights has not become the normal one.
    assert verdict.kind is VerdictKind.REGRESSED
    assert "alert 1" in verdict.reason
    assert alert.commits


def test_it_is_fixed_after_three_nights_of_the_level_before(store: Store) -> None:
    play(store, [*quiet(20), *_BAD[:5], *quiet(2, seed=8)])
    [alert] = stored(store)
    assert (alert.state, alert.returned) == (AlertState.OPEN, 2)
    verdict = play(store, quiet(1, seed=9), first=27)
    [alert] = stored(store)
    assert alert.state is AlertState.FIXED
    assert alert.changed_at
    assert verdict.kind is not VerdictKind.REGRESSED


def test_an_accepted_level_is_the_baseline(store: Store) -> None:
    play(store, [*quiet(20), *_BAD[:6]])
    [alert] = stored(store)
    change(store, alert, state=AlertState.ACCEPTED, who="ann")
    verdict = play(store, _BAD[6:16], first=26)
    assert verdict.kind is VerdictKind.NO_DIFFERENCE
    assert len(stored(store)) == 1
    # Worse than what was accepted is another alert.
    assert play(store, [1.45, 1.45], first=36).kind is VerdictKind.REGRESSED
    assert [each.state for each in stored(store)] == [AlertState.OPEN, AlertState.ACCEPTED]


def test_after_a_false_alarm_the_same_level_opens_none(store: Store) -> None:
    play(store, [*quiet(20), *_BAD[:6]])
    [alert] = stored(store)
    change(store, alert, state=AlertState.FALSE_ALARM)
    play(store, _BAD[6:9], first=26)
    assert len(stored(store)) == 1


def test_a_night_that_is_concluded_twice_counts_once(store: Store) -> None:
    play(store, [*quiet(20), *_BAD[:4]])
    before = stored(store)
    assert [each.state for each in before] == [AlertState.OPEN]
    with store.transaction() as connection:
        assert stored_alerts(connection, "another") == []
    last = keep_nights(store, [_BAD[3]], first=23, within=0.001)[0]
    verdicts = judge_night(store, night_id(23), states_of(23, last), farm())
    assert save_alerts(store, verdicts, farm(), night_id(23), last[0].started_at) == []
    assert stored(store) == before


def test_nights_that_return_in_between_start_anew() -> None:
    alert = make_alert()
    for night, value in (("n2", 1.0), ("n3", 1.0), ("n4", 1.2), ("n5", 1.0), ("n6", None)):
        alert = followed(alert, night, value, "now")
    assert (alert.state, alert.returned, alert.nights) == (AlertState.OPEN, 1, 2)
    assert followed(alert, "n5", 1.0, "now") == alert


def test_alerts_of_one_device_are_the_devices() -> None:
    three = {"recipes_on_device": 3, "remedy": "bisect"}
    of_device = [make_alert(recipe=recipe, **three) for recipe in "abc"]
    commits = {"old_revision": "a" * 40, "new_revision": "b" * 40, "remedy": "bisect"}
    of_commits = [make_alert(identity=name, device=name, **commits) for name in "xy"]
    alone = make_alert(identity="z", recipe="d")
    groups = group_alerts([*of_device, *of_commits, alone])
    assert [len(group.alerts) for group in groups] == [3, 2, 1]
    assert groups[0].cause.startswith("device phone")
    assert "quarantine i" in groups[0].remedy
    assert groups[1].cause == f"commits {'a' * 12}..{'b' * 12}"
    assert groups[1].remedy == "bisect"
    # Of ten recipes, three are no device.
    few = group_alerts([make_alert(recipe=recipe, recipes_on_device=10) for recipe in "abc"])
    assert not any(group.cause.startswith("device") for group in few)


def test_what_a_person_has_acknowledged_does_not_fail_a_night(store: Store) -> None:
    assert play(store, [*quiet(20), *_BAD[:6]]).acknowledged == ""
    [alert] = stored(store)
    answer = {"state": AlertState.ACKNOWLEDGED, "who": "ann", "answered": alert.after}
    change(store, alert, **answer)
    verdict = play(store, _BAD[6:9], first=26)
    assert (verdict.kind, verdict.acknowledged) == (VerdictKind.REGRESSED, "acknowledged by ann")
    assert verdict.text == "regressed, acknowledged by ann"
    # Worse than what was acknowledged is open again.
    verdict = play(store, [1.3], first=29)
    assert (verdict.kind, verdict.acknowledged) == (VerdictKind.REGRESSED, "")
    [alert] = stored(store)
    assert (alert.state, alert.who) == (AlertState.OPEN, "")
    assert alert.note == "worse than what ann acknowledged"


def test_a_false_alarm_is_not_told_again(store: Store) -> None:
    play(store, [*quiet(20), *_BAD[:6]])
    [alert] = stored(store)
    closed = {"state": AlertState.FALSE_ALARM, "who": "ann", "answered": alert.after}
    change(store, alert, **closed)
    verdict = play(store, _BAD[6:8], first=26)
    assert verdict.kind is VerdictKind.NO_DIFFERENCE
    found = verdict.finding("latency_ms")
    assert found
    assert found.reason.endswith("alert 1: false alarm by ann")
    assert play(store, [1.45, 1.45], first=28).kind is VerdictKind.REGRESSED
    assert [each.state for each in stored(store)] == [AlertState.OPEN, AlertState.FALSE_ALARM]


def test_results_that_arrive_days_late_change_no_alert_of_later_nights(store: Store) -> None:
    normal, slow = quiet(23), _BAD[:6]
    play(store, [*normal[:20], *slow])
    [alert] = stored(store)
    # Three nights of before, as fast as they were, have not returned to anything.
    for day in (17, 18, 19):
        runs = keep_nights(store, [1.0], first=day, recipe="mlp", within=0.001)[0]
        verdicts = judge_night(store, night_id(day), states_of(day, runs), farm())
        assert save_alerts(store, verdicts, farm(), night_id(day), runs[0].started_at) == []
    assert stored(store) == [alert]
    # Nor does a late night open what was fixed since.
    change(store, alert, state=AlertState.FIXED)
    bad = judge_night(store, night_id(25), states_of(25, _runs(store, 25)), farm())
    assert bad[0].kind is VerdictKind.REGRESSED
    began = _runs(store, 24)[0].started_at
    assert save_alerts(store, bad, farm(), "late", began) == []


def _runs(store: Store, day: int) -> list[Any]:
    return keep_nights(store, [_BAD[day - 20]], first=day, within=0.001)[0]


def test_a_clock_that_was_set_back_does_not_stop_an_alert() -> None:
    alert = Alert(
        id=1, farm="shelf", series="s", metric="latency_ms", night="n1", recipe="mlp",
        opened_at="2030-01-01T00:00:00+00:00", device="a", identity="a", before=1.0, after=1.2,
    )  # fmt: skip
    began, now = "2026-11-02T00:00:00+00:00", "2026-11-02T06:00:00+00:00"
    for night in ("n2", "n3", "n4"):
        finding = NightFinding(metric="latency_ms", kind=VerdictKind.NO_DIFFERENCE, value=1.0)
        verdict = PairVerdict(
            recipe="mlp", identity="a", device="a", series="s", run_ids=("r",),
            kind=VerdictKind.NO_DIFFERENCE, findings=(finding,),
        )  # fmt: skip
        [alert] = next_alerts(
            [alert], [verdict], farm="shelf", night=night, began=began, now=now,
            allowed_percent=5.0,
        )  # fmt: skip
        assert alert.was_open_in(night, began, now)
    assert alert.state is AlertState.FIXED
    # Days later, the same would be late.
    assert alert.is_ahead_of("2026-11-01T00:00:00+00:00", "2026-11-05T00:00:00+00:00")
    assert not alert.is_ahead_of("not a date", now)
