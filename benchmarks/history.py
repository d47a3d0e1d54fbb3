"""The history with 100,000 records: what keeping one more costs, and what the verbs take.

    python benchmarks/history.py [--records 100000] [--json] [--store postgresql://...]
    python benchmarks/history.py --records 1000000 --night 1000

Bounds: an insert below 20 ms; `history` and `check` below 1 s, the start of Python included. Then
how often `check` calls a run a regression in which nothing changed (at most 5 %), and how often it
finds one that is slower by 15 %, with the spreads between runs that phones have.

With `--night PAIRS`, the records are those of nights with so many pairs and three repeats, and the
last night is judged: seconds (at most 60 with 1,000 pairs and a million records), statements (at
most 50) and memory. Of the whole records, only the device is there, which is all that is read.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from side_by_side import wall_s
from sqlalchemy import Engine, event, insert

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from etdeploy.bench.records.record import RunRecord
from etdeploy.farm.verdicts.night import judge_night, save_verdicts
from etdeploy.farm.verdicts.pair import VerdictKind
from etdeploy.history.check import FindingKind, judge_metrics
from etdeploy.history.entry import HistoryEntry, entry_from
from etdeploy.history.location import HistoryLocation, require_location
from etdeploy.history.store.errors import WRITES, create_store_engine
from etdeploy.history.store.store import open_store
from etdeploy.history.store.tables import metrics, records, runs, series
from tests.support.bench_values import make_device
from tests.support.histories import recipe_named, run_at
from tests.support.judged_nights import done, farm, night_id

ETDEPLOY = str(Path(sys.executable).with_name("etdeploy"))
RECIPES, DEVICES, BATCH = 20, 5, 2000
REPEATS = 3
FIRST = datetime(2024, 1, 1, tzinfo=timezone.utc)
# Between runs, of the logarithm: a quiet board, a phone that is kept cool, one that is not, and the
# 45 % that ExecuTorch's own farm of rented phones had.
SPREADS = (0.01, 0.03, 0.08, 0.45)


def template(recipe: int, device: int) -> RunRecord:
    """A record with as many samples as a usual run has."""
    samples = [1.0 + i % 7 / 100 for i in range(150)]
    workload = run_at(0).workload
    latency = workload.latency_ms.model_copy(update={"samples": tuple(samples)})
    return run_at(
        0,
        workload=workload.model_copy(update={"latency_ms": latency}),
        recipe=recipe_named(f"recipe-{recipe}"),
        device=make_device("android", name=f"android:{device}", serial=f"S{device}"),
    )


def fill(
    place: HistoryLocation, count: int, recipes: int = RECIPES, whole: bool = True
) -> list[RunRecord]:
    """Puts records in with few statements, which is no measure of `Store.add`; gives templates."""
    with open_store(place):
        pass
    engine = create_store_engine(place)
    numbers = iter(range(1, count + 1))
    made = [template(r, d) for r, d in itertools.product(range(recipes), range(DEVICES))]
    kept = None if whole else {"device"}
    templates = [(*entry_from(r), r.model_dump(mode="json", include=kept)) for r in made]
    with engine.connect().execution_options(**{WRITES: True}) as connection, connection.begin():
        for _, of, _ in templates:
            content = of.model_dump(mode="json")
            values = {"key": of.key, "recipe": of.recipe, "device": of.device.label}
            connection.execute(insert(series).values(**values, label=of.label, content=content))
        while batch := list(itertools.islice(numbers, BATCH)):
            rows = list(_rows(batch, templates))
            connection.execute(insert(runs), [row for row, _, _ in rows])
            connection.execute(insert(metrics), [m for _, numbers, _ in rows for m in numbers])
            connection.execute(insert(records), [record for _, _, record in rows])
    engine.dispose()
    return made


def run_id(number: int) -> str:
    return f"run-{number}"


def _started(number: int, pairs: int) -> str:
    """Nights with repeats of every pair, two hours apart."""
    night, place = divmod(number, pairs * REPEATS)
    after = timedelta(days=night, hours=2 * (place // pairs), seconds=place % pairs)
    return (FIRST + after).isoformat(timespec="seconds")


def _rows(batch: list[int], templates: list[Any]) -> Iterator[tuple[Any, Any, Any]]:
    draw = random.Random(batch[0])
    columns = [column.name for column in runs.columns if column.name not in ("id", "judgement")]
    for number in batch:
        entry, _, content = templates[number % len(templates)]
        changed = {"run_id": run_id(number), "started_at": _started(number, len(templates))}
        row = {name: getattr(entry, name) for name in columns} | changed
        values = {name: value * draw.gauss(1, 0.03) for name, value in entry.metrics.items()}
        found = [{"run": number, "name": name, "value": value} for name, value in values.items()]
        # The tables count the rows themselves; these are the first, so the numbers agree.
        yield row | {"id": number}, found, {"run": number, "record": content | changed}


def judge_last_night(place: HistoryLocation, count: int, made: list[RunRecord]) -> dict[str, Any]:
    """Seconds and statements for the verdicts of the last whole night, and for storing them."""
    night = count // (len(made) * REPEATS) - 1
    first = night * len(made) * REPEATS
    states = [
        done(night, place, made[n % len(made)].model_copy(update={"run_id": run_id(n)}), identity)
        for place, n in enumerate(range(first, first + len(made) * REPEATS))
        for identity in [f"S{n % DEVICES}"]
    ]
    statements = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    with open_store(place) as store:
        statements.clear()
        started = time.perf_counter()
        verdicts = judge_night(store, night_id(night), states, farm(repeats=REPEATS))
        judged_s, asked = time.perf_counter() - started, len(statements)
        save_verdicts(store, verdicts)
    event.remove(Engine, "before_cursor_execute", note)
    assert len(verdicts) == len(made)
    return {
        "judge_s": judged_s,
        "statements": asked,
        "save_s": time.perf_counter() - started - judged_s,
        "statements_with_saving": len(statements),
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
        **{str(kind): sum(v.kind is kind for v in verdicts) for kind in VerdictKind},
    }


def insert_ms(place: HistoryLocation, count: int = 200) -> float:
    """Median of single inserts into the full history, each a transaction."""
    times = []
    with open_store(place) as store:
        for number in range(count):
            record = template(number % RECIPES, number % DEVICES)
            record = record.model_copy(update={"run_id": f"new-{number}"})
            started = time.perf_counter()
            assert store.add(record)
            times.append(1000 * (time.perf_counter() - started))
    return statistics.median(times)


def open_and_insert_ms(place: HistoryLocation) -> float:
    """Median of what a measurement pays: opening, one insert, closing."""
    times = []
    for number in range(20):
        record = template(1, 1).model_copy(update={"run_id": f"opened-{number}"})
        started = time.perf_counter()
        with open_store(place) as store:
            assert store.add(record)
        times.append(1000 * (time.perf_counter() - started))
    return statistics.median(times)


def verbs_s(place: HistoryLocation, folder: Path) -> dict[str, float]:
    """Median of three whole command lines for each verb."""
    record = template(3, 3).model_copy(update={"run_id": "run-to-check"})
    record = record.model_copy(update={"started_at": "2099-01-01T00:00:00+00:00"})
    record.save(folder / "out" / "20990101T000000Z-x-y-00000000" / "record.json")
    env = {**os.environ, "ETDEPLOY_STORE": place.url or str(place.file)}
    env |= {"XDG_DATA_HOME": str(folder / "data")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    lines = {
        "history": ["history"],
        "history of one series": ["history", "-r", "recipe-3", "-d", "S3"],
        "check": ["check", "--runs-in", str(folder / "out")],
        "check against last-good": [
            "check",
            "--runs-in",
            str(folder / "out"),
            "--against",
            "last-good",
        ],
        "etdeploy --version": ["--version"],
    }
    found = {}
    for name, line in lines.items():
        wall_s([ETDEPLOY, *line], env)
        found[name] = statistics.median(wall_s([ETDEPLOY, *line], env) for _ in range(3))
    return found


def called_regressed(slower: float, spread: float, history: int = 20, times: int = 400) -> float:
    """Share of simulated runs that are called a regression at 5 %."""
    draw = random.Random(f"{slower} {spread}")
    plain, _ = entry_from(run_at(0))

    def run(factor: float = 1.0) -> HistoryEntry:
        values = {
            name: factor ** (name == "latency_ms") * value * math.exp(draw.gauss(0, spread))
            for name, value in plain.metrics.items()
            if name != "program_bytes"
        }
        return HistoryEntry(**{**vars(plain), "metrics": values})

    called = 0
    for _ in range(times):
        earlier = [run() for _ in range(history)]
        found = judge_metrics(run(1 + slower), earlier, 5.0)
        called += any(one.kind is FindingKind.REGRESSED for one in found)
    return called / times


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--store", help="a new, empty database; by default a SQLite file")
    parser.add_argument("--night", type=int, metavar="PAIRS", help="judge a night of so many pairs")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        place = require_location(options.store or str(folder / "history.db"))
        started = time.perf_counter()
        if options.night:
            recipes = options.night // DEVICES
            made = fill(place, options.records, recipes, whole=False)
            show(judge_last_night(place, options.records, made), options.json)
            return
        fill(place, options.records)
        found: dict[str, Any] = {
            "records": options.records,
            "fill_s": time.perf_counter() - started,
            "insert_ms": insert_ms(place),
            "open_and_insert_ms": open_and_insert_ms(place),
            "verbs_s": verbs_s(place, folder),
        }
        if place.file:
            found["file_mb"] = place.file.stat().st_size / 1e6
    found["called_regressed"] = {
        f"{name}, spread {100 * spread:g} %": called_regressed(slower, spread)
        for name, slower in (("unchanged", 0.0), ("15 % slower", 0.15))
        for spread in SPREADS
    }
    show(found, options.json)


def show(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(found, indent=2))
        return
    for key, value in found.items():
        for part, number in value.items() if isinstance(value, dict) else [("", value)]:
            print(f"{key + (': ' + part if part else ''):<45} {number:10.3f}")


if __name__ == "__main__":
    main()
