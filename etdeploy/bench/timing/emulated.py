"""What a run on an emulated device takes by default, and how long its passes may take; all pure.

Emulation takes 10 to 100 times as long, depending on the model and on other work of this machine.
In ExecuTorch's thread pool, threads that wait for each other spin, so that with more threads than
free processors those that work get a fraction of the time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from etdeploy.bench.passes import PROBE, Pass, PassResult
from etdeploy.recipe.load import LoadedRecipe

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
    """The time limit of a pass, in seconds.

    Args:
        step: The pass.
        probe: The result of the short pass at the same size.
        least_s: `benchmark.timeout_s`.
    """
    one_s = max(probe.results.samples_ms) / 1000
    if step.warmup == "auto":
        warmup_s = _AUTO_WARMUP_S + _AUTO_WARMUP_ITERATIONS * one_s
    else:
        warmup_s = step.warmup * one_s
    return max(least_s, _SLACK * (probe.seconds + warmup_s + step.iterations * one_s))
