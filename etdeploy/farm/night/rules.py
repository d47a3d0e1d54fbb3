"""What an event makes of a visit. Pure, and the same in memory and in the database.

An event that is told again changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from etdeploy.core.values import Value
from etdeploy.farm.model import AttemptResult, Fate, Standing, Visit, VisitState
from etdeploy.history.nights import KeptAttempt, KeptNight, KeptVisit


def planned(visit: Visit) -> KeptVisit:
    """A visit that nothing has happened to."""
    return KeptVisit(id=visit.id, content=visit.model_dump(mode="json"), standing=Standing.WAITING)


def began(kept: KeptVisit, event: Began) -> KeptVisit:
    """An attempt is under way."""
    if any(each.token == event.token or _is_open(each, event) for each in kept.attempts):
        return kept
    attempt = KeptAttempt(
        attempt=event.attempt, token=event.token, identity=event.identity, host=event.host,
        device=event.device, started_at=event.at,
    )  # fmt: skip
    standing = kept.standing if _counted(kept) else Standing.RUNNING
    return kept.model_copy(
        update={"attempts": (*kept.attempts, attempt), "standing": str(standing), "reason": ""}
    )


def ended(kept: KeptVisit, event: AttemptEnded) -> KeptVisit:
    """An attempt has ended; it counts if it is the first of its visit that was measured."""
    ending = event.ending
    if any(_ending(each) == ending for each in kept.attempts):
        return kept
    place = _place(kept, ending)
    if place is None:
        if ending.fate is Fate.LOST and any(_is_of(each, ending) for each in kept.attempts):
            return kept  # what is known is better than that nothing is
        before = None
    else:
        before = kept.attempts[place]
    counts = ending.fate is Fate.DONE and not _counted(kept)
    made = KeptAttempt(
        attempt=ending.attempt,
        token=before.token if before else event.token,
        identity=ending.identity,
        host=ending.host,
        device=before.device if before else "",
        started_at=before.started_at if before else event.at,
        ended_at=event.at,
        fate=str(ending.fate),
        run_id=ending.run_id,
        content=ending.model_dump(mode="json"),
        counts=counts,
    )
    attempts = list(kept.attempts)
    if place is None:
        attempts.append(made)
    else:
        attempts[place] = made
    after = kept.model_copy(update={"attempts": tuple(attempts)})
    return after.model_copy(update=_standing(after))


def given_up(kept: KeptVisit, event: GivenUp) -> KeptVisit:
    """It is not measured in this night, unless it was."""
    if _counted(kept):
        return kept
    return kept.model_copy(update={"standing": event.standing, "reason": event.reason})


def is_beaten(kept: KeptVisit, ending: AttemptResult) -> bool:
    """Whether another attempt counts than the one that ended so."""
    return any(each.counts and _ending(each) != ending for each in kept.attempts)


def counts(kept: KeptVisit, ending: AttemptResult) -> bool:
    """Whether the attempt that ended so is the one that counts."""
    return any(each.counts and _ending(each) == ending for each in kept.attempts)


def under_way(kept: KeptVisit) -> tuple[KeptAttempt, ...]:
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


def states_of(visits: Iterable[KeptVisit]) -> tuple[VisitState, ...]:
    """The same of several."""
    return tuple(state_of(kept) for kept in visits)


def _standing(kept: KeptVisit) -> dict[str, str]:
    """Where a visit stands after an attempt of it has ended."""
    if _counted(kept):
        return {"standing": str(Standing.DONE), "reason": ""}
    if kept.standing == Standing.RUNNING and not under_way(kept):
        return {"standing": str(Standing.WAITING)}
    return {}


def _place(kept: KeptVisit, ending: AttemptResult) -> int | None:
    """The attempt that an ending is of: one under way, or one of which nothing was known."""
    known = ending.fate is not Fate.LOST
    for place, each in enumerate(kept.attempts):
        if _is_of(each, ending) and (each.ended_at is None or (known and each.fate == Fate.LOST)):
            return place
    return None


def _is_of(attempt: KeptAttempt, ending: AttemptResult) -> bool:
    return (attempt.attempt, attempt.identity, attempt.host) == (
        ending.attempt, ending.identity, ending.host,
    )  # fmt: skip


def _is_open(attempt: KeptAttempt, event: Began) -> bool:
    same = (attempt.attempt, attempt.identity, attempt.host) == (
        event.attempt, event.identity, event.host,
    )  # fmt: skip
    return same and attempt.ended_at is None


def _counted(kept: KeptVisit) -> bool:
    return any(each.counts for each in kept.attempts)


def _ending(attempt: KeptAttempt) -> AttemptResult | None:
    return AttemptResult.model_validate(attempt.content) if attempt.content else None


class Opened(Value):
    """A night began, or was gone on with: all that is known of it."""

    op: Literal["opened"] = "opened"
    night: KeptNight
    visits: tuple[KeptVisit, ...] = ()


class Planned(Value):
    """Visits were added to a night."""

    op: Literal["planned"] = "planned"
    night: str
    visits: tuple[KeptVisit, ...]


class Began(Value):
    """An attempt began; `token` is its own, and `at` in UTC, ISO 8601."""

    op: Literal["began"] = "began"
    visit: str
    attempt: int
    identity: str
    host: str
    device: str
    token: str
    at: str


class AttemptEnded(Value):
    """An attempt ended."""

    op: Literal["ended"] = "ended"
    ending: AttemptResult
    token: str
    at: str


class GivenUp(Value):
    """A visit is not measured in this night; `standing` is failed or missed."""

    op: Literal["given up"] = "given up"
    visit: str
    standing: str
    reason: str


class Closed(Value):
    """A night ended."""

    op: Literal["closed"] = "closed"
    night: str
    outcome: str
    at: str


Event = Opened | Planned | Began | AttemptEnded | GivenUp | Closed
_EVENTS: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="op")])


def event_of(line: str) -> Event:
    """Reads an event."""
    return _EVENTS.validate_json(line)
