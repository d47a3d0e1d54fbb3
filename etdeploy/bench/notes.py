"""Notes of a record: sentences that a reader of the numbers has to know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from etdeploy.backends.values import Simulated
from etdeploy.bench.outputs import Checks
from etdeploy.bench.passes import TIMING
from etdeploy.bench.records.generation import TextGeneration
from etdeploy.bench.records.outputs import OutputCheck
from etdeploy.bench.records.performance import (
    Sustained,
)
from etdeploy.bench.records.record import DeviceRecord, Workload
from etdeploy.bench.run_pass import Results
from etdeploy.bench.starts import StartSeries, select_starts
from etdeploy.bench.statistics import percentile
from etdeploy.bench.sustained import FEWEST
from etdeploy.bench.units import long_time, rate
from etdeploy.core.commands import pip_command
from etdeploy.core.console import count
from etdeploy.program.folder import (
    FORWARD,
)
from etdeploy.program.generation import Generation
from etdeploy.recipe.sections.benchmark import Benchmark, Cooldown

# In percent of the median. Within one start on a quiet machine it is a few percent.
SPREAD_LIMIT = 20.0


SPREAD_SAMPLES = 5


# ExecuTorch's own farm saw 41-57 % between runs of one program on one kind of phone.
BETWEEN_LIMIT = 10.0


# What remedies ask for at most: more starts narrow little, and a recipe takes no longer warm-up.
MOST_RUNS = 50


MOST_WARMUP = 100_000


# A phone that throttles gets slower over the run instead of at random.
DRIFT_LIMIT = 0.10


DRIFT_SAMPLES = 10


# The limit that react-native-executorch's benchmarks set for batteries.
WARM_CELSIUS = 37.0


def method_notes(method: str, methods: Sequence[str], *, chosen: bool) -> Iterator[str]:
    """A note if a program has several methods and the recipe does not name one."""
    others = [name for name in methods if name != method]
    if others and not chosen and method != FORWARD:
        yield (
            f"The method {method} was measured. The program also has {', '.join(others)}: "
            f"--set benchmark.method={others[0]}"
        )


def workload_notes(workload: Workload) -> Iterator[str]:
    """Notes about weak comparisons with the model."""
    if not isinstance(workload, TextGeneration):
        yield from output_notes(workload.all_outputs)


def output_notes(outputs: Sequence[OutputCheck]) -> Iterator[str]:
    """Notes about outputs whose comparison is weak or impossible."""
    for check in outputs:
        if check.within_tolerance is None:
            yield (
                f"{check.name} was not compared: {check.remark}. Call the model in Python with the "
                "same inputs. Usual causes are weights that were not loaded, inputs outside the "
                "range that the model expects, and 16-bit floats that overflow."
            )
        elif check.remark:
            yield f"The comparison of {check.name} is weak: {check.remark}."


def app_notes(limits: Benchmark, generation: Generation | None, target: str) -> Iterator[str]:
    """Notes about what an app does not measure, or measures differently."""
    if generation and len(generation.methods) > 1 and target.startswith("android"):
        yield (
            "The app takes prompts token by token: ExecuTorch's Java API gives each method memory "
            "of its own, so one for prompts cannot fill the cache of another. The time to the "
            "first token is a runner's many times."
        )
    # An iPhone runs nothing but apps.
    has_runner = target.startswith("android")
    if limits.profile:
        way = ": etdeploy run without --as app shows where the time goes" if has_runner else ""
        yield f"An app records no trace{way}."
    if limits.sustained_s:
        yield f"An app has no sustained pass{': a run without --as app has' if has_runner else ''}."


def simulation_note(simulated: Simulated) -> str:
    """A note about the limits of a simulated run."""
    return (
        f"Simulated: {simulated.by} computed the outputs in place of {simulated.soc or 'the SoC'}. "
        "The times in the record are the simulator's, of one inference without warm-up; the other "
        "passes were left out."
    )


def measurement_notes(
    series: StartSeries, device: DeviceRecord, portable_runner: bool, *, of_tokens: bool = False
) -> tuple[str, ...]:
    """Notes about the device, the runner and the samples."""
    return (
        *_device_notes(device),
        *(_PORTABLE if portable_runner else ()),
        *(between_notes(series) if of_tokens else start_notes(series)),
    )


_EMULATED = (
    "Measured under qemu, which translates every instruction: these times are not those of a "
    "phone, and the memory includes the emulator's. By default, an emulated run has 1 thread and "
    "at most 10 iterations.",
)


_PORTABLE = (
    "The portable runner was used: it brings its own Linux C library instead of using the "
    "device's. Times may differ a little from those of a native runner.",
)


def _device_notes(device: DeviceRecord) -> Iterator[str]:
    before, facts = device.before, device.facts
    if facts.emulator:
        yield from _EMULATED
    for ended in device.ended:
        yield (
            "A runner of an earlier run was still running on the device, and was ended before "
            f"measuring: process {ended.pid} of {ended.run_id}, after {ended.duration}."
        )
    if before.battery_celsius is not None and before.battery_celsius > WARM_CELSIUS:
        yield (
            f"The battery was at {before.battery_celsius:.0f} °C at the start: a warm device is "
            "slower. To wait for a cool one: --set benchmark.cooldown.max_celsius=37"
        )


def start_notes(series: StartSeries) -> Iterator[str]:
    """Notes about the samples of the starts and about their spread."""
    spread = series.spread
    if len(series.first.samples_ms) >= SPREAD_SAMPLES and spread.within_percent > SPREAD_LIMIT:
        yield (
            f"The times vary a lot: their standard deviation is {spread.within_percent:.0f} % of "
            "the median. Compare medians, and end other work on the device."
        )
    yield from _drift_notes(series)
    yield from _changing_outputs(series)
    yield from between_notes(series)


def between_notes(series: StartSeries) -> Iterator[str]:
    """A note about starts whose medians differ a lot."""
    spread = series.spread
    between = spread.between_percent
    if between is not None and between > BETWEEN_LIMIT:
        runs = min(MOST_RUNS, max(10, 2 * len(series.passes)))
        yield (
            f"The starts differ: their medians have a standard deviation of {between:.0f} %. A "
            "difference from another run has to be larger to mean anything. End other work on the "
            f"device, let it cool, and measure with more starts (--runs {runs})."
        )


def _drift_notes(series: StartSeries) -> Iterator[str]:
    drifts = [_drift(each.results.samples_ms) for each in series.passes]
    known = [drift for drift in drifts if drift is not None]
    drift = percentile(known, 50) if known else 0.0
    if drift > DRIFT_LIMIT:
        yield (
            f"The second half of the samples is {100 * drift:.0f} % slower than the first: the "
            "device may be getting warm and throttling, or other work interfered."
        )
    falling = [each.results.warmup for each in series.passes if each.results.steady is False]
    if falling:
        where = (
            f" in {len(falling)} of {len(series.passes)} starts" if len(series.passes) > 1 else ""
        )
        yield (
            f"The times were still falling after {max(falling):,} warm-up iterations{where}: "
            f"{_longer(max(falling))}."
        )
    elif drift < -DRIFT_LIMIT:
        warmup = max(each.results.warmup for each in series.passes)
        yield (
            f"The second half of the samples is {-100 * drift:.0f} % faster than the first: "
            f"{warmup:,} warm-up iterations may be too few. {_longer(warmup).capitalize()}."
        )


def _changing_outputs(series: StartSeries) -> Iterator[str]:
    first, *others = (each.results.outputs_digest for each in series.passes)
    different = [digest for digest in others if digest != first]
    if different and first:
        yield (
            f"In {len(different)} of {len(series.passes)} starts the outputs are not bit-identical "
            "to those of the first one, which were compared. The model draws random numbers, or a "
            "kernel is not deterministic, for example because of its threads."
        )


def _longer(warmup: int) -> str:
    return f"try more of them (--set benchmark.warmup={min(MOST_WARMUP, max(10, 4 * warmup))})"


def _drift(samples: Sequence[float]) -> float | None:
    """Median of the second half divided by that of the first, minus 1; None for few samples."""
    if len(samples) < DRIFT_SAMPLES:
        return None
    middle = len(samples) // 2
    first, second = (percentile(half, 50) for half in (samples[:middle], samples[middle:]))
    return second / first - 1 if first > 0 else None


def size_notes(results: Results, checks: Checks) -> Iterator[str]:
    """Notes about the samples of further sizes."""
    for name in list(checks)[1:]:
        for note in start_notes(select_starts(results, name)):
            yield f"At {name}: {note[0].lower()}{note[1:]}"


def cooldown_notes(results: Results, limits: Cooldown | None) -> Iterator[str]:
    """Notes about a device that was warmer than the recipe allows."""
    if limits is None:
        return
    starts = [r for r in results.values() if r.step.name == TIMING]
    waits = [r.observation.cooldown for r in starts if r.observation.cooldown]
    if not waits:
        yield (
            f"The recipe waits for {limits.max_celsius:g} °C before each start, but the device "
            "reports no temperature: no start has waited."
        )
    warm = [wait for wait in waits if not wait.reached]
    if warm:
        hottest = max(warm, key=lambda wait: wait.to_celsius)
        where = f"{len(warm)} of {count(len(starts), 'start')}" if len(starts) > 1 else "the start"
        yield (
            f"The device did not cool to {limits.max_celsius:g} °C within "
            f"{long_time(limits.timeout_s)} before {where}: {hottest.sensor} was at "
            f"{hottest.to_celsius:.1f} °C. Wait longer "
            f"(--set benchmark.cooldown.timeout_s={2 * limits.timeout_s:g}), or for less "
            "(--set benchmark.cooldown.max_celsius=...)."
        )


def generation_notes(workload: TextGeneration, *, has_tokenizer: bool) -> Iterator[str]:
    """Notes about texts that differ and about missing tokenizers."""
    for point in workload.points:
        if point.distinct > 1:
            yield (
                f"{point.generations} generations of the same prompt with the same seed "
                f"({point.label}) gave {point.distinct} different texts: a kernel is not "
                "deterministic, for example because of its threads."
            )
    if has_tokenizer and any(point.text is None for point in workload.points):
        yield (
            "The record has token IDs and no text, because the model's tokenizer cannot be read: "
            + pip_command("etdeploy[llm]")
        )


# Normal run-to-run variation of the rate.
_KEPT_PERCENT = 90.0
# No device throttles so soon.
_SHORT_S = 60.0


def sustained_notes(sustained: Sustained) -> Iterator[str]:
    """Notes about a sustained pass: the lost rate, and what weakens the result."""
    if sustained.ended_early:
        yield (
            f"The sustained pass ended after {long_time(sustained.seconds)}: "
            f"{sustained.ended_early}. Its figures are those until then."
        )
    if sustained.cooldown and not sustained.cooldown.reached:
        yield (
            f"The sustained pass did not begin cool: {sustained.cooldown.sensor} was at "
            f"{sustained.cooldown.to_celsius:.0f} °C. A device that begins warm shows less of what "
            "it loses."
        )
    for disturbance in sustained.disturbances:
        yield f"The sustained pass shows more than heat. {disturbance.text}"
    if len(sustained.points) < FEWEST or sustained.seconds < _SHORT_S:
        yield (
            f"The sustained pass has {count(sustained.inferences, 'inference')} in "
            f"{long_time(sustained.seconds)}, too little to see what heat does. Let it last for "
            "minutes: --set benchmark.sustained_s=600"
        )
    elif sustained.retained_percent < _KEPT_PERCENT:
        yield (
            f"Work without a pause keeps {sustained.retained_percent:.0f} % of its rate"
            f"{_since(sustained)}: plan with {rate(sustained.end_per_s)} inferences per second "
            "where an application works for that long."
        )


def _since(sustained: Sustained) -> str:
    length = f" after {long_time(sustained.seconds)}"
    drop_s = sustained.to_minus_10_percent_s
    return f"{length}, and loses the first 10 % after {long_time(drop_s)}" if drop_s else length
