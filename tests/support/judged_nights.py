"""Nights of a farm, measured by nobody, in a history of the test's own."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from etdeploy.bench.records.record import RunRecord
from etdeploy.farm.model import (
    AttemptFailure,
    AttemptResult,
    Fate,
    Health,
    Standing,
    Visit,
    VisitState,
)
from etdeploy.farm.spec.model import Farm
from etdeploy.history.location import HistoryLocation
from etdeploy.history.store.store import Store
from tests.support.bench_values import make_device
from tests.support.histories import recipe_named, run_at

FIRST = datetime(2026, 11, 1, 2, 0, tzinfo=timezone.utc)
PHONE, OTHER = "android-S1", "android-S2"


def farm(**changes: Any) -> Farm:
    values: dict[str, Any] = {"name": "shelf", "groups": {}, "pairs": (), "results": Path("/r")}
    return Farm(**(values | changes))


def night_id(day: int) -> str:
    return f"night-{day:02d}"


def revision(day: int) -> str:
    """The recipe's commit on that day."""
    return f"{day:02x}" * 20


def run_of(
    day: int, repeat: int, latency_ms: float, recipe: str = "mlp", serial: str = "S1", **more: Any
) -> RunRecord:
    """A repeat of a night: they start two hours apart."""
    started = FIRST + timedelta(days=day, hours=2 * repeat)
    of = {
        "git_revision": more.pop("revision", revision(day)),
        "git_dirty": more.pop("dirty", False),
    }
    values = {
        "run_id": f"{started:%Y%m%dT%H%M%SZ}-{recipe}-{serial}-{day:04x}{repeat:04x}",
        "started_at": started.isoformat(timespec="seconds"),
        "recipe": recipe_named(recipe, **of),
        "device": make_device("android", name=f"android:{serial}", serial=serial),
    }
    return run_at(0, latency_ms, **(values | more))


def keep_nights(
    store: Store, levels_ms: Sequence[float], recipe: str = "mlp", serial: str = "S1",
    repeats: int = 3, within: float = 0.005, first: int = 0, **more: Any,
) -> list[list[RunRecord]]:  # fmt: skip
    """Keeps repeats around the level of each night, and returns them night by night."""
    draw = random.Random(f"{recipe} {serial}")
    made = []
    for day, level in enumerate(levels_ms, first):
        runs = [
            run_of(day, i, level * draw.gauss(1, within), recipe, serial, **more)
            for i in range(1, repeats + 1)
        ]
        for run in runs:
            store.add(run)
        made.append(runs)
    return made


def quiet(nights: int = 10, level_ms: float = 1.0, seed: int = 1) -> list[float]:
    """Levels of nights in which nothing changes, 1 % apart."""
    draw = random.Random(seed)
    return [draw.gauss(level_ms, 0.01 * level_ms) for _ in range(nights)]


def visit(
    day: int, number: int, recipe: str = "mlp", device: str = PHONE, repeat: int = 1
) -> Visit:
    return Visit(
        id=f"{night_id(day)}-{number:04d}", recipe=recipe, group="phones", device=device,
        among=(device,), repeat=repeat,
    )  # fmt: skip


def done(day: int, number: int, run: RunRecord, device: str = PHONE, **more: Any) -> VisitState:
    of = visit(day, number, run.recipe.name, device, repeat=number)
    ending = AttemptResult(
        visit=of.id, attempt=1, identity=device, host="shelf-1", fate=Fate.DONE,
        run_id=run.run_id, record="/r/record.json", seconds=30.0,
        health=Health(battery_percent=80, temperature_celsius=31.5, free_bytes=2_000_000_000),
        **more,
    )  # fmt: skip
    return VisitState(visit=of, standing=Standing.DONE, attempts=(ending,))


def failed(
    day: int, number: int, message: str = "the runner crashed", device: str = PHONE, **more: Any
) -> VisitState:
    of = visit(day, number, more.pop("recipe", "mlp"), device)
    failure = AttemptFailure(kind="run", exit_code=7, message=message, remedy="etdeploy run")
    ending = AttemptResult(
        visit=of.id, attempt=1, identity=device, host="shelf-1", fate=Fate.FAILED, failure=failure,
        seconds=5.0,
    )  # fmt: skip
    return VisitState(visit=of, standing=Standing.FAILED, attempts=(ending,), reason=message)


def missed(day: int, number: int, reason: str = "unplugged", device: str = OTHER) -> VisitState:
    of = visit(day, number, device=device)
    return VisitState(visit=of, standing=Standing.MISSED, reason=reason)


def states_of(day: int, runs: Sequence[RunRecord], device: str = PHONE) -> list[VisitState]:
    return [done(day, i, run, device) for i, run in enumerate(runs, 1)]


def place_in(folder: Path) -> HistoryLocation:
    return HistoryLocation(shown=str(folder / "history.db"), file=folder / "history.db")
