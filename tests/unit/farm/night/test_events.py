"""What events make of a visit."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from etdeploy.farm.model import AttemptResult, Fate, Standing
from etdeploy.farm.night.events import (
    AttemptEnded,
    Began,
    GivenUp,
    apply_event,
    is_counted,
    new_visit,
    open_attempts,
    state_of,
)
from etdeploy.history.nights import KeptVisit
from tests.support.nights import make_ending, make_visit

NEW = new_visit(make_visit("n", 1))
AT = "2026-11-23T22:00:00+00:00"


def begin(
    kept: KeptVisit, attempt: int = 1, named: str = "t", identity: str = "android-A"
) -> KeptVisit:
    event = Began(
        visit="n-1", attempt=attempt, identity=identity, host="wolf", device="", id=named, at=AT
    )
    return apply_event(kept, event)


def end(kept: KeptVisit, ending: AttemptResult) -> KeptVisit:
    return apply_event(kept, AttemptEnded(ending=ending, id=AT, at=AT))


def fates(kept: KeptVisit) -> list[str | None]:
    return [attempt.fate for attempt in kept.attempts]


def test_an_attempt_that_is_measured_counts() -> None:
    running = begin(NEW)
    assert (running.standing, len(open_attempts(running))) == ("running", 1)
    done = make_ending("n-1", run_id="r")
    kept = end(running, done)
    assert is_counted(kept, done)
    state = state_of(kept)
    assert state.standing is Standing.DONE
    assert state.result == done


def test_a_second_one_does_not() -> None:
    first, second = make_ending("n-1", run_id="r1"), make_ending("n-1", 2, run_id="r2")
    kept = end(end(begin(begin(NEW), 2, "u"), first), second)
    assert is_counted(kept, first)
    assert fates(kept) == ["done", "done"]


@pytest.mark.parametrize("fate", [Fate.FAILED, Fate.PUT_OFF, Fate.LOST])
def test_after_another_end_the_visit_waits_again(fate: Fate) -> None:
    kept = end(begin(NEW), make_ending("n-1", fate=fate))
    assert kept.standing == "waiting"


def test_while_another_attempt_is_under_way_it_runs() -> None:
    both = begin(begin(NEW), 2, "u", "android-B")
    assert end(both, make_ending("n-1", fate=Fate.FAILED)).standing == "running"


def test_what_becomes_known_of_a_lost_attempt_replaces_it() -> None:
    lost = make_ending("n-1", fate=Fate.LOST)
    done = make_ending("n-1", run_id="r")
    kept = end(end(begin(NEW), lost), done)
    assert fates(kept) == ["done"]
    assert end(kept, lost) == kept


def test_a_put_off_attempt_is_begun_again_with_the_same_number() -> None:
    off, done = make_ending("n-1", fate=Fate.PUT_OFF), make_ending("n-1", run_id="r")
    kept = end(begin(end(begin(NEW), off), named="u"), done)
    assert fates(kept) == ["put off", "done"]


def test_a_visit_that_was_given_up_may_still_be_measured() -> None:
    gone = GivenUp(visit="n-1", standing="missed", reason="the window closed")
    kept = apply_event(begin(NEW), gone)
    assert (kept.standing, kept.reason) == ("missed", "the window closed")
    assert end(kept, make_ending("n-1", fate=Fate.FAILED)).standing == "missed"
    done = end(kept, make_ending("n-1", run_id="r"))
    assert (done.standing, done.reason) == ("done", "")
    assert apply_event(done, gone) == done


def test_events_told_again_change_nothing() -> None:
    off, done = make_ending("n-1", fate=Fate.PUT_OFF), make_ending("n-1", run_id="r")
    steps: tuple[Callable[[KeptVisit], KeptVisit], ...] = (
        lambda kept: begin(kept, 1, "a"), lambda kept: end(kept, off),
        lambda kept: begin(kept, 1, "b"), lambda kept: end(kept, done),
    )  # fmt: skip
    kept = NEW
    for step in steps:
        kept = step(kept)
    for count in range(1, len(steps) + 1):
        again = kept
        for step in itertools.islice(steps, count):
            again = step(again)
        assert again == kept
