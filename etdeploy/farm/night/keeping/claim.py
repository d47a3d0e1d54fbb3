"""One coordinator of a farm on this machine, shown by a lock; and where its spool is."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

from pydantic import ValidationError

from etdeploy.core.files.locks import if_free
from etdeploy.core.hashing import sha256_bytes
from etdeploy.farm.night.keeping.writing import TakenError, taken
from etdeploy.history.nights import Coordinator
from etdeploy.history.place import Place
from etdeploy.shelf.owner import myself


def spool_path(folder: Path, farm: str, place: Place) -> Path:
    """The file of what a farm still has to tell that history."""
    key = sha256_bytes(json.dumps([farm, place.shown]).encode())[:8]
    return folder / "farm" / f"{slug(farm)}-{key}.spool.jsonl"


def slug(farm: str) -> str:
    """A farm's name as a part of a file's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", farm)[:60]


@contextmanager
def claimed(spool: Path, farm: str) -> Iterator[Coordinator]:
    """Holds a farm on this machine; yields what others are told of this process.

    It has the token of who had the lock before, and has ended therefore: so it goes on at once.

    Raises:
        TakenError: A process on this machine has it.
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


def _this_process(before: Coordinator | None) -> Coordinator:
    since = datetime.now(timezone.utc).isoformat(timespec="seconds")
    me = myself()
    # A data folder may have been copied to another machine.
    token = before.token if before and before.who == me else secrets.token_hex(8)
    return Coordinator(token=token, who=me, process=os.getpid(), since=since)


def _noted(spool: Path) -> Coordinator | None:
    try:
        return Coordinator.model_validate_json(_lock(spool).read_bytes())
    except (OSError, ValidationError):
        return None


def _lock(spool: Path) -> Path:
    return spool.with_name(f"{spool.name.removesuffix('.spool.jsonl')}.lock")
