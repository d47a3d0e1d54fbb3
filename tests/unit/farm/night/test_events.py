"""What events make of a visit."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from etdeploy.farm.model import AttemptResult, Fate
from etdeploy.farm.night.events import (
    AttemptEnded,
    Began,
    GivenUp,
    apply_event,
    new_visit,
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


def test_while_another_attempt_is_under_way_it_runs() -> None:
    both = begin(begin(NEW), 2, "u", "android-B")
    assert end(both, make_ending("n-1", fate=Fate.FAILED)).standing == "running"


def test_what_becomes_known_of_a_lost_attempt_replaces_it() -> None:
    lost = make_ending("n-1", fate=Fate.LOST)
    done = make_ending("n-1", run_id="r")
    kept = end(end(begin(NEW), lost), done)
    assert fates(kept) == ["done"]
    assert end(kept, lost) == kept


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
    assert fates(kept) == ["put off", "done"]
    for count in range(1, len(steps) + 1):
        again = kept
        for step in itertools.islice(steps, count):
            again = step(again)
        assert again == kept
