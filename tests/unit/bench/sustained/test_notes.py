"""What is said about a sustained pass."""

from __future__ import annotations

from typing import Any

from etdeploy.bench.records.conditions import CooldownWait
from etdeploy.bench.records.performance import Sustained, SustainedPoint
from etdeploy.bench.sustained import sustained_notes


def _sustained(count: int = 100, **changes: Any) -> Sustained:
    values: dict[str, Any] = {
        "seconds": 600.0,
        "inferences": 30_000,
        "points": (SustainedPoint(seconds=6, inferences_per_s=50),) * count,
        "start_per_s": 50.0,
        "end_per_s": 49.0,
        "retained_percent": 98.0,
        "to_minus_10_percent_s": None,
        "to_minus_25_percent_s": None,
    }
    return Sustained(**(values | changes))


def test_nothing_is_said_of_a_rate_that_stays() -> None:
    assert not list(sustained_notes(_sustained()))


def test_what_is_lost_is_said_with_what_to_plan_with() -> None:
    lost = _sustained(retained_percent=62.4, end_per_s=31.2, to_minus_10_percent_s=95.0)
    assert list(sustained_notes(lost)) == [
        "Work without a pause keeps 62 % of its rate after 10 min, and loses the first 10 % after "
        "95 s: plan with 31.2 inferences per second where an application works for that long."
    ]


def test_few_stretches_are_no_ground_for_a_judgement() -> None:
    [note] = sustained_notes(_sustained(2, inferences=2, retained_percent=50.0))
    assert "2 inferences in 10 min, too little" in note
    assert "--set benchmark.sustained_s=600" in note


def test_half_a_minute_shows_no_heat() -> None:
    [note] = sustained_notes(_sustained(seconds=30.0, retained_percent=80.0))
    assert "in 30 s, too little" in note


def test_a_warm_start_is_said() -> None:
    warm = CooldownWait(
        sensor="battery", from_celsius=45, to_celsius=41, waited_s=300, reached=False
    )
    [note] = sustained_notes(_sustained(cooldown=warm))
    assert "battery was at 41 °C" in note
    cool = warm.model_copy(update={"reached": True})
    assert not list(sustained_notes(_sustained(cooldown=cool)))
