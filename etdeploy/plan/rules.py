"""Derives the cmake options for building ExecuTorch from source: one rule for each concern.

Every option carries its reason. The rules know neither files nor the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from etdeploy.backends.registry import backend_of
from etdeploy.backends.values import Build
from etdeploy.core.values import ReasonedChoice
from etdeploy.plan.components import (
    ETDUMP,
    KERNELS_ETDEPLOY,
    KERNELS_LLM,
    KERNELS_OPTIMIZED,
    KERNELS_PORTABLE,
    KERNELS_QUANTIZED,
    KERNELS_SELECTED,
    KERNELS_TORCHAO,
    OPTIMIZED_OPERATORS,
    RUNTIME_OPERATORS,
    SELECTABLE_DTYPES,
    SWITCHES,
    THREADPOOL,
    operator_component,
    threaded,
)
from etdeploy.plan.requirements import Requirements, plan_definitions, some
from etdeploy.recipe.model import Recipe
from etdeploy.targets.platforms import Target

# Stands for the program in `EXECUTORCH_SELECT_OPS_MODEL`; the build puts its path there.
SELECTED_PROGRAM = "program.pte"
# Room in the registry of operators, the number that ExecuTorch has without selection
# (runtime/kernel/operator_registry.cpp: 250 operators with 8 kernels each).
_REGISTRY_SIZE = 2000
_MODULE_PARTS = ("DATA_LOADER", "FLAT_TENSOR", "NAMED_DATA_MAP", "TENSOR")
_LOG_LEVELS = {"fatal": "Fatal", "error": "Error", "info": "Info", "debug": "Debug"}
_THREAD_POLICIES = {
    "performance_cores": "EXECUTORCH_THREADPOOL_USE_PERFORMANCE_CORES",
    "all_cores": "EXECUTORCH_THREADPOOL_USE_ALL_LOGICAL_CORES",
}


@dataclass(frozen=True)
class SourceBuild:
    """The input of the rules.

    Attributes:
        recipe: What the user requested.
        requirements: What the program needs.
        target: What is compiled for.
        custom_ops: Whether the runner has the recipe's own kernels.
        kernels: Which library has the operators of aten, with the reason; None if none is needed.
    """

    recipe: Recipe
    requirements: Requirements
    target: Target
    custom_ops: bool
    kernels: ReasonedChoice | None

    @property
    def component_reasons(self) -> dict[str, str]:
        """Why each component is linked; aten's kernels go by the name of their library."""
        reasons = dict(self.requirements.reasons)
        aten = reasons.pop(KERNELS_OPTIMIZED, None)
        if aten and self.kernels:
            reasons[self.kernels.name] = aten
        users = threaded(self.requirements.reasons)
        if self.kernels and self.kernels.value == "portable" and KERNELS_OPTIMIZED in users:
            users.remove(KERNELS_OPTIMIZED)
        if users:
            verb = "runs" if len(users) == 1 else "run"
            reasons[THREADPOOL] = f"{', '.join(users)} {verb} on its threads"
        return reasons


def source_build(
    recipe: Recipe, requirements: Requirements, target: Target, *, custom_ops: bool
) -> SourceBuild:
    """The input of the rules for a build from source."""
    return SourceBuild(
        recipe, requirements, target, custom_ops, _aten_kernels(recipe, requirements)
    )


def source_options(build: SourceBuild) -> tuple[ReasonedChoice, ...]:
    """The options that the rules give, in the order of the rules; no option occurs twice."""
    return tuple(option for rule in _RULES for option in rule(build))


def _aten_kernels(recipe: Recipe, requirements: Requirements) -> ReasonedChoice | None:
    """The library with the operators of aten: `name` is the component, `value` its kernels.

    Exactly one is linked: two would register the same operators, which ends the process before
    main().
    """
    if KERNELS_OPTIMIZED not in requirements.reasons:
        return None
    kernels, reason = _portable_or_optimized(recipe, requirements)
    known = requirements.operators is not None and requirements.selectable
    if recipe.runtime.selective and known:
        return ReasonedChoice(name=KERNELS_SELECTED, value=kernels, reason=reason)
    component = KERNELS_OPTIMIZED if kernels == "optimized" else KERNELS_PORTABLE
    return ReasonedChoice(name=component, value=kernels, reason=reason)


