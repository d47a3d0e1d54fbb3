"""Records for tests of the history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from etdeploy.bench.records.record import RecipeRecord, RunRecord
from etdeploy.bench.statistics import summarize
from etdeploy.history.alerts import Alert
from etdeploy.history.store.store import Store
from tests.support.bench_values import make_record

DAY = "2026-11-21"


def recipe_named(name: str, **changes: Any) -> RecipeRecord:
    return make_record().recipe.model_copy(update={"name": name, **changes})


def run_at(second: int, latency_ms: float = 1.0, **changes: Any) -> RunRecord:
    """A run that started so many seconds after midnight, with one latency."""
    minutes, seconds = divmod(second, 60)
    plain = make_record().workload
    workload = plain.model_copy(update={"latency_ms": summarize([latency_ms] * 3)})
    values: dict[str, Any] = {
        "run_id": f"{DAY.replace('-', '')}T{minutes:04d}{seconds:02d}Z-mlp-host-{second:08x}",
        "started_at": f"{DAY}T{minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d}+00:00",
        "workload": workload,
    }
    return make_record(**(values | changes))


def fill(store: Store, latencies_ms: Sequence[float], **changes: Any) -> list[RunRecord]:
    """Keeps a run for each latency, one second after another."""
    made = [run_at(i, latency_ms, **changes) for i, latency_ms in enumerate(latencies_ms)]
    for record in made:
        store.add(record)
    return made


def make_alert(**changes: Any) -> Alert:
    values: dict[str, Any] = {
        "farm": "shelf", "series": "s", "metric": "latency_ms", "night": "n1", "recipe": "mlp",
        "opened_at": "2026-11-01T00:00:00+00:00", "device": "phone", "identity": "i",
        "before": 1.0, "after": 1.2, "last_night": "n1",
    }  # fmt: skip
    return Alert(**(values | changes))
