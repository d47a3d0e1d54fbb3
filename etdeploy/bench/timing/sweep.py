"""A sweep of threads: the same timing with several numbers of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from etdeploy.bench.passes import TIMING, PassResult, Results
from etdeploy.bench.records.starts import ThreadsRecord
from etdeploy.bench.timing.series import Series
from etdeploy.bench.timing.threads import Threads


def swept_series(results: Results) -> dict[int, Series]:
    """The starts with each number of threads, in the order of the recipe.

    The fastest are there too after `settled`; without a sweep there is none.
    """
    sizes = {r.step.size for r in results.values() if r.step.swept}
    found: dict[int, list[PassResult]] = {}
    for result in results.values():
        if result.step.name == TIMING and result.step.size in sizes:
            found.setdefault(result.step.threads, []).append(result)
    return {threads: Series(tuple(passes)) for threads, passes in found.items()}


def fastest(results: Results) -> int | None:
    """The number of threads with the smallest median, the smaller one of equals.

    None without a sweep.
    """
    series = swept_series(results)
    return min(series, key=lambda n: (series[n].latency.median, n)) if series else None


def settled(results: Results, threads: int, here: Path) -> dict[str, PassResult]:
    """The results with those of the chosen number of threads as if it was the only one.

    Its files in the run's folder get the names that they have without a sweep.

    Args:
        results: Of the passes so far.
        threads: The chosen number.
        here: The run's folder.
    """
    found = {}
    for result in results.values():
        chosen = result
        if result.step.swept and result.step.threads == threads:
            chosen = replace(result, step=replace(result.step, swept=False))
            (here / result.file).rename(here / chosen.file)
            if result.outputs and chosen.outputs:
                (here / result.outputs).rename(here / chosen.outputs)
        found[chosen.step.key] = chosen
    return found


def thread_records(results: Results) -> tuple[ThreadsRecord, ...]:
    """The record of each number of threads; none without a sweep."""
    return tuple(
        ThreadsRecord(
            threads=threads,
            latency_ms=series.latency,
            first_inference_ms=series.first_inference_ms,
            runs=series.starts,
            spread=series.spread,
        )
        for threads, series in swept_series(results).items()
    )


def chosen_threads(results: Results, best: int, wrong: Sequence[int]) -> Threads:
    """What is known about the fastest number of threads.

    Args:
        results: Of the passes so far.
        best: The fastest.
        wrong: Numbers with which the outputs are not the model's.
    """
    numbers = list(swept_series(results))
    told = [
        f"With {_listed([n])} the outputs are not what the model gives: see "
        f"outputs.threads-{n} beside the record."
        for n in wrong
        if n != best
    ]
    reason = f"the fastest of {', '.join(map(str, numbers))}" if len(numbers) > 1 else None
    return Threads((best,), reason, notes=(*_ties(results), *told))


def _ties(results: Results) -> Iterator[str]:
    """That the fastest number is not known to be the fastest, where others are as fast."""
    series = swept_series(results)
    best = fastest(results)
    if best is None or len(series) == 1:
        return
    medians = {n: each.latency.median for n, each in series.items()}
    # As far apart as two medians of starts are by chance: 2 standard deviations of each.
    reach = {n: 2 * (each.spread.between_percent or 0.0) / 100 for n, each in series.items()}
    close = [
        n
        for n in series
        if n != best and medians[n] * (1 - reach[n]) <= medians[best] * (1 + reach[best])
    ]
    if close:
        yield (
            f"{_listed(close)} may be as fast as {best}: the starts differ by more. "
            f"Measure with more starts (--runs 10)."
        )


def _listed(numbers: list[int]) -> str:
    return " or ".join(map(str, numbers)) + (" thread" if numbers[-1] == 1 else " threads")
