"""What a report of 5,000 operators costs: its file, and what a reader waits for in Chromium.

    python benchmarks/report.py

Bounds: the file at most 6 MB; sorting and filtering under 0.2 s each, layout included. Times in
the browser are its own clock's, from the event to the laid out page.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from etdeploy.report.formats import Format, render_report
from etdeploy.report.html import render
from etdeploy.report.page import run_page
from etdeploy.report.report_data import Report, ReportData
from tests.support.browser import chromium, opened
from tests.support.report_values import make_profile, make_report_data

OPERATORS = 5_004
REPEATS = 15
MOST_MB, MOST_S = 6.0, 0.2

# A layout is forced, so that what the browser would do after the event is part of the time.
SORT = """() => {
  const heads = [...document.querySelectorAll(".rows th button")];
  return heads.map((head) => {
    const start = performance.now();
    head.click();
    document.body.getBoundingClientRect();
    return performance.now() - start;
  });
}"""
FILTER = """() => {
  const box = document.querySelector(".operators input");
  return ["l", "la", "layers.2", "fully connected 12", "nothing", ""].map((text) => {
    const start = performance.now();
    box.value = text;
    box.dispatchEvent(new Event("input"));
    document.body.getBoundingClientRect();
    return performance.now() - start;
  });
}"""


def main() -> None:
    run = make_report_data()
    run = ReportData(run.run, run.name, run.plan, (make_profile(OPERATORS),))
    first_s = timed(lambda: render_report(Report((run,)), Format.HTML))
    again_s = timed(lambda: render(run_page(run)))
    text = render_report(Report((run,)), Format.HTML)
    size_mb = len(text.encode()) / 1e6
    print(f"{OPERATORS:,} operators: {size_mb:.2f} MB, written in {first_s:.2f} s "
          f"(with plotly.js packed already: {again_s:.2f} s)")  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        file = Path(folder, "report.html")
        file.write_text(text, encoding="utf-8")
        start = time.perf_counter()
        with opened(browser, file) as page:
            print(f"opened, and all plots drawn: {time.perf_counter() - start:.2f} s")
            worst = [measured(page, name, code) for name, code in (("sort", SORT),
                                                                   ("filter", FILTER))]  # fmt: skip
    if size_mb > MOST_MB or max(worst) > MOST_S:
        sys.exit(f"above the bounds: {MOST_MB:.0f} MB, {MOST_S} s")


def timed(work: Any) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measured(page: Any, name: str, code: str) -> float:
    """Prints and returns the longest time, in seconds."""
    times = [ms / 1000 for _ in range(REPEATS) for ms in page.evaluate(code)]
    print(f"{name}: median {statistics.median(times):.4f} s, longest {max(times):.4f} s "
          f"({len(times)} times)")  # fmt: skip
    return max(times)


if __name__ == "__main__":
    main()
