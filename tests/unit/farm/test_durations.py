"""How long a night is expected to take."""

from __future__ import annotations

from pathlib import Path

from etdeploy.devices.base import DeviceFacts
from etdeploy.farm.forecast import earlier_seconds, estimate_duration, makespan_s, visited_seconds
from etdeploy.farm.model import AvailableDevice, Visit
from etdeploy.history.location import resolve_location
from etdeploy.history.nights import KeptAttempt, KeptNight, KeptVisit
from etdeploy.history.store.nights import add_night, add_visits
from etdeploy.history.store.store import open_store
from tests.support.bench_values import make_record
from tests.support.histories import DAY, fill, recipe_named


def visit(device: str | None, *among: str, recipe: str = "a", not_before_s: float = 0) -> Visit:
    return Visit(
        id="n-1", recipe=recipe, group="g", device=device, among=among or (device or "",),
        not_before_s=not_before_s,
    )  # fmt: skip


def test_a_pair_that_was_measured_has_the_median_of_its_runs() -> None:
    earlier = {("a", "x"): [10.0, 30.0, 20.0], ("a", "y"): [90.0]}
    known = estimate_duration("a", ["x"], earlier)
    assert (known.seconds, known.measured, known.basis) == (20, True, "median of 3 runs")


def test_others_are_a_guess_that_says_so() -> None:
    known = {("a", "x"): [10.0], ("b", "y"): [50.0]}
    for recipe, earlier, seconds, basis in (
        ("a", known, 10, "devices"), ("c", known, 30, "recipes"), ("a", {}, 120, "nothing"),
    ):  # fmt: skip
        guess = estimate_duration(recipe, ["y"], earlier)
        assert (guess.seconds, guess.measured) == (seconds, False)
        assert guess.basis.startswith("guess, ")
        assert basis in guess.basis


def test_devices_work_at_once_and_each_for_itself() -> None:
    earlier = {("a", "x"): [10.0], ("a", "y"): [25.0]}
    assert makespan_s([visit("x"), visit("x"), visit("y")], earlier) == 25
    assert makespan_s([visit("x")] * 4, earlier) == 40
    assert makespan_s([visit("x"), visit("x", not_before_s=100)], earlier) == 110
    # Whoever is free takes what any may do.
    assert makespan_s([visit(None, "x", "y")] * 2, earlier) == 25
    assert makespan_s([], earlier) == 0


def test_the_history_tells_what_runs_took(tmp_path: Path) -> None:
    place = resolve_location(str(tmp_path / "history.db"))
    assert place
    [first, *_] = make_record().passes.values()
    timed = {"timing": first.model_copy(update={"seconds": 7.0}),
             "memory": first.model_copy(update={"seconds": 3.0})}  # fmt: skip
    facts = make_record().device.facts
    offer = AvailableDevice(identity="it", name=facts.name, host="h", facts=facts)
    stranger = AvailableDevice(identity="no", name="x", host="h",
                     facts=DeviceFacts(name="x", kind="ssh", target="linux-aarch64"))  # fmt: skip
    with open_store(place) as store:
        fill(store, [1.0, 1.1], recipe=recipe_named("mlp"), passes=timed)
        found = earlier_seconds(store, {"label": "mlp", "other": "conv"}, [offer, stranger])
    assert found == {("label", "it"): [10.0, 10.0]}


def test_the_visits_of_earlier_nights_tell_what_they_took(tmp_path: Path) -> None:
    place = resolve_location(str(tmp_path / "history.db"))
    assert place
    night = KeptNight(id="n", farm="lab", digest="d", started_at=f"{DAY}T22:00:00+00:00")
    ended = {"attempt": 1, "token": "t", "identity": "it", "host": "h",
             "started_at": night.started_at, "content": {"seconds": 40.0}}  # fmt: skip
    kept = KeptVisit(
        id="n-1", content={"recipe": "a"}, standing="done",
        attempts=(KeptAttempt(**ended), KeptAttempt(**ended | {"attempt": 2, "counts": True})),
    )  # fmt: skip
    with open_store(place) as store:
        with store.transaction(writes=True) as connection:
            add_night(connection, night)
            add_visits(connection, "n", [kept])
        assert visited_seconds(store, "lab") == {("a", "it"): [40.0]}
        assert visited_seconds(store, "other") == {}
