"""The passes that a recipe requests: separate starts of the runner, each for one purpose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from etdeploy.bench.generation_request import (
    MEMORY_REQUEST,
    PROFILE_REQUEST,
    TEXT_REQUEST,
    TIMING_REQUEST,
)
from etdeploy.bench.generation_workload import GenerationWorkload
from etdeploy.bench.threads import EXECUTORCH_CHOICE, ThreadCounts
from etdeploy.program.folder import FORWARD
from etdeploy.recipe.load import LoadedRecipe
from etdeploy.recipe.model import Recipe

if TYPE_CHECKING:
    from etdeploy.bench.run_pass import PassResult

TIMING = "timing"
MEMORY = "memory"
TEXT = "text"
PROFILE = "profile"
PROBE = "probe"
SUSTAINED = "sustained"
OUTPUTS = "outputs"


@dataclass(frozen=True)
class Pass:
    """One start of the runner.

    Timing runs without a tracer, which would change the times, and is started several times, since
    times differ more between processes than within one. Memory has its own process, since output
    files and long lists of samples would count. The text pass generates what is compared with the
    model's text, and the profile pass records an ETDump. The sustained pass comes last, since it
    heats the device.

    Attributes:
        name: timing, memory, text, profile or sustained; probe on an emulated device.
        size: A size of the recipe; empty without sizes. `further` ones follow the first.
        outputs: Whether to write the outputs of the first inference.
        watched: Whether the runner records its memory.
        sustained_s: How long it works back to back after the iterations.
        start: The number of this start of the same pass, from 1.
        threads: In ExecuTorch's pool; 0 for ExecuTorch's choice. A sweep has several numbers.
        request: The bundle's file that says what to generate; empty for inferences. Then `warmup`
            counts the first point's generations, and `iterations` those of all points.
        limit_s: The time limit without the sustained work; 0 for the recipe's.
    """

    name: str
    warmup: int | Literal["auto"]
    iterations: int
    outputs: bool = False
    etdump: bool = False
    watched: bool = False
    sustained_s: float = 0
    size: str = ""
    further: bool = False
    method: str = FORWARD
    start: int = 1
    threads: int = 0
    swept: bool = False
    request: str = ""
    limit_s: float = 0

    @property
    def key(self) -> str:
        """Identifies the pass: `timing`, `timing.2`, `timing-long.2`, `timing.threads-4.2`."""
        return self.name + self._suffix + (f".{self.start}" if self.start > 1 else "")

    @property
    def results(self) -> str:
        """The results file in the run's folder."""
        return f"{self.key}.json"

    @property
    def outputs_folder(self) -> str:
        """The folder for outputs in the run's folder."""
        return OUTPUTS + self._suffix

    @property
    def _suffix(self) -> str:
        size = f"-{self.size}" if self.further else ""
        return f"{size}.threads-{self.threads}" if self.swept else size


@dataclass(frozen=True)
class Plan:
    """The passes that a recipe requests.

    Each of the `starts` has a timing pass for every size, or for every number of threads of a
    sweep, so that slow changes affect all of them alike. The `rest` follows the last start; after
    a sweep it includes the timing at further sizes, with the fastest number of threads.
    """

    starts: tuple[tuple[Pass, ...], ...]
    rest: tuple[Pass, ...]

    @property
    def steps(self) -> tuple[Pass, ...]:
        """All passes, in order."""
        return (*(step for start in self.starts for step in start), *self.rest)


# Memory is planned before the first inference; a second one shows what stays allocated.
_MEMORY_ITERATIONS = 2
# A simulator takes seconds for a second of a phone's time, and its times mean nothing.
_SIMULATED_ITERATIONS = 1
# A trace grows with every iteration, and the shares of operators settle quickly.
_PROFILE_ITERATIONS = 10
_PROFILE_WARMUP = 5


