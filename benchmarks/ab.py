"""How often a comparison is wrong: A against A, and against a B that takes 5 % longer.

    python benchmarks/ab.py [--series 400] [--json]
    python benchmarks/ab.py --real 10 [--pairs 10] [--busy 2]

Simulates starts with the spreads that devices have. Bound: at most 5 % of A/A called different, up
to chance, in every row of pairs, and in those of records whose times, measured apart, differ by no
more than 3 %.

With --real, measures on this machine instead, A/A and A/B in turns; --busy adds other work. The
runner of B is the same but for a variable, which makes it spin for 5 % of each inference. Bound:
A/A found different at most once in 20, A/B always found slower.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

from etdeploy.bench.measure import PreparedMeasurement, measure_interleaved
from etdeploy.compare.model import Comparison, Ratio, Verdict, judge
from etdeploy.compare.runs import compare_runs
from etdeploy.compare.statistics import deviation_from_history, paired_ratio, unpaired_ratio
from etdeploy.core.console import TaskDisplay
from etdeploy.core.files.basic import resource_folder
from etdeploy.graph.job import Job, StepName
from etdeploy.graph.jobs import open_two
from etdeploy.graph.on_device import device_lock, prepared
from etdeploy.graph.run import look_up, run_jobs
from etdeploy.recipe.load import load_recipe
from etdeploy.runner import fingerprint

# Logarithms of a number of starts that follow each other, of the same thing.
Noise = Callable[[random.Random, int], list[float]]
SLOWER = 1.05


@dataclass(frozen=True)
class Row:
    """How often a difference was found, in percent; `at_5_percent` where B takes 5 % longer."""

    name: str
    starts: int
    at_0_percent: float
    at_5_percent: float


def steady(percent: float) -> Noise:
    return lambda r, n: [r.gauss(0, percent / 100) for _ in range(n)]


def skewed(percent: float) -> Noise:
    """Never faster than the best case, sometimes much slower."""
    return lambda r, n: [r.expovariate(100 / percent) for _ in range(n)]


def disturbed(percent: float, share: float, slower: float) -> Noise:
    """A share of the starts meets other work."""
    return lambda r, n: [
        r.gauss(0, percent / 100) + (abs(r.gauss(slower, slower / 3)) if r.random() < share else 0)
        for _ in range(n)
    ]


def two_states(percent: float, apart: float) -> Noise:
    """A start gets the fast cores or the slow ones."""
    return lambda r, n: [r.gauss(0, percent / 100) + r.choice((0, apart)) for _ in range(n)]


def warming(percent: float, per_start: float) -> Noise:
    return lambda r, n: [r.gauss(0, percent / 100) + i * per_start for i in range(n)]


def wandering(percent: float, step: float) -> Noise:
    """The machine's speed changes all the time, and remembers."""

    def draw(r: random.Random, n: int) -> list[float]:
        level, found = 0.0, []
        for _ in range(n):
            level += r.gauss(0, step)
            found.append(level + r.gauss(0, percent / 100))
        return found

    return draw


NOISES: dict[str, Noise] = {
    "1 % between starts": steady(1),
    "2 % between starts": steady(2),
    "5 % between starts": steady(5),
    "50 % between starts (cloud phones)": steady(41),
    "3 %, skewed": skewed(3),
    "1.5 %, 10 % of starts disturbed by 30 %": disturbed(1.5, 0.1, 0.3),
    "1.5 %, 25 % of starts disturbed by 30 %": disturbed(1.5, 0.25, 0.3),
    "0.6 %, 10 % of starts disturbed by 13 %": disturbed(0.6, 0.1, 0.13),
    "1 %, two states 10 % apart": two_states(1, 0.1),
    "1.5 %, 1 % slower with every start": warming(1.5, 0.01),
    "1 %, wandering by 2 % a start": wandering(1, 0.02),
}


def pairs(noise: Noise, count: int, draw: random.Random, ratio: float) -> Ratio:
    """As `etdeploy compare` measures: A B B A ..."""
    times = [math.exp(x) for x in noise(draw, 2 * count)]
    first, second = times[::2], times[1::2]
    a = [s if i % 2 else f for i, (f, s) in enumerate(zip(first, second, strict=True))]
    b = [f if i % 2 else s for i, (f, s) in enumerate(zip(first, second, strict=True))]
    return paired_ratio(a, [x * ratio for x in b])


def record(draw: random.Random, starts: float, apart: float, count: int) -> list[float]:
    """Starts of a record; `apart` is what was different on that day."""
    day = draw.gauss(0, apart)
    return [math.exp(day + draw.gauss(0, starts)) for _ in range(count)]


def records(apart: float, count: int, draw: random.Random, ratio: float) -> Ratio:
    a, b = (record(draw, 0.01, apart, count) for _ in range(2))
    return unpaired_ratio(a, [x * ratio for x in b])


def history(apart: float, count: int, draw: random.Random, ratio: float) -> Ratio:
    *earlier, now = (sorted(record(draw, 0.01, apart, 3))[1] for _ in range(count + 1))
    return deviation_from_history(now * ratio, earlier, 0.01 / math.sqrt(3)).ratio


def found(series: int, seed: str, measure: Callable[[random.Random, float], Ratio]) -> list[float]:
    """Percent of the series in which a difference was found, and a slower B."""
    draw = random.Random(seed)
    same = [judge(measure(draw, 1.0)) for _ in range(series)]
    slower = [judge(measure(draw, SLOWER)) for _ in range(series)]
    return [
        100 * sum(v != Verdict.NO_DIFFERENCE for v in same) / series,
        100 * sum(v == Verdict.SLOWER for v in slower) / series,
    ]


