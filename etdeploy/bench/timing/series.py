"""What the starts of a timing pass gave together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from etdeploy.bench.passes import TIMING, PassResult, Results
from etdeploy.bench.records.latency import Latency
from etdeploy.bench.records.starts import Spread, Start
from etdeploy.bench.statistics import percentile, sample_stddev, summarize
from etdeploy.runner.protocol import RunnerResults


@dataclass(frozen=True)
class Series:
    """The starts of the timing pass at one size, in their order; at least one."""

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
        return tuple(map(start_of, self.passes))

    @property
    def spread(self) -> Spread:
        """Within and between the starts."""
        return spread_of(self.starts)


def series_of(results: Results, size: str) -> Series:
    """The starts of the timing pass at a size of the recipe; empty stands for a recipe without.

    Of a sweep of threads, those with the chosen number.
    """
    wanted = (TIMING, size, False)
    return Series(
        tuple(r for r in results.values() if (r.step.name, r.step.size, r.step.swept) == wanted)
    )


def start_of(result: PassResult) -> Start:
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
        cooldown=result.observed.cooldown,
        disturbances=result.disturbances,
    )


def spread_of(starts: Sequence[Start]) -> Spread:
    """How far times are apart.

    Standard deviations are divided by medians, which one slow inference does not move. The spread
    between starts is that of their medians: with it, and not with the one within, two runs are to
    be told apart.
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