def _portable_or_optimized(recipe: Recipe, requirements: Requirements) -> tuple[str, str]:
    if KERNELS_LLM in requirements.reasons:
        return "optimized", "the kernels for language models need the optimized ones"
    if recipe.runtime.optimize == "size":
        return "portable", "runtime.optimize is size, and the portable kernels are smaller"
    if requirements.operators is None:
        return "optimized", "the program may call operators that have optimized kernels"
    faster = sorted(OPTIMIZED_OPERATORS.intersection(requirements.operators))
    if faster:
        return "optimized", f"there are optimized kernels for {some(faster)}"
    return "portable", "no operator that the program calls has an optimized kernel"


def _build_type(_: SourceBuild) -> Iterator[ReasonedChoice]:
    yield _option(
        "CMAKE_BUILD_TYPE",
        "Release",
        "an unoptimized runtime is 5 to 10 times slower, and not what should be measured",
    )


def _runner(_: SourceBuild) -> Iterator[ReasonedChoice]:
    yield _on("EXECUTORCH_BUILD_EXTENSION_MODULE", "the runner loads programs with Module")
    for part in _MODULE_PARTS:
        yield _on(f"EXECUTORCH_BUILD_EXTENSION_{part}", "the runner, or its Module, uses it")
    for part in ("EXECUTOR_RUNNER", "EXTENSION_EVALUE_UTIL", "EXTENSION_RUNNER_UTIL"):
        yield _off(
            f"EXECUTORCH_BUILD_{part}", "ExecuTorch's own runner is not used (its default is on)"
        )
    yield _on(
        "EXECUTORCH_ENABLE_PROGRAM_VERIFICATION",
        "the runner verifies a program before it runs it, so that a damaged file is reported",
    )


def _kernels(build: SourceBuild) -> Iterator[ReasonedChoice]:
    kernels = build.kernels
    if kernels is None:
        yield _off(
            "EXECUTORCH_BUILD_PORTABLE_OPS",
            "no operator of aten is left outside the delegates (its default is on)",
        )
    else:
        yield _on("EXECUTORCH_BUILD_PORTABLE_OPS", build.requirements.reasons[KERNELS_OPTIMIZED])
        if kernels.value == "optimized":
            yield _on("EXECUTORCH_BUILD_KERNELS_OPTIMIZED", kernels.reason)
    for component in (KERNELS_QUANTIZED, KERNELS_LLM, KERNELS_TORCHAO):
        if component in build.requirements.reasons:
            yield _on(SWITCHES[component], build.requirements.reasons[component])


def _selection(build: SourceBuild) -> Iterator[ReasonedChoice]:
    if build.kernels is None or build.kernels.name != KERNELS_SELECTED:
        return
    operators = selected_operators(build.requirements)
    yield _option(
        "EXECUTORCH_SELECT_OPS_MODEL",
        SELECTED_PROGRAM,
        f"runtime.selective is on: only the kernels of {some(sorted(operators))} are linked",
    )
    dtypes = sorted(set().union(*operators.values())) if operators else []
    if build.kernels.value == "portable" and dtypes and SELECTABLE_DTYPES.issuperset(dtypes):
        yield _on(
            "EXECUTORCH_ENABLE_DTYPE_SELECTIVE_BUILD",
            f"the program calls its operators with {', '.join(dtypes)} only, and portable kernels "
            "can be built for these alone",
        )
    others = (KERNELS_QUANTIZED, KERNELS_LLM, KERNELS_TORCHAO, KERNELS_ETDEPLOY)
    by_hand = build.recipe.runtime.cmake
    beside = [
        c for c in others if c in build.requirements.reasons or by_hand.get(SWITCHES.get(c, ""))
    ]
    if beside or build.custom_ops:
        yield _option(
            "MAX_KERNEL_NUM",
            str(_REGISTRY_SIZE),
            "the registry would be sized for the selected operators, and other libraries register "
            "theirs too",
        )


