"""What a coordinator knows of its nights without asking the database."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import singledispatchmethod
from pathlib import Path

from pydantic import ValidationError

from etdeploy.core.files.locks import if_free
from etdeploy.core.hashing import sha256_bytes
from etdeploy.device_pool.reservations import myself
from etdeploy.farm.night import rules
from etdeploy.farm.night.rules import (
    AttemptEnded,
    Began,
    Closed,
    Event,
    GivenUp,
    Opened,
    Planned,
)
from etdeploy.farm.night.writing import TakenError, taken
from etdeploy.history.nights import CoordinatorProcess, KeptNight, KeptVisit
from etdeploy.history.place import HistoryLocation


class NightCache:
    """Nights and visits, as events leave them."""

    def __init__(self) -> None:
        self.nights: dict[str, KeptNight] = {}
        self._visits: dict[str, dict[str, KeptVisit]] = {}
        self._night_of: dict[str, str] = {}

    def visits(self, night: str) -> tuple[KeptVisit, ...]:
        """The visits of a night, in the order of its plan."""
        return tuple(self._visits.get(night, {}).values())

    def visit(self, visit: str) -> KeptVisit | None:
        """One visit, if it is of a night that is known here."""
        night = self._night_of.get(visit)
        return self._visits[night][visit] if night else None

    def know(self, kept: KeptVisit) -> None:
        """Takes over what the database says of a visit."""
        if night := self._night_of.get(kept.id):
            self._visits[night][kept.id] = kept

    def take(self, event: Event) -> None:
        """Takes an event over; one of an unknown visit changes nothing."""
        self._take(event)

    @singledispatchmethod
    def _take(self, event: Event) -> None:
        raise TypeError(f"no event: {event!r}")

    @_take.register
    def _(self, event: Opened) -> None:
        self.nights.setdefault(event.night.id, event.night)
        self._add(event.night.id, event.visits)

    @_take.register
    def _(self, event: Planned) -> None:
        self._add(event.night, event.visits)

    @_take.register
    def _(self, event: Began) -> None:
        if kept := self.visit(event.visit):
            self.know(rules.began(kept, event))

    @_take.register
    def _(self, event: AttemptEnded) -> None:
        if kept := self.visit(event.ending.visit):
            self.know(rules.ended(kept, event))

    @_take.register
    def _(self, event: GivenUp) -> None:
        if kept := self.visit(event.visit):
            self.know(rules.given_up(kept, event))

    @_take.register
    def _(self, event: Closed) -> None:
        night = self.nights.get(event.night)
        if night and night.ended_at is None:
            update = {"ended_at": event.at, "outcome": event.outcome}
            self.nights[night.id] = night.model_copy(update=update)

    def _add(self, night: str, visits: tuple[KeptVisit, ...]) -> None:
        there = self._visits.setdefault(night, {})
        for kept in visits:
            if kept.id not in self._night_of:
                there[kept.id] = kept
                self._night_of[kept.id] = night


def spool_path(folder: Path, farm: str, place: HistoryLocation) -> Path:
    """The file of what a farm still has to tell that history."""
    key = sha256_bytes(json.dumps([farm, place.shown]).encode())[:8]
    return folder / "farm" / f"{slug(farm)}-{key}.spool.jsonl"


def slug(farm: str) -> str:
    """A farm's name as a part of a file's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", farm)[:60]


@contextmanager
def claimed(spool: Path, farm: str) -> Iterator[CoordinatorProcess]:
    """Holds a farm on this machine; yields what others are told of this process.

    It has the token of who had the lock before, and has ended therefore: so it goes on at once.
    """
    with if_free(_lock(spool)) as free:
        other = _noted(spool)
        if not free and other:
            raise taken(farm, other)
        if not free:
            raise TakenError(f"another process on this machine is running the farm {farm}")
        mine = _this_process(other)
        # If that fails, the next process waits until this one counts as gone.
        with contextlib.suppress(OSError):
            # In its place: another file would not be the locked one.
            _lock(spool).write_text(mine.model_dump_json())
        yield mine


def _this_process(before: CoordinatorProcess | None) -> CoordinatorProcess:
    since = datetime.now(timezone.utc).isoformat(timespec="seconds")
    me = myself()
    # A data folder may have been copied to another machine.
    token = before.token if before and before.who == me else secrets.token_hex(8)
    return CoordinatorProcess(token=token, who=me, process=os.getpid(), since=since)


def _noted(spool: Path) -> CoordinatorProcess | None:
    try:
        return CoordinatorProcess.model_validate_json(_lock(spool).read_bytes())
    except (OSError, ValidationError):
        return None


def _lock(spool: Path) -> Path:
    return spool.with_name(f"{spool.name.removesuffix('.spool.jsonl')}.lock")