def simulate(series: int, counts: Sequence[int] = (3, 5, 6, 10, 20)) -> list[Row]:
    rows = []
    for name, noise in NOISES.items():
        for n in counts:
            rates = found(series, f"{name}{n}", partial(pairs, noise, n))
            rows.append(Row(f"pairs: {name}", n, *rates))
    for apart in (0.0, 0.02, 0.03, 0.05):
        for n in (3, 10):
            rates = found(series, f"{apart}{n}", partial(records, apart, n))
            rows.append(Row(f"two records, {100 * apart:.0f} % apart", n, *rates))
        for n in (5, 10, 20):
            rates = found(series, f"h{apart}{n}", partial(history, apart, n))
            rows.append(Row(f"earlier records, {100 * apart:.0f} % apart", n, *rates))
    return rows


SPIN = "ETDEPLOY_BENCHMARK_SPIN"
MEASURED = "  elapsed_ns = now_ns() - started;\n"
SPUN = f"""\
  elapsed_ns = now_ns() - started;
  static const char* const share = std::getenv("{SPIN}");
  static const double slower = 1 + (share != nullptr ? std::atof(share) : 0.0);
  for (const double until = slower * elapsed_ns; elapsed_ns < until;) {{
    elapsed_ns = now_ns() - started;
  }}
"""
# A tenth of a megabyte of weights stays in a core's own cache wherever its pages are. With half a
# megabyte, the pages that a start gets change its fastest inference by 1 to 10 %; with more, other
# processes that fill the shared cache or the memory's bandwidth would be measured.
RECIPE = """\
model: {example: mlp, arguments: {features: 64, width: 128, layers: 2}}
export: {backend: xnnpack}
runtime: {threads: 1}
benchmark: {iterations: 200000, memory: false, profile: false}
"""


@contextmanager
def runner_that_can_spin(folder: Path) -> Iterator[None]:
    """Runners are built from changed sources while the block runs."""
    changed = folder / "templates"
    shutil.copytree(resource_folder("templates"), changed)
    main = changed / "runner" / "main.cpp"
    text = main.read_text()
    assert text.count(MEASURED) == 1, "the runner's timing has changed"
    main.write_text("#include <cstdlib>\n" + text.replace(MEASURED, SPUN))

    def folder_of(name: str) -> Path:
        return changed if name == "templates" else resource_folder(name)

    with patch.object(fingerprint, "resource_folder", folder_of):
        yield


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Other work: processes that compute all the time."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def made(folder: Path, pairs_: int) -> Iterator[Job]:
    """The job with everything that goes to the device; the device stays open."""
    (folder / "mlp.yaml").write_text(RECIPE)
    recipe = load_recipe(str(folder / "mlp.yaml"), [f"benchmark.runs={pairs_}"])
    with open_two(recipe, recipe, "host", folder / "out") as members, TaskDisplay() as display:
        ready, _ = look_up(members.all[:1])
        with runner_that_can_spin(folder):
            [end] = run_jobs(ready, StepName.BUNDLE, display, heavy=1)
        if end.error:
            raise end.error
        yield ready[0].resolved.job


def spinning(ready: PreparedMeasurement, share: float) -> PreparedMeasurement:
    launch = ready.bundle.launch
    assert launch.kind == "process"
    environment = {**launch.environment, SPIN: str(share)}
    launch = launch.model_copy(update={"environment": environment})
    return replace(ready, bundle=ready.bundle.model_copy(update={"launch": launch}))


def compared(job: Job, share: float, output: Path) -> Comparison:
    ready = prepared(job)
    assert job.device is not None
    with device_lock(job, lambda *_: None):
        job.device.push(ready.bundle)
        runs = measure_interleaved(job.device, ready, spinning(ready, share), output)
    return compare_runs(*runs)


def real(series: int, pairs_: int, others: int) -> None:
    counts = {0.0: 0, SLOWER - 1: 0}
    with tempfile.TemporaryDirectory(prefix="ab-") as name:
        for job in made(Path(name), pairs_):
            with busy(others):
                for number in range(series):
                    for share in counts:
                        verdict = compared(job, share, Path(name, "out"))
                        wanted = (Verdict.SLOWER,) if share else (Verdict.SLOWER, Verdict.FASTER)
                        counts[share] += verdict.verdict in wanted
                        tell(number + 1, share, verdict)
    same, slower = counts.values()
    print(f"{pairs_} pairs, {others} other processes: A/A called different {same} of {series},")
    print(f"a B that takes 5 % longer found slower {slower} of {series}")


def tell(number: int, share: float, found: Comparison) -> None:
    ratio, spreads = found.ratio, (found.a.spread_percent, found.b.spread_percent)
    assert ratio is not None, found.reason
    kind = "A/B" if share else "A/A"
    apart = " and ".join(f"{spread or 0:.1f} %" for spread in spreads)
    bounds = f"{ratio.low or 0:.3f} to {ratio.high or 0:.3f}"
    print(f"{number:3} {kind} {ratio.median:.3f} ({bounds}), {found.verdict}", end="; ")
    print(f"by the {found.statistic}; between starts {apart}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=400, help="of each row and of each ratio")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--real", type=int, metavar="SERIES", help="measure so many instead")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--busy", type=int, default=0, metavar="PROCESSES")
    chosen = parser.parse_args()
    if chosen.real:
        real(chosen.real, chosen.pairs, chosen.busy)
        return
    rows = simulate(chosen.series)
    if chosen.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    print(f"{'difference found in, with a true one of':60} {'0 %':>7} {'5 %':>7}")
    for row in rows:
        name = f"{row.starts:3} {row.name}"
        print(f"{name:60} {row.at_0_percent:6.1f}% {row.at_5_percent:6.1f}%")


if __name__ == "__main__":
    main()