def plan_passes(
    recipe: Recipe,
    method: str = FORWARD,
    threads: ThreadCounts = EXECUTORCH_CHOICE,
    *,
    simulated: bool = False,
) -> Plan:
    """Return the passes for inferences; sweep and profile are at the first size only."""
    benchmark = recipe.benchmark
    timing = Pass(TIMING, benchmark.warmup, benchmark.iterations, method=method)
    timing = replace(timing, threads=threads.numbers[0])
    if simulated:
        timing = replace(timing, warmup=0, iterations=_SIMULATED_ITERATIONS)
    first, *further = (
        replace(timing, size=size, further=index > 0)
        for index, size in enumerate(benchmark.sizes or ("",))
    )
    if simulated:
        return Plan((_start([first, *further], 1),), ())
    rest = tuple(_other_passes(recipe, [first, *further]))
    if not threads.swept:
        return Plan(_starts([first, *further], benchmark.runs), rest)
    sweep = [replace(first, threads=number, swept=True) for number in threads.numbers]
    later = tuple(step for start in _starts(further, benchmark.runs) for step in start)
    return Plan(_starts(sweep, benchmark.runs), (*later, *rest))


def plan_for_app(plan: Plan) -> Plan:
    """Return the passes that an app supports: no trace, no sustained work, and peak memory only."""
    rest = (
        replace(step, watched=False) for step in plan.rest if step.name not in (PROFILE, SUSTAINED)
    )
    return Plan(plan.starts, tuple(rest))


def _starts(passes: Sequence[Pass], runs: int) -> tuple[tuple[Pass, ...], ...]:
    return tuple(_start(passes, number) for number in range(1, runs + 1))


def _start(passes: Sequence[Pass], number: int) -> tuple[Pass, ...]:
    """The passes of one start; those of the first one write their outputs."""
    return tuple(replace(step, start=number, outputs=number == 1) for step in passes)


def _other_passes(recipe: Recipe, at_sizes: Sequence[Pass]) -> Iterator[Pass]:
    """Memory at every size; profile and sustained work at the first."""
    benchmark, first = recipe.benchmark, at_sizes[0]
    if benchmark.memory:
        few = min(benchmark.iterations, _MEMORY_ITERATIONS)
        for step in at_sizes:
            memory = replace(step, name=MEMORY, warmup=0, iterations=few)
            yield replace(memory, watched=not step.further)
    if benchmark.profile:
        warmup = _PROFILE_WARMUP if benchmark.warmup == "auto" else benchmark.warmup
        few, warmup = min(benchmark.iterations, _PROFILE_ITERATIONS), min(warmup, _PROFILE_WARMUP)
        yield replace(first, name=PROFILE, warmup=warmup, iterations=few, etdump=True)
    if benchmark.sustained_s:
        # More warm-up would heat the device.
        work = replace(first, name=SUSTAINED, warmup=0, iterations=1)
        yield replace(work, sustained_s=benchmark.sustained_s)


def plan_generation(
    recipe: Recipe, work: GenerationWorkload, threads: ThreadCounts, *, simulated: bool = False
) -> Plan:
    """Return the passes for generated text: the whole grid in each start, then the rest.

    The rest is the text that is compared with the model's, the memory of the first point, and the
    traces.
    """
    first = work.points[0]
    timing = Pass(
        TIMING,
        warmup=first.warmup,
        iterations=sum(point.warmup + point.repetitions for point in work.points),
        method=work.method,
        threads=threads.numbers[0],
        request=TIMING_REQUEST,
    )
    known = len(work.generation.expected)
    text = replace(timing, name=TEXT, warmup=0, iterations=known, request=TEXT_REQUEST)
    texts = (text,) if known else ()
    if simulated:
        return Plan(((timing,),), texts)
    runs = recipe.benchmark.runs
    starts = tuple((replace(timing, start=number),) for number in range(1, runs + 1))
    return Plan(
        starts, (*texts, *_other_generation_passes(recipe, work, replace(timing, warmup=0)))
    )


def _other_generation_passes(
    recipe: Recipe, work: GenerationWorkload, once: Pass
) -> Iterator[Pass]:
    if recipe.benchmark.memory:
        yield replace(once, name=MEMORY, iterations=1, watched=True, request=MEMORY_REQUEST)
    if recipe.benchmark.profile:
        number = len(work.traced)
        yield replace(once, name=PROFILE, iterations=number, etdump=True, request=PROFILE_REQUEST)


_ITERATIONS = 10
# How much slower the machine may become while a pass runs.
_SLACK = 4
# `warmup: auto` ends after ten seconds or three inferences (templates/runner/warmup.h).
_AUTO_WARMUP_S, _AUTO_WARMUP_ITERATIONS = 10, 3


def emulated_defaults(loaded: LoadedRecipe) -> LoadedRecipe:
    """The recipe with one thread, few iterations and a longer limit where the user chose none."""
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
    """A short pass that measures how fast an emulated device is."""
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
