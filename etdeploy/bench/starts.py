"""What the starts of a timing pass give together, at each size and number of threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from etdeploy.bench.outputs import Checks
from etdeploy.bench.passes import TIMING
from etdeploy.bench.records.outputs import OutputCheck
from etdeploy.bench.records.performance import Latency, Spread, Start, ThreadsRecord
from etdeploy.bench.records.record import SizeRecord
from etdeploy.bench.run_pass import PassResult, Results
from etdeploy.bench.statistics import percentile, sample_stddev, summarize
from etdeploy.bench.threads import ThreadCounts
from etdeploy.program.folder import InputSet, Provenance, TensorFile
from etdeploy.runner.protocol import RunnerResults


@dataclass(frozen=True)
class StartSeries:
    """The starts of the timing pass at one size, in order; at least one."""

    passes: tuple[PassResult, ...]

    @property
    def first(self) -> RunnerResults:
        """The results of the first start."""
        return self.passes[0].results

    @property
    def latency(self) -> Latency:
        """Over the samples of all starts."""
        return summarize([ms for each in self.passes for ms in each.results.samples_ms])

    @property
    def first_inference_ms(self) -> float:
        """The median over the starts."""
        return _median([each.results.first_inference_ms for each in self.passes])

    @property
    def load_ms(self) -> float:
        """The median over the starts."""
        return _median([_load_ms(each.results) for each in self.passes])

    @property
    def verify_ms(self) -> float | None:
        """The median over the starts; None from runners that checked while they loaded."""
        known = [each.results.verify_ms for each in self.passes]
        return _median([ms for ms in known if ms is not None]) if None not in known else None

    @property
    def starts(self) -> tuple[Start, ...]:
        """Each start as the record has it."""
        return tuple(map(make_start, self.passes))

    @property
    def spread(self) -> Spread:
        """Within and between the starts."""
        return compute_spread(self.starts)


def select_starts(results: Results, size: str) -> StartSeries:
    """The starts of the timing pass at a size, which is empty for a recipe without sizes.

    After a sweep of threads, these are the starts with the chosen number.
    """
    key = (TIMING, size, False)
    return StartSeries(
        tuple(r for r in results.values() if (r.step.name, r.step.size, r.step.swept) == key)
    )


def make_start(result: PassResult) -> Start:
    """A start as the record has it."""
    timing = result.results
    latency = summarize(timing.samples_ms)
    return Start(
        started_at=result.started.isoformat(timespec="seconds"),
        warmup=timing.warmup,
        steady=timing.steady,
        load_ms=_load_ms(timing),
        verify_ms=timing.verify_ms,
        first_inference_ms=timing.first_inference_ms,
        samples=len(timing.samples_ms),
        median_ms=latency.median,
        mean_ms=latency.mean,
        stddev_ms=latency.stddev,
        cooldown=result.observation.cooldown,
        disturbances=result.disturbances,
    )


def compute_spread(starts: Sequence[Start]) -> Spread:
    """The spread of times within and between starts, as standard deviations by medians.

    A median is not changed by one slow inference. Runs are compared by the spread between starts.
    """
    medians = [start.median_ms for start in starts]
    within = [_percent(start.stddev_ms, start.median_ms) for start in starts]
    between = _percent(sample_stddev(medians), _median(medians)) if len(starts) > 1 else None
    return Spread(within_percent=_median(within), between_percent=between)


def _load_ms(timing: RunnerResults) -> float:
    return timing.load_program_ms + timing.load_method_ms


def _median(values: Sequence[float]) -> float:
    return percentile(values, 50)


def _percent(part_ms: float, whole_ms: float) -> float:
    """0 where the clock is too coarse to see any time."""
    return 100 * part_ms / whole_ms if whole_ms > 0 else 0.0


def starts_by_threads(results: Results) -> dict[int, StartSeries]:
    """The starts with each number of threads, in the recipe's order; empty without a sweep.

    It includes the fastest ones after `promote_fastest`.
    """
    sizes = {r.step.size for r in results.values() if r.step.swept}
    found: dict[int, list[PassResult]] = {}
    for result in results.values():
        if result.step.name == TIMING and result.step.size in sizes:
            found.setdefault(result.step.threads, []).append(result)
    return {threads: StartSeries(tuple(passes)) for threads, passes in found.items()}


def fastest(results: Results) -> int | None:
    """The (lowest) number of threads with the smallest median; None without a sweep."""
    series = starts_by_threads(results)
    return min(series, key=lambda n: (series[n].latency.median, n)) if series else None


def promote_fastest(results: Results, threads: int, here: Path) -> dict[str, PassResult]:
    """Rename the results of a number of threads, and their files, as if there were no sweep."""
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
        for threads, series in starts_by_threads(results).items()
    )


def fastest_threads(results: Results, best: int, wrong: Sequence[int]) -> ThreadCounts:
    """The fastest number of threads with the reason, and notes about the others."""
    numbers = list(starts_by_threads(results))
    differing = [
        f"With {_listed([n])} the outputs differ from the model's: see outputs.threads-{n} beside "
        "the record."
        for n in wrong
        if n != best
    ]
    reason = f"the fastest of {', '.join(map(str, numbers))}" if len(numbers) > 1 else None
    return ThreadCounts((best,), reason, notes=(*_ties(results), *differing))


def _ties(results: Results) -> Iterator[str]:
    """A note if other numbers of threads may be as fast as the fastest one."""
    series = starts_by_threads(results)
    best = fastest(results)
    if best is None or len(series) == 1:
        return
    medians = {n: each.latency.median for n, each in series.items()}
    # Medians of starts differ by chance by up to 2 standard deviations of each.
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


def size_records(
    results: Results, checks: Checks, provenance: Provenance
) -> tuple[SizeRecord, ...]:
    """The record of every size of the recipe."""
    return tuple(
        _size_record(provenance.measured[name], results, outputs)
        for name, outputs in checks.items()
        if name
    )


def _size_record(
    inputs: InputSet, results: Results, outputs: tuple[OutputCheck, ...]
) -> SizeRecord:
    series = select_starts(results, inputs.name)
    memory = [r for r in results.values() if (r.step.name, r.step.size) == ("memory", inputs.name)]
    return SizeRecord(
        name=inputs.name,
        sizes=inputs.sizes,
        shapes={
            value.name or f"input_{index}": value.shape
            for index, value in enumerate(inputs.inputs)
            if isinstance(value, TensorFile)
        },
        latency_ms=series.latency,
        first_inference_ms=series.first_inference_ms,
        peak_rss_bytes=(memory[0].results.peak_rss_bytes or None) if memory else None,
        outputs=outputs,
        runs=series.starts,
        spread=series.spread,
    )
