"""What a night ends with."""

from __future__ import annotations

from typing import Any

import pytest

from etdeploy.cli.night_display import night_error, night_totals
from etdeploy.core.errors import DeviceError
from etdeploy.farm.model import (
    STOPPED,
    AttemptFailure,
    AttemptResult,
    Fate,
    Standing,
    Visit,
    VisitState,
)
from etdeploy.farm.night.model import NightEnd


def state_of(number: int, standing: Standing, *endings: dict[str, Any]) -> VisitState:
    visit = Visit(id=f"n-{number}", recipe="a", group="g", device="p", among=("p",))
    made = tuple(
        AttemptResult.model_validate(
            {"visit": visit.id, "attempt": i + 1, "identity": "p", "host": "h", **each}
        )
        for i, each in enumerate(endings)
    )
    reason = "" if standing is Standing.DONE else f"why {number}"
    return VisitState(visit=visit, standing=standing, attempts=made, reason=reason)


def failed(code: int, kind: str = "run") -> dict[str, Any]:
    failure = AttemptFailure(kind=kind, exit_code=code, message=f"{kind} failed")
    return {"fate": Fate.FAILED, "failure": failure}


DONE = {"fate": Fate.DONE, "run_id": "r"}
DIFFERS = {**failed(8, "outputs differ"), "fate": Fate.DONE, "run_id": "r"}


def code(*states: VisitState, verdicts: tuple[str, ...] = ()) -> int:
    error = night_error(NightEnd("n", states), verdicts)
    return error.exit_code if error else 0


@pytest.mark.parametrize(
    ("states", "verdicts", "expected"),
    [
        ((state_of(1, Standing.DONE, DONE),), (), 0),
        ((state_of(1, Standing.DONE, failed(7), DONE),), (), 0),
        ((state_of(1, Standing.DONE, DONE),), ("no difference found", "suspected"), 0),
        ((state_of(1, Standing.DONE, DONE),), ("regressed",), 1),
        ((state_of(1, Standing.FAILED, failed(7)),), ("regressed",), 1),
        ((state_of(1, Standing.FAILED, failed(6)), state_of(2, Standing.FAILED, failed(7))), (), 7),
        ((state_of(1, Standing.DONE, DIFFERS), state_of(2, Standing.FAILED, failed(3))), (), 8),
        ((state_of(1, Standing.FAILED, {"fate": Fate.LOST}),), (), 6),
        ((state_of(1, Standing.DONE, DONE), state_of(2, Standing.MISSED)), (), 0),
        ((state_of(1, Standing.MISSED),), (), 6),
        ((), (), 6),
    ],
)
def test_the_exit_code(
    states: tuple[VisitState, ...], verdicts: tuple[str, ...], expected: int
) -> None:
    assert code(*states, verdicts=verdicts) == expected


def test_the_error_says_what_happened() -> None:
    worst = night_error(NightEnd("n", (state_of(1, Standing.FAILED, failed(7)),)), ())
    assert str(worst).startswith("1 of 1 visit failed")
    differs = night_error(NightEnd("n", (state_of(1, Standing.DONE, DIFFERS),)), ())
    assert " of 1 of 1 visit differ" in str(differs)
    nothing = night_error(NightEnd("n", (state_of(1, Standing.MISSED),)), ())
    assert "why 1" in str(nothing)
    assert "2 recipes have " in str(night_error(NightEnd("n", ()), ("regressed",) * 2))
    assert "1 recipe has " in str(night_error(NightEnd("n", ()), ("regressed",)))


def test_a_night_of_which_nothing_could_be_judged_fails_unless_something_is_worse() -> None:
    blocked = DeviceError("nothing could be judged: hot")
    done, failure = state_of(1, Standing.DONE, DONE), state_of(2, Standing.FAILED, failed(7))
    assert night_error(NightEnd("n", (done,)), ("not judged",), blocked) is blocked
    worse = night_error(NightEnd("n", (done, failure)), ("not judged",), blocked)
    assert worse is not None
    assert worse.exit_code == 7
    nothing = night_error(NightEnd("n", (state_of(1, Standing.MISSED),)), (), blocked)
    assert "nothing was measured" in str(nothing)


def test_a_visit_that_was_given_up_with_its_recipe_fails_as_the_recipe_did() -> None:
    given_up = state_of(2, Standing.FAILED).model_copy(update={"reason": f"{STOPPED}: it failed"})
    assert code(state_of(1, Standing.FAILED, failed(5, "check")), given_up) == 5


def test_totals_count_every_visit() -> None:
    states = (state_of(1, Standing.DONE, failed(7), DONE), state_of(2, Standing.MISSED))
    found = night_totals(NightEnd("n", states, quarantined={"p": "hot"}), ("regressed", "improved"))
    assert (found["visits"], found["done"], found["missed"], found["attempts"]) == (2, 1, 1, 2)
    assert found["verdicts"] == {"regressed": 1, "improved": 1}
    assert found["quarantined"] == {"p": "hot"}
