"""Static pages of a history: how long they take to write, how large they are, how fast they open.

    python benchmarks/trend_pages.py [--recipes 50 --devices 20 --nights 365 --repeats 1] [--json]

1,000 series of 365 nights, by default with one run each and five numbers of a run. A tenth of the
numbers change their level once. With chromium, it opens the index, filters it and opens a page.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from sqlalchemy import event, insert

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from etdeploy.cli.verbs.history import write_history_pages
from etdeploy.history.entry import entry_from
from etdeploy.history.location import HistoryLocation, require_location
from etdeploy.history.store.errors import WRITES, create_store_engine
from etdeploy.history.store.store import Filter, open_store
from etdeploy.history.store.tables import metrics, runs, series
from tests.support.bench_values import make_device
from tests.support.histories import recipe_named, run_at

FIRST = datetime(2025, 11, 1, 22, tzinfo=timezone.utc)
# On two cores with other work; a reader waits for the last two.
BOUNDS = {"pages_s": 600.0, "index_opens_ms": 1000.0, "page_opens_ms": 1000.0}


def fill(place: HistoryLocation, options: argparse.Namespace) -> None:
    """Puts runs in with few statements, without their records, which the pages do not read."""
    with open_store(place):
        pass
    engine = create_store_engine(place)
    numbers = iter(range(1, 1 << 40))
    with engine.connect().execution_options(**{WRITES: True}) as connection, connection.begin():
        for recipe in range(options.recipes):
            for device in range(options.devices):
                entry, of = entry_from(
                    run_at(
                        0,
                        recipe=recipe_named(f"recipe-{recipe}"),
                        device=make_device(
                            "android", name=f"android:S{device}", serial=f"S{device}"
                        ),
                    )
                )
                content = of.model_dump(mode="json")
                values = {"key": of.key, "recipe": of.recipe, "device": of.device.label}
                connection.execute(insert(series).values(**values, label=of.label, content=content))
                rows = list(_rows(entry, options, numbers, random.Random(of.key)))
                connection.execute(insert(runs), [row for row, _ in rows])
                connection.execute(insert(metrics), [each for _, found in rows for each in found])
    engine.dispose()


def _rows(
    entry: Any, options: argparse.Namespace, numbers: Iterator[int], draw: random.Random
) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    columns = [column.name for column in runs.columns if column.name not in ("id", "judgement")]
    shifts = {name: draw.randrange(options.nights) for name in entry.metrics if draw.random() < 0.1}
    for night in range(options.nights):
        odd = {name: draw.gauss(0, 0.03) for name in entry.metrics}
        commit = f"{night // 3:040x}"
        versions = {**entry.versions, "torch": f"2.{13 + night // 120}.0"}
        for repeat in range(options.repeats):
            number = next(numbers)
            at = (FIRST + timedelta(days=night, minutes=100 * repeat)).isoformat(timespec="seconds")
            stamp = at[:19].replace("-", "").replace(":", "") + "Z"
            changed = {
                "id": number, "run_id": f"{stamp}-recipe-android-{number:08x}", "started_at": at,
                "git_revision": commit, "versions": versions,
                "disturbed": "It was warm." if draw.random() < 0.02 else "",
            }  # fmt: skip
            found = [
                {"run": number, "name": name, "value": value if "program" in name else value
                 * (1.1 if night >= shifts.get(name, options.nights) else 1.0)
                 * (1 + odd[name] + draw.gauss(0, 0.01))}
                for name, value in entry.metrics.items()
            ]  # fmt: skip
            yield {name: getattr(entry, name) for name in columns} | changed, found


def write(place: HistoryLocation, folder: Path) -> dict[str, float]:
    """Writes the pages twice, the second time over the first."""
    times, statements = [], 0

    def counted(*_: object) -> None:
        nonlocal statements
        statements += 1

    for _ in range(2):
        statements = 0
        started, used = time.perf_counter(), time.process_time()
        with open_store(place, read_only=True) as store:
            event.listen(store._engine, "before_cursor_execute", counted)
            write_history_pages(store, place, Filter(), folder)
        times.append((time.perf_counter() - started, time.process_time() - used))
    sizes = [path.stat().st_size for path in folder.glob("series-*.html")]
    return {
        "pages_s": times[0][0],
        "pages_cpu_s": times[0][1],
        "again_s": times[1][0],
        "statements": statements,
        "index_mb": (folder / "index.html").stat().st_size / 1e6,
        "page_kb": statistics.median(sizes) / 1e3,
        "all_mb": sum(path.stat().st_size for path in folder.iterdir()) / 1e6,
    }


def open_pages(folder: Path) -> dict[str, float]:
    """Median of five: opening the index, one filter, and a page of a series."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        return {}
    from playwright.sync_api import sync_playwright

    page_file = next(folder.glob("series-*.html"))
    times: dict[str, list[float]] = {"index_opens_ms": [], "filter_ms": [], "page_opens_ms": []}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for _ in range(5):
            page = browser.new_page()
            started = time.perf_counter()
            page.goto((folder / "index.html").as_uri())
            page.wait_for_selector(".large tr.row")
            times["index_opens_ms"].append(1e3 * (time.perf_counter() - started))
            times["filter_ms"].append(page.evaluate(_FILTER))
            started = time.perf_counter()
            page.goto(page_file.as_uri())
            page.wait_for_selector(".chart svg .run")
            times["page_opens_ms"].append(1e3 * (time.perf_counter() - started))
            page.close()
        browser.close()
    return {name: statistics.median(found) for name, found in times.items()}


_FILTER = """() => {
  const box = document.querySelector(".large select");
  const started = performance.now();
  box.selectedIndex = 3;
  box.dispatchEvent(new Event("change"));
  document.body.offsetHeight;
  return performance.now() - started;
}"""


def main() -> int:
    """Returns 1 where a bound does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--recipes", type=int, default=50)
    parser.add_argument("--devices", type=int, default=20)
    parser.add_argument("--nights", type=int, default=365)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        os.environ["XDG_DATA_HOME"] = name
        place = require_location(f"{name}/history.db")
        fill(place, options)
        folder = Path(name) / "pages"
        found = {**write(place, folder), **open_pages(folder)}
    if options.json:
        print(json.dumps(found))
    else:
        for key, value in found.items():
            print(f"{key:<16} {value:10,.1f}")
    return int(any(found.get(key, 0) > most for key, most in BOUNDS.items()))


if __name__ == "__main__":
    sys.exit(main())
