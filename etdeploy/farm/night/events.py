"""Events of a night, and what each makes of a visit: pure, for the outbox and the database.

Each event has an id: applying one a second time changes nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from etdeploy.core.values import Value
from etdeploy.farm.model import AttemptResult, Fate, Standing, Visit, VisitState
from etdeploy.history.nights import KeptAttempt, KeptNight, KeptVisit


class NightEvent(Value):
    """What all events have."""

    id: str = Field(default_factory=lambda: secrets.token_hex(8))


class Opened(NightEvent):
    """A night began, or was resumed: all that is known of it."""

    op: Literal["opened"] = "opened"
    night: KeptNight
    visits: tuple[KeptVisit, ...] = ()


class Planned(NightEvent):
    """Visits were added to a night."""

    op: Literal["planned"] = "planned"
    night: str
    visits: tuple[KeptVisit, ...]


class Began(NightEvent):
    """An attempt began; `at` is in UTC, ISO 8601."""

    op: Literal["began"] = "began"
    visit: str
    attempt: int
    identity: str
    host: str
    device: str
    at: str


class AttemptEnded(NightEvent):
    """An attempt ended."""

    op: Literal["ended"] = "ended"
    ending: AttemptResult
    at: str

    @property
    def visit(self) -> str:
        """The id of its visit."""
        return self.ending.visit


class GivenUp(NightEvent):
    """A visit is not measured in this night; `standing` is failed or missed."""

    op: Literal["given up"] = "given up"
    visit: str
    standing: str
    reason: str


class Closed(NightEvent):
    """A night ended."""

    op: Literal["closed"] = "closed"
    night: str
    outcome: str
    at: str


VisitEvent = Began | AttemptEnded | GivenUp
Event = Opened | Planned | VisitEvent | Closed
_EVENTS: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="op")])


def parse_event(line: str) -> Event | None:
    """Reads an event from a line of JSON; None for another line."""
    try:
        return _EVENTS.validate_json(line)
    except ValidationError:
        return None


def new_visit(visit: Visit) -> KeptVisit:
    """A visit that nothing has happened to."""
    return KeptVisit(id=visit.id, content=visit.model_dump(mode="json"), standing=Standing.WAITING)


def apply_event(kept: KeptVisit, event: VisitEvent) -> KeptVisit:
    """Return the visit as the event leaves it."""
    if isinstance(event, Began):
        return _began(kept, event)
    if isinstance(event, AttemptEnded):
        return _ended(kept, event)
    if has_result(kept):
        return kept
    return kept.model_copy(update={"standing": event.standing, "reason": event.reason})


def replay_events(events: Iterable[Event]) -> dict[str, Opened]:
    """Return the nights that the events tell of, by id, with their visits."""
    nights: dict[str, KeptNight] = {}
    visits: dict[str, tuple[str, KeptVisit]] = {}
    for event in events:
        if isinstance(event, Opened):
            nights.setdefault(event.night.id, event.night)
        if isinstance(event, Opened | Planned):
            night = event.night.id if isinstance(event, Opened) else event.night
            for visit in event.visits:
                visits.setdefault(visit.id, (night, visit))
        elif isinstance(event, Closed):
            if event.night in nights and nights[event.night].ended_at is None:
                update = {"ended_at": event.at, "outcome": event.outcome}
                nights[event.night] = nights[event.night].model_copy(update=update)
        elif event.visit in visits:
            night, kept = visits[event.visit]
            visits[event.visit] = night, apply_event(kept, event)
    by_night: dict[str, list[KeptVisit]] = {id_: [] for id_ in nights}
    for night, kept in visits.values():
        by_night.setdefault(night, []).append(kept)
    return {id_: Opened(night=night, visits=tuple(by_night[id_])) for id_, night in nights.items()}


def _began(kept: KeptVisit, event: Began) -> KeptVisit:
    same = (event.attempt, event.identity, event.host)
    if any(a.token == event.id or (a.ended_at is None and _key(a) == same) for a in kept.attempts):
        return kept
    attempt = KeptAttempt(
        attempt=event.attempt, token=event.id, identity=event.identity, host=event.host,
        device=event.device, started_at=event.at,
    )  # fmt: skip
    standing = kept.standing if has_result(kept) else Standing.RUNNING
    return kept.model_copy(
        update={"attempts": (*kept.attempts, attempt), "standing": str(standing), "reason": ""}
    )


def _ended(kept: KeptVisit, event: AttemptEnded) -> KeptVisit:
    """The attempt counts if it is the first of its visit that was measured."""
    ending = event.ending
    if any(_ending(each) == ending for each in kept.attempts):
        return kept
    place = _find_attempt(kept, ending)
    same = (ending.attempt, ending.identity, ending.host)
    if place is None and ending.fate is Fate.LOST and any(_key(a) == same for a in kept.attempts):
        return kept  # what is known is better than that nothing is
    before = None if place is None else kept.attempts[place]
    made = KeptAttempt(
        attempt=ending.attempt,
        token=before.token if before else event.id,
        identity=ending.identity,
        host=ending.host,
        device=before.device if before else "",
        started_at=before.started_at if before else event.at,
        ended_at=event.at,
        fate=str(ending.fate),
        run_id=ending.run_id,
        content=ending.model_dump(mode="json"),
        counts=ending.fate is Fate.DONE and not has_result(kept),
    )
    attempts = list(kept.attempts)
    if place is None:
        attempts.append(made)
    else:
        attempts[place] = made
    after = kept.model_copy(update={"attempts": tuple(attempts)})
    if has_result(after):
        return after.model_copy(update={"standing": str(Standing.DONE), "reason": ""})
    if after.standing == Standing.RUNNING and not open_attempts(after):
        return after.model_copy(update={"standing": str(Standing.WAITING)})
    return after


def has_result(kept: KeptVisit) -> bool:
    """Whether an attempt of the visit counts."""
    return any(each.counts for each in kept.attempts)


def is_counted(kept: KeptVisit, ending: AttemptResult) -> bool:
    """Whether the attempt that ended so is the one that counts."""
    return any(each.counts and _ending(each) == ending for each in kept.attempts)


def open_attempts(kept: KeptVisit) -> tuple[KeptAttempt, ...]:
    """Attempts that have not ended."""
    return tuple(each for each in kept.attempts if each.ended_at is None)


def state_of(kept: KeptVisit) -> VisitState:
    """As the rest of the farm knows a visit."""
    found = [_ending(each) for each in kept.attempts]
    return VisitState(
        visit=Visit.model_validate(kept.content),
        standing=Standing(kept.standing),
        attempts=tuple(ending for ending in found if ending),
        reason=kept.reason,
    )


def _find_attempt(kept: KeptVisit, ending: AttemptResult) -> int | None:
    """The attempt that an ending is of: one under way, or one of which nothing was known."""
    known = ending.fate is not Fate.LOST
    for place, each in enumerate(kept.attempts):
        if _key(each) == (ending.attempt, ending.identity, ending.host) and (
            each.ended_at is None or (known and each.fate == Fate.LOST)
        ):
            return place
    return None


def _key(attempt: KeptAttempt) -> tuple[int, str, str]:
    return attempt.attempt, attempt.identity, attempt.host


def _ending(attempt: KeptAttempt) -> AttemptResult | None:
    return AttemptResult.model_validate(attempt.content) if attempt.content else None
