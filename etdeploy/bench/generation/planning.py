"""Which passes a recipe requests of a program that generates text, and in which order they run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from etdeploy.bench.generation.request import (
    MEMORY_REQUEST,
    PROFILE_REQUEST,
    TEXT_REQUEST,
    TIMING_REQUEST,
)
from etdeploy.bench.generation.work import Work
from etdeploy.bench.passes import MEMORY, PROFILE, TEXT, TIMING, Pass
from etdeploy.bench.timing.planning import Plan
from etdeploy.bench.timing.threads import Threads
from etdeploy.recipe.model import Recipe


def plan_generation(
    recipe: Recipe, work: Work, threads: Threads, *, simulated: bool = False
) -> Plan:
    """The passes: the whole grid in each start, then the texts that are known of the model, the
    first point once for the memory, and traces.

    Args:
        recipe: What is requested.
        work: What is generated.
        threads: As `choose_threads` gave them; a single number.
        simulated: Whether a simulator runs the program: then there is one start.
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
    return Plan(starts, (*texts, *_rest(recipe, work, replace(timing, warmup=0))))


def _rest(recipe: Recipe, work: Work, once: Pass) -> Iterator[Pass]:
    if recipe.benchmark.memory:
        yield replace(once, name=MEMORY, iterations=1, watched=True, request=MEMORY_REQUEST)
    if recipe.benchmark.profile:
        number = len(work.traced)
        yield replace(once, name=PROFILE, iterations=number, etdump=True, request=PROFILE_REQUEST)
