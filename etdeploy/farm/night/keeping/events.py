"""What happens in a night, each as a value that can be written down and told again."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from etdeploy.core.values import Value
from etdeploy.farm.model import Ending
from etdeploy.history.nights import KeptNight, KeptVisit


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


class Ended(Value):
    """An attempt ended."""

    op: Literal["ended"] = "ended"
    ending: Ending
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


Event = Opened | Planned | Began | Ended | GivenUp | Closed
_EVENTS: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="op")])


def event_of(line: str) -> Event:
    """Reads an event.

    Raises:
        pydantic.ValidationError: It is none of this release's.
    """
    return _EVENTS.validate_json(line)