def selected_operators(requirements: Requirements) -> dict[str, frozenset[str]]:
    """The operators of aten outside the delegates, with the data types of their tensors."""
    return {
        name: dtypes
        for name, dtypes in (requirements.operators or {}).items()
        if operator_component(name) == KERNELS_OPTIMIZED and name not in RUNTIME_OPERATORS
    }


def _delegates(build: SourceBuild) -> Iterator[ReasonedChoice]:
    for delegate_id in build.requirements.delegate_ids:
        backend = backend_of(delegate_id)
        if backend and backend.switch and backend.component:
            yield _on(backend.switch, build.requirements.reasons[backend.component])
    for backend in filter(None, map(backend_of, build.requirements.delegate_ids)):
        yield from backend.cmake_options(_as_asked(build))


def _as_asked(build: SourceBuild) -> Build:
    recipe = build.recipe
    scheme = None if recipe.model.program else recipe.export.quantization
    return Build(build.target, scheme, recipe.runtime)


def _threads(build: SourceBuild) -> Iterator[ReasonedChoice]:
    reason = build.component_reasons.get(THREADPOOL)
    policy = build.recipe.runtime.thread_pool
    chosen = _THREAD_POLICIES.get(policy)
    for name in ("EXECUTORCH_BUILD_PTHREADPOOL", "EXECUTORCH_BUILD_CPUINFO"):
        if reason:
            yield _on(name, reason)
        elif not chosen:
            yield _off(name, "nothing that is linked runs on a thread pool (its default is on)")
    if chosen:
        yield _on(chosen, f"runtime.thread_pool is {policy}")


def _tracing(build: SourceBuild) -> Iterator[ReasonedChoice]:
    if ETDUMP in build.requirements.reasons:
        yield _on("EXECUTORCH_BUILD_DEVTOOLS", build.requirements.reasons[ETDUMP])
        yield _on("EXECUTORCH_ENABLE_EVENT_TRACER", build.requirements.reasons[ETDUMP])


def _logging(build: SourceBuild) -> Iterator[ReasonedChoice]:
    level = build.recipe.runtime.log_level
    if level == "none":
        yield _off("EXECUTORCH_ENABLE_LOGGING", "runtime.log_level is none")
        return
    yield _on(
        "EXECUTORCH_ENABLE_LOGGING",
        f"runtime.log_level is {level}: ExecuTorch's messages say why a program fails",
    )
    yield _option("EXECUTORCH_LOG_LEVEL", _LOG_LEVELS[level], f"runtime.log_level is {level}")


def _size(build: SourceBuild) -> Iterator[ReasonedChoice]:
    if build.recipe.runtime.optimize == "size":
        yield _on("EXECUTORCH_OPTIMIZE_SIZE", "runtime.optimize is size")


def _platform(build: SourceBuild) -> Iterator[ReasonedChoice]:
    reason = (
        "messages go to stderr, which etdeploy reads; Android's default sends them to logcat"
        if build.target.system == "android"
        else "the target is a POSIX system"
    )
    yield _option("EXECUTORCH_PAL_DEFAULT", "posix", reason)
    yield from plan_definitions(build.target, build.recipe.runtime.android_api)


_RULES: tuple[Callable[[SourceBuild], Iterator[ReasonedChoice]], ...] = (
    _build_type,
    _runner,
    _kernels,
    _selection,
    _delegates,
    _threads,
    _tracing,
    _logging,
    _size,
    _platform,
)


def _option(name: str, value: str, reason: str) -> ReasonedChoice:
    return ReasonedChoice(name=name, value=value, reason=reason)


def _switch(name: str, on: bool, reason: str) -> ReasonedChoice:
    return _option(name, "ON" if on else "OFF", reason)


def _on(name: str, reason: str) -> ReasonedChoice:
    return _switch(name, True, reason)


def _off(name: str, reason: str) -> ReasonedChoice:
    return _switch(name, False, reason)
