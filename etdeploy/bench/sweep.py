"""A sweep of threads: the same timing with several numbers of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from etdeploy.bench.passes import MEMORY, PROFILE, SUSTAINED, TIMING, Pass, PassResult, Results
from etdeploy.bench.records.performance import ThreadsRecord
from etdeploy.bench.series import StartSeries
from etdeploy.core.console import count
from etdeploy.devices.base import CpuCluster, DeviceState
from etdeploy.program.folder import FORWARD
from etdeploy.recipe.model import Recipe

# Of the strongest processor's capacity, as the kernel computes it from a device's tree. Little
# cores reach up to 39 % (RK3588), middle ones 48 % and more (Cortex-A76 in Google's Tensor).
LEAST_CAPACITY = 0.45
# Of the highest frequency, where no capacity is reported. Little cores and Intel's efficient ones
# reach up to 78 % (RK3399), middle ones 80 % and more.
LEAST_FREQUENCY = 0.79
# The recipe's bound.
_MOST = 256


@dataclass(frozen=True)
class ThreadCounts:
    """What the runner is told.

    Attributes:
        numbers: How many, 0 for ExecuTorch's choice; several for a sweep.
        reason: Why; None where the recipe says how many.
        swept: Whether the recipe asks for a sweep.
        notes: What a reader of the times has to know.
    """

    numbers: tuple[int, ...]
    reason: str | None = None
    swept: bool = False
    notes: tuple[str, ...] = ()


def choose_threads(
    wanted: int | str | Sequence[int], state: DeviceState, *, has_pool: bool = True
) -> ThreadCounts:
    """How many threads a recipe's `runtime.threads` gives on a device."""
    if isinstance(wanted, int):
        return ThreadCounts((wanted,))
    if not has_pool:
        return ThreadCounts((0,), "nothing in the program uses threads, so the runner has no pool")
    if isinstance(wanted, str):
        number, reason = performance_cores(state)
        return ThreadCounts((number,), reason)
    return ThreadCounts(tuple(wanted), swept=True)


def compared_with_cores(threads: ThreadCounts, state: DeviceState, taken: int) -> ThreadCounts:
    """The same, with a note where ExecuTorch's own choice is not one for each performance core."""
    number, reason = performance_cores(state)
    if threads != ThreadCounts((0,)) or number in (0, taken):
        return threads
    both = f"[{min(number, taken)}, {max(number, taken)}]"
    note = (
        f"ExecuTorch chose {count(taken, 'thread')}; the device has {count(number, 'core')} for "
        f"them: {reason}. Take those (--set runtime.threads=auto), or see which number is faster "
        f"(--set 'runtime.threads={both}')."
    )
    return replace(threads, notes=(note,))


def performance_cores(state: DeviceState) -> tuple[int, str]:
    """How many cores are worth a thread, and why; 0 where the device does not tell.

    Slower cores make the others wait: a model on a Pixel 6 took 6.7 ms with the four faster cores,
    and 79 ms with all eight (https://github.com/pytorch/executorch/pull/5811). Of a core that is
    several processors, one counts: they share what computes.
    """
    usable = _usable(state)
    if not usable:
        return 0, "the device does not report its processors, so ExecuTorch chose"
    strong, reason = _strong([cluster for cluster, _ in usable])
    number = sum(cores for cluster, cores in usable if cluster in strong)
    if state.cpu_quota is not None and state.cpu_quota < number:
        number = max(1, math.floor(state.cpu_quota))
        reason += f", limited to the time of {state.cpu_quota:g} by a control group"
    return min(number, _MOST), reason


def _strong(clusters: Sequence[CpuCluster]) -> tuple[list[CpuCluster], str]:
    """The clusters of performance cores, and how they were told apart."""
    known = (
        ([c.capacity for c in clusters], LEAST_CAPACITY, "of the strongest one's capacity"),
        ([c.hardware_max_khz or c.max_khz for c in clusters], LEAST_FREQUENCY,
         "of the highest frequency"),
    )  # fmt: skip
    for values, least, of in known:
        numbers = [value for value in values if value]
        if len(numbers) < len(clusters) or len(set(numbers)) == 1:
            continue
        limit = least * max(numbers)
        strong = [c for c, value in zip(clusters, numbers, strict=True) if value >= limit]
        if len(strong) < len(clusters):
            return strong, f"performance cores, which have at least {100 * least:.0f} % {of}"
        break
    return list(clusters), "all cores that the runner may use"


def _usable(state: DeviceState) -> list[tuple[CpuCluster, int]]:
    """The clusters on which a program may run, each with the number of its cores."""
    processors = [(cluster, _allowed(cluster.cpus, state)) for cluster in state.clusters]
    # The first processor of a core may be in another cluster, where each has its own.
    cores = [
        (cluster, allowed if cluster.cores is None else _allowed(cluster.cores, state))
        for cluster, allowed in processors
    ]
    # Second processors count where all first ones are forbidden.
    counted = cores if any(number for _, number in cores) else processors
    return [(cluster, number) for cluster, number in counted if number]


def _allowed(cpus: Sequence[int], state: DeviceState) -> int:
    usable = state.usable_cpus
    return len(cpus if usable is None else set(cpus).intersection(usable))


