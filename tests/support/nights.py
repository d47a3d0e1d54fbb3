"""Visits and endings for tests of a farm's ledger."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from etdeploy.farm.model import AttemptResult, Fate, Visit
from tests.support.histories import run_at

NOW = datetime(2026, 11, 23, 22, 0, tzinfo=timezone.utc)


def make_visit(night: str, number: int, **changes: Any) -> Visit:
    values: dict[str, Any] = {
        "id": f"{night}-{number}", "recipe": "mlp", "group": "phones", "device": "android-A",
        "among": ("android-A",),
    }  # fmt: skip
    return Visit(**(values | changes))


def make_ending(
    visit: str, attempt: int = 1, fate: Fate = Fate.DONE, **changes: Any
) -> AttemptResult:
    values: dict[str, Any] = {
        "visit": visit, "attempt": attempt, "identity": "android-A", "host": "wolf", "fate": fate,
    }  # fmt: skip
    return AttemptResult(**(values | changes))


def measured(folder: Path, visit: str, attempt: int = 1, **changes: Any) -> AttemptResult:
    """An attempt that was measured, with its record on the disk."""
    record = run_at(attempt, run_id=f"{visit}-run-{attempt}-{changes.get('identity', 'a')}")
    path = folder / record.run_id / "record.json"
    record.save(path)
    return make_ending(visit, attempt, run_id=record.run_id, record=str(path), **changes)
