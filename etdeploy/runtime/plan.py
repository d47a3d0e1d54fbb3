"""Derives from a program, or before there is one from the recipe, what the runner is made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from etdeploy.core.errors import BuildError
from etdeploy.core.values import Explained
from etdeploy.program.model import Method, Program
from etdeploy.recipe.backends import BACKENDS
from etdeploy.recipe.model import Recipe
from etdeploy.runtime.components import (
    DELEGATES,
    ETDUMP,
    KERNELS_OPTIMIZED,
    KERNELS_QUANTIZED,
    RUNTIME,
    THREADED,
    THREADPOOL,
    operator_component,
)
from etdeploy.runtime.obstacles import platform_obstacles, vendor_obstacles, wheel_obstacles
from etdeploy.runtime.plan_model import RuntimePlan
from etdeploy.targets.platforms import Target, find_target

_NAMES_SHOWN = 4
# The order in which components are listed; the rest follows by name.
_ORDER = (RUNTIME, THREADPOOL, KERNELS_OPTIMIZED, KERNELS_QUANTIZED)


def derive_plan(
    recipe: Recipe,
    program: Program | None,
    target: Target,
    host: Target,
    version: str,
    wheel_components: frozenset[str],
) -> RuntimePlan:
    """Derives the plan; the same values give the same plan on every machine.

    Args:
        recipe: What was asked for.
        program: What export made; None gives a provisional plan from the recipe alone.
        target: What the runner is for.
        host: The machine that builds it.
        version: Of the ExecuTorch libraries.
        wheel_components: What the wheel for the build target carries.

    Returns:
        The plan. What keeps it from being built is in its `obstacles`; nothing is raised for that.
    """
    build_target = find_target(target.portable) if target.portable else target
    reasons = _program_reasons(program) if program else _recipe_reasons(recipe)
    if recipe.benchmark.profile:
        reasons[ETDUMP] = "benchmark.profile is on: the profile pass records an ETDump"
    if THREADPOOL in wheel_components:
        reasons[THREADPOOL] = _threadpool_reason(reasons)
    components = tuple(
        Explained(name=name, value=f"executorch::{name}", reason=reasons[name])
        for name in sorted(reasons, key=_position)
    )
    wheel = f"the ExecuTorch {version} wheel for {build_target.name}"
    lacks = tuple(
        wheel_obstacles(recipe, program, wheel, frozenset(reasons), wheel_components)
        if build_target.wheel_platform
        else ()
    )
    return RuntimePlan(
        target=target.name,
        build_target=build_target.name,
        portable_runner=target.portable is not None,
        provider=_provider(recipe, target, build_target, wheel, lacking=bool(lacks)),
        executorch_version=version,
        toolchain=_toolchain(build_target, host),
        components=components,
        options=_options(components),
        program_sha256=program.sha256 if program else None,
        provisional=program is None,
        obstacles=(
            *platform_obstacles(recipe, target, build_target, host),
            *lacks,
            *vendor_obstacles(recipe, program, wheel_components),
        ),
    )


def require_feasible(plan: RuntimePlan) -> None:
    """Passes a plan that can be built.

    Raises:
        BuildError: It has obstacles; all of them are named.
    """
    if plan.obstacles:
        raise BuildError(
            f"no runner for {plan.target}: " + "; ".join(o.why for o in plan.obstacles),
            remedy="\n".join(dict.fromkeys(o.remedy for o in plan.obstacles)),
        )


def _program_reasons(program: Program) -> dict[str, str]:
    """Why each component is needed, from the program's operators and delegates."""
    sentences: dict[str, list[str]] = {}
    for method in program.methods:
        for component, sentence in _method_needs(method):
            sentences.setdefault(component, []).append(sentence)
    own = sentences.pop(RUNTIME, [])
    reasons = {name: "; ".join(texts) for name, texts in sentences.items()}
    return {RUNTIME: "; ".join(["every runner loads programs with it", *own])} | reasons


