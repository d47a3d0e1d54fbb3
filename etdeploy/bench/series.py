"""What the starts of a timing pass gave together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from etdeploy.bench.passes import PROBE, TIMING, Pass, PassResult, Results
from etdeploy.bench.records.performance import Latency, Spread, Start
from etdeploy.bench.statistics import percentile, sample_stddev, summarize
from etdeploy.recipe.load import LoadedRecipe
from etdeploy.runner.protocol import RunnerResults


@dataclass(frozen=True)
class StartSeries:
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


def series_of(results: Results, size: str) -> StartSeries:
    """The starts of the timing pass at a size of the recipe; empty stands for a recipe without.

    Of a sweep of threads, those with the chosen number.
    """
    wanted = (TIMING, size, False)
    return StartSeries(
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


_ITERATIONS = 10
# The machine may become as much slower while a pass runs.
_SLACK = 4
# `warmup: auto` ends after ten seconds or three inferences (templates/runner/warmup.h).
_AUTO_WARMUP_S, _AUTO_WARMUP_ITERATIONS = 10, 3


def emulated_defaults(loaded: LoadedRecipe) -> LoadedRecipe:
    """A recipe with one thread, few iterations and a longer limit, as far as its user gave none."""
    runtime, benchmark = loaded.recipe.runtime, loaded.recipe.benchmark
    changes: dict[str, Any] = {}
    if not loaded.is_chosen("runtime", "threads"):
        changes["runtime"] = runtime.model_copy(update={"threads": 1})
    few: dict[str, Any] = {}
    if not loaded.is_chosen("benchmark", "iterations"):
        few["iterations"] = min(benchmark.iterations, _ITERATIONS)
    if not loaded.is_chosen("benchmark", "timeout_s"):
        few["timeout_s"] = _SLACK * benchmark.timeout_s
    changes["benchmark"] = benchmark.model_copy(update=few)
    return replace(loaded, recipe=loaded.recipe.model_copy(update=changes))


def probe_of(step: Pass) -> Pass:
    """A short pass before another one, which measures how fast the emulated device is."""
    return replace(
        step, name=PROBE, warmup=0, iterations=1, outputs=False, etdump=False, watched=False,
        sustained_s=0, start=1, limit_s=0,
    )  # fmt: skip


def limit_s(step: Pass, probe: PassResult, least_s: float) -> float:
    """The time limit of a pass, in seconds."""
    one_s = max(probe.results.samples_ms) / 1000
    if step.warmup == "auto":
        warmup_s = _AUTO_WARMUP_S + _AUTO_WARMUP_ITERATIONS * one_s
    else:
        warmup_s = step.warmup * one_s
    return max(least_s, _SLACK * (probe.seconds + warmup_s + step.iterations * one_s))
