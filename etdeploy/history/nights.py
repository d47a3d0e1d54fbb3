"""Nights of farms, as the history's database keeps them.

What the contents of visits and attempts are is the farm's to say.
"""

from __future__ import annotations

from math import isfinite
from typing import Any

from etdeploy.core.values import Value

FINISHED = "finished"
ABANDONED = "abandoned"
_REPLACED = "\N{REPLACEMENT CHARACTER}"


class KeptNight(Value):
    """A night; times are UTC in ISO 8601.

    Attributes:
        id: Unique in the database.
        farm: The farm's name.
        digest: Of what the farm.yaml says.
        started_at: When it began.
        ended_at: When it ended; None before.
        outcome: How: finished, abandoned.
    """

    id: str
    farm: str
    digest: str
    started_at: str
    ended_at: str | None = None
    outcome: str | None = None


class KeptAttempt(Value):
    """An attempt of a visit.

    Attributes:
        attempt: Its number, as the night counts.
        token: Of its beginning.
        identity, device, host: Where it is.
        started_at: When it was told to have begun.
        ended_at: When it was told to have ended; None while it is under way. So are those below.
        fate: How it ended.
        run_id: Of the record.
        content: All that is known of its end.
        counts: Whether it is the one attempt of its visit that counts.
    """

    attempt: int
    token: str
    identity: str
    host: str
    started_at: str
    device: str = ""
    ended_at: str | None = None
    fate: str | None = None
    run_id: str | None = None
    content: dict[str, Any] | None = None
    counts: bool = False


class KeptVisit(Value):
    """A visit with its attempts, the earliest first.

    Attributes:
        id: Unique in the database.
        content: What the night planned.
        standing: Where it stands.
        reason: Why it failed or was missed.
    """

    id: str
    content: dict[str, Any]
    standing: str
    reason: str = ""
    attempts: tuple[KeptAttempt, ...] = ()


class Coordinator(Value):
    """A process that runs a farm.

    Attributes:
        token: Of this one process.
        who: USER@HOST.
        process: Its id there.
        since: When it began, in UTC, ISO 8601.
    """

    token: str
    who: str
    process: int
    since: str


def storable(value: Any) -> Any:
    """A value of JSON without what PostgreSQL does not take: a crash may print anything."""
    if isinstance(value, str):
        return value.replace("\0", _REPLACED).encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, float) and not isfinite(value):
        return None
    if isinstance(value, dict):
        return {storable(key): storable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [storable(each) for each in value]
    return value