def _method_needs(method: Method) -> Iterator[tuple[str, str]]:
    """Pairs of a component and what the method needs of it."""
    for backend_id in sorted({d.backend_id for d in method.delegates}):
        component = DELEGATES.get(backend_id)
        if component:
            count = sum(d.backend_id == backend_id for d in method.delegates)
            yield (
                component,
                (f"method {method.name} delegates {_count(count, 'partition')} to {backend_id}"),
            )
    by_component: dict[str, list[str]] = {}
    for operator in method.operators:
        component = operator_component(operator.name)
        if component:
            by_component.setdefault(component, []).append(operator.name)
    for component, names in sorted(by_component.items()):
        kind = "primitive operator" if component == RUNTIME else "operator"
        yield (
            component,
            (
                f"method {method.name} calls {_count(len(names), kind)} outside the delegates: "
                f"{_some(names)}"
            ),
        )


def _recipe_reasons(recipe: Recipe) -> dict[str, str]:
    """What a program of this recipe will probably need."""
    reasons = {RUNTIME: "every runner loads programs with it"}
    if recipe.model.program:
        reasons[RUNTIME] += f"; more is known when {recipe.model.program} has been inspected"
        return reasons
    export = recipe.export
    delegate_id = BACKENDS[export.backend].delegate_id
    component = DELEGATES.get(delegate_id) if delegate_id else None
    if component:
        reasons[component] = f"export.backend is {export.backend}; nothing is exported yet"
    reasons[KERNELS_OPTIMIZED] = (
        f"operators that {export.backend} does not take may remain; nothing is exported yet"
        if delegate_id
        else f"export.backend is {export.backend}; nothing is exported yet"
    )
    if export.quantization.startswith("int8"):
        reasons[KERNELS_QUANTIZED] = (
            f"export.quantization {export.quantization} may leave quantise and dequantise "
            "operators outside the delegates; nothing is exported yet"
        )
    return reasons


def _threadpool_reason(names: Iterable[str]) -> str:
    users = sorted(THREADED.intersection(names))
    if users:
        verb = "runs" if len(users) == 1 else "run"
        return f"{', '.join(users)} {verb} on its threads"
    return "the wheel's runtime library is linked together with it"


def _provider(
    recipe: Recipe, target: Target, build_target: Target, wheel: str, *, lacking: bool
) -> Explained:
    wanted = recipe.runtime.provider
    portable = (
        f"; there is none for {target.name}, so the portable runner goes to the device together "
        "with its C library"
        if target.portable
        else ""
    )
    if wanted != "auto":
        return Explained(
            name="provider", value=wanted, reason=f"runtime.provider is {wanted}{portable}"
        )
    if build_target.wheel_platform is None:
        return Explained(
            name="provider",
            value="source",
            reason=f"there is no ExecuTorch wheel with libraries for {target.name}",
        )
    if lacking:
        return Explained(
            name="provider", value="source", reason=f"{wheel} lacks what the program needs"
        )
    return Explained(
        name="provider", value="wheel", reason=f"{wheel} has all that the program needs{portable}"
    )


def _toolchain(build_target: Target, host: Target) -> Explained | None:
    if build_target.name == host.name or build_target.toolchain is None:
        return None
    return Explained(
        name="toolchain",
        value=build_target.toolchain,
        reason=f"{host.name} builds for {build_target.name} with {build_target.compiler}",
    )


def _options(components: tuple[Explained, ...]) -> tuple[Explained, ...]:
    return (
        Explained(
            name="CMAKE_BUILD_TYPE",
            value="Release",
            reason="an unoptimised runner would add its own time to what is measured",
        ),
        Explained(
            name="ETDEPLOY_COMPONENTS",
            value=";".join(c.name for c in components),
            reason="the runner links these components and no others",
        ),
    )


def _position(name: str) -> tuple[int, str]:
    return (_ORDER.index(name) if name in _ORDER else len(_ORDER), name)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _some(names: list[str]) -> str:
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