def swept_series(results: Results) -> dict[int, StartSeries]:
    """The starts with each number of threads, in the order of the recipe.

    The fastest are there too after `settled`; without a sweep there is none.
    """
    sizes = {r.step.size for r in results.values() if r.step.swept}
    found: dict[int, list[PassResult]] = {}
    for result in results.values():
        if result.step.name == TIMING and result.step.size in sizes:
            found.setdefault(result.step.threads, []).append(result)
    return {threads: StartSeries(tuple(passes)) for threads, passes in found.items()}


def fastest(results: Results) -> int | None:
    """The number of threads with the smallest median, the smaller one of equals.

    None without a sweep.
    """
    series = swept_series(results)
    return min(series, key=lambda n: (series[n].latency.median, n)) if series else None


def settled(results: Results, threads: int, here: Path) -> dict[str, PassResult]:
    """The results with those of the chosen number of threads as if it was the only one.

    Its files in the run's folder get the names that they have without a sweep.
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


def chosen_threads(results: Results, best: int, wrong: Sequence[int]) -> ThreadCounts:
    """What is known about the fastest number of threads."""
    numbers = list(swept_series(results))
    told = [
        f"With {_listed([n])} the outputs are not what the model gives: see "
        f"outputs.threads-{n} beside the record."
        for n in wrong
        if n != best
    ]
    reason = f"the fastest of {', '.join(map(str, numbers))}" if len(numbers) > 1 else None
    return ThreadCounts((best,), reason, notes=(*_ties(results), *told))


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


# Memory is planned before the first inference; a second one shows what stays allocated.
_MEMORY_ITERATIONS = 2
# A simulator takes seconds for a second of a phone's time, and its times mean nothing.
_SIMULATED_ITERATIONS = 1
# A trace grows with every iteration, and the shares of operators settle quickly.
_PROFILE_ITERATIONS = 10
_PROFILE_WARMUP = 5
_CHOSEN_BY_EXECUTORCH = ThreadCounts((0,))


@dataclass(frozen=True)
class Plan:
    """The passes that a recipe requests.

    Attributes:
        starts: The timing passes, start by start: each start has one for every size, or for every
            number of threads, so that what changes over minutes changes all of them alike.
        rest: Memory, profile and sustained work, after the last start. After a sweep of threads
            also the timing at further sizes; all of them have the fastest number then.
    """

    starts: tuple[tuple[Pass, ...], ...]
    rest: tuple[Pass, ...]

    @property
    def steps(self) -> tuple[Pass, ...]:
        """All of them, in the order in which they run."""
        return (*(step for start in self.starts for step in start), *self.rest)


def plan_passes(
    recipe: Recipe,
    method: str = FORWARD,
    threads: ThreadCounts = _CHOSEN_BY_EXECUTORCH,
    *,
    simulated: bool = False,
) -> Plan:
    """The passes that a recipe requests.

    Every pass has its own process, so that its first inference really is a first one. The profile
    is of the first size, and threads are swept there.
    """
    wanted = recipe.benchmark
    timing = Pass(TIMING, wanted.warmup, wanted.iterations, method=method)
    timing = replace(timing, threads=threads.numbers[0])
    if simulated:
        timing = replace(timing, warmup=0, iterations=_SIMULATED_ITERATIONS)
    first, *further = (
        replace(timing, size=size, further=index > 0)
        for index, size in enumerate(wanted.sizes or ("",))
    )
    if simulated:
        return Plan((_start([first, *further], 1),), ())
    rest = tuple(_rest(recipe, [first, *further]))
    if not threads.swept:
        return Plan(_starts([first, *further], wanted.runs), rest)
    sweep = [replace(first, threads=number, swept=True) for number in threads.numbers]
    later = tuple(step for start in _starts(further, wanted.runs) for step in start)
    return Plan(_starts(sweep, wanted.runs), (*later, *rest))


def plan_for_app(plan: Plan) -> Plan:
    """What of a plan an app can do: it records no trace, and no back-to-back work.

    Of its memory it tells the peak only.
    """
    rest = (
        replace(step, watched=False) for step in plan.rest if step.name not in (PROFILE, SUSTAINED)
    )
    return Plan(plan.starts, tuple(rest))


def _starts(passes: Sequence[Pass], runs: int) -> tuple[tuple[Pass, ...], ...]:
    return tuple(_start(passes, number) for number in range(1, runs + 1))


def _start(passes: Sequence[Pass], number: int) -> tuple[Pass, ...]:
    """The passes in one start; those of the first one write their outputs."""
    return tuple(replace(step, start=number, outputs=number == 1) for step in passes)


def _rest(recipe: Recipe, at_sizes: Sequence[Pass]) -> Iterator[Pass]:
    """Memory at every size; profile and sustained work at the first."""
    wanted, first = recipe.benchmark, at_sizes[0]
    if wanted.memory:
        few = min(wanted.iterations, _MEMORY_ITERATIONS)
        for step in at_sizes:
            memory = replace(step, name=MEMORY, warmup=0, iterations=few)
            yield replace(memory, watched=not step.further)
    if wanted.profile:
        given = _PROFILE_WARMUP if wanted.warmup == "auto" else wanted.warmup
        few, warmup = min(wanted.iterations, _PROFILE_ITERATIONS), min(given, _PROFILE_WARMUP)
        yield replace(first, name=PROFILE, warmup=warmup, iterations=few, etdump=True)
    if wanted.sustained_s:
        # Its own start is its warm-up: more would warm the device.
        work = replace(first, name=SUSTAINED, warmup=0, iterations=1)
        yield replace(work, sustained_s=wanted.sustained_s)
