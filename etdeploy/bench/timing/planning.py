"""Which passes a recipe requests, and in which order they run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from etdeploy.bench.passes import MEMORY, PROFILE, SUSTAINED, TIMING, Pass
from etdeploy.bench.timing.threads import Threads
from etdeploy.program.folder import FORWARD
from etdeploy.recipe.model import Recipe

# Memory is planned before the first inference; a second one shows what stays allocated.
_MEMORY_ITERATIONS = 2
# A simulator takes seconds for a second of a phone's time, and its times mean nothing.
_SIMULATED_ITERATIONS = 1
# A trace grows with every iteration, and the shares of operators settle quickly.
_PROFILE_ITERATIONS = 10
_PROFILE_WARMUP = 5
_CHOSEN_BY_EXECUTORCH = Threads((0,))


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
    threads: Threads = _CHOSEN_BY_EXECUTORCH,
    *,
    simulated: bool = False,
) -> Plan:
    """The passes that a recipe requests.

    Every pass has its own process, so that its first inference really is a first one. The profile
    is of the first size, and threads are swept there.

    Args:
        recipe: What is requested.
        method: Of the program, that every pass runs.
        threads: As `choose_threads` gave them.
        simulated: Whether a simulator runs the program. Then the outputs are all that counts, and
            each size has one short pass, whatever is requested.
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
