"""Derives the runtime plan from a program or, before the export, from the recipe."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from etdeploy.backends.base import Backend
from etdeploy.backends.registry import backend_of
from etdeploy.backends.rewrites import LINEARS, REWRITES
from etdeploy.backends.values import PlannedRun
from etdeploy.core.errors import Blocker, BuildError, CheckError, joined
from etdeploy.core.hashing import digest_json
from etdeploy.core.values import ReasonedChoice
from etdeploy.plan.blockers import (
    custom_blockers,
    override_blockers,
    source_blockers,
    vendor_blockers,
    wheel_blockers,
    wheel_target_blockers,
)
from etdeploy.plan.cmake_options import (
    BY_HAND,
    OptionTable,
    apply_relations,
    is_on,
    known_options,
    spelled_for,
    with_overrides,
)
from etdeploy.plan.components import (
    KERNELS_OPTIMIZED,
    KERNELS_QUANTIZED,
    KERNELS_SELECTED,
    RUNTIME,
    THREADPOOL,
    built_by,
    provided,
    shipped_components,
    switches,
    threaded,
)
from etdeploy.plan.model import CUSTOM_OPS, Provider, RuntimePlan
from etdeploy.plan.requirements import (
    Requirements,
    derive_requirements,
    host_blocker,
    plan_toolchain,
    some,
    with_stand_ins,
)
from etdeploy.plan.rules import (
    SELECTED_PROGRAM,
    SourceBuild,
    selected_operators,
    source_build,
    source_options,
)
from etdeploy.program.generation import LINEAR_KERNELS
from etdeploy.program.model import Program
from etdeploy.recipe.model import Recipe
from etdeploy.recipe.rules.remedies import with_settings
from etdeploy.recipe.rules.sections import keys_needing_build
from etdeploy.targets.ndk import soc_name
from etdeploy.targets.platforms import Target, find_target

# Components are listed in this order; the rest follow by name.
_ORDER = (RUNTIME, THREADPOOL, KERNELS_SELECTED, KERNELS_OPTIMIZED, KERNELS_QUANTIZED)


@dataclass(frozen=True)
class Available:
    """What can be linked, as far as is known before anything is fetched or built.

    Attributes:
        version: Of the ExecuTorch libraries that are linked.
        wheel_components: What the wheel for the build target carries; as ExecuTorch publishes it
            when None.
        options: Of the checkout; those of `version` when None.
        wheel_version: Of the wheel, where it differs, as with a checkout.
    """

    version: str
    wheel_components: frozenset[str] | None = None
    options: OptionTable | None = None
    wheel_version: str | None = None


@dataclass(frozen=True)
class CustomKernels:
    """The recipe's own kernels: what they register, and a digest of their files.

    `operators` is None if only the built runner can list them.
    """

    operators: frozenset[str] | None
    digest: str


def derive_plan(
    recipe: Recipe,
    program: Program | None,
    target: Target,
    host: Target,
    available: Available,
    custom: CustomKernels | None = None,
    draft: Program | None = None,
) -> RuntimePlan:
    """Derives the plan; the same values give the same plan on every machine.

    The runner also loads `draft`, which proposes tokens to the program.

    Raises:
        BuildError: The checkout does not know a derived option: a bug in etdeploy.
    """
    requirements = derive_requirements(recipe, program, draft)
    if custom:
        requirements = _without(requirements, custom)
    wheel_target = find_target(target.portable) if target.portable else target
    release = available.wheel_version or available.version
    wheel = f"the ExecuTorch {release} wheel for {wheel_target.name}"
    shipped = available.wheel_components
    if shipped is None:
        shipped = shipped_components(wheel_target.name, requirements.delegate_ids)
    packaged = with_stand_ins(requirements, shipped)
    wheel_blocked = tuple(wheel_blockers(packaged, target, wheel, shipped))
    provider = _provider(recipe, target, wheel_target, wheel, blocked=wheel_blocked)
    parts = (
        _wheel_plan(packaged, wheel_target, host, shipped)
        if provider.value == Provider.WHEEL
        else _source_plan(
            recipe,
            requirements,
            # What Linux's own compiler builds runs there with the C library that it is linked with.
            wheel_target if target.system == "linux" else target,
            host,
            available,
            custom,
        )
    )
    blockers = (
        *(
            wheel_blocked
            if provider.value == Provider.WHEEL and wheel_target.wheel_platform
            else ()
        ),
        *custom_blockers(recipe, requirements),
        *parts.blockers,
        *vendor_blockers(requirements, target, parts.build_target),
    )
    own = (_own_kernels(recipe, custom),) if custom else ()
    built = parts.options if provider.value == Provider.SOURCE else None
    return RuntimePlan(
        target=target.name,
        build_target=parts.build_target.name,
        portable_runner=parts.build_target.name != target.name,
        provider=provider,
        executorch_version=available.version,
        toolchain=parts.toolchain,
        components=(*parts.components, *own),
        options=parts.options,
        selection=parts.selection,
        custom_ops=custom.digest if custom else None,
        program_sha256=program.sha256 if program else None,
        provisional=program is None,
        blockers=tuple(replace(b, remedy=with_settings(b.remedy, recipe)) for b in blockers),
        notes=(
            *run_notes(recipe, requirements, program, target),
            *(build_notes(requirements, built) if built is not None else ()),
        ),
    )


def require_feasible(plan: RuntimePlan, noun: str = "a runner") -> None:
    """Raises unless a plan can be built.

    Raises:
        BuildError: It has blockers; all of them are named.
        CheckError: It has blockers, and only the program is at fault.
    """
    blocker = joined(plan.blockers)
    if blocker:
        raise (CheckError if blocker.of_program else BuildError)(
            f"{noun} for {plan.target} cannot be built: {blocker.why}",
            remedy=blocker.remedy,
        )


@dataclass(frozen=True)
class _Parts:
    """What depends on the provider."""

    build_target: Target
    toolchain: ReasonedChoice | None
    components: tuple[ReasonedChoice, ...]
    options: tuple[ReasonedChoice, ...]
    blockers: tuple[Blocker, ...]
    selection: str | None = None


def _wheel_plan(
    requirements: Requirements, target: Target, host: Target, shipped: frozenset[str]
) -> _Parts:
    reasons = dict(requirements.reasons)
    if THREADPOOL in shipped:
        reasons[THREADPOOL] = _threadpool_reason(reasons)
    components = tuple(
        ReasonedChoice(
            name=name,
            value=f"executorch::{name}" if provided([name]) else None,
            reason=reasons[name],
        )
        for name in sorted(reasons, key=_position)
    )
    build_type = ReasonedChoice(
        name="CMAKE_BUILD_TYPE",
        value="Release",
        reason="an unoptimized runner would add its own time to the measurement",
    )
    return _Parts(
        build_target=target,
        toolchain=_toolchain(target, host),
        components=components,
        options=(build_type, _linked(components)),
        blockers=tuple(wheel_target_blockers(target, host)),
    )


def _source_plan(
    recipe: Recipe,
    requirements: Requirements,
    target: Target,
    host: Target,
    available: Available,
    custom: CustomKernels | None,
) -> _Parts:
    build = source_build(recipe, requirements, target, custom_ops=custom is not None)
    table = available.options or known_options(available.version)
    derived = with_overrides(spelled_for(source_options(build), table), recipe.runtime.cmake, table)
    options, refused = apply_relations(derived, table)
    components = _source_components(build, options)
    switches = {
        table.name_for(switch) or switch: (component, reason)
        for component, reason in build.component_reasons.items()
        for switch in built_by(component)
    }
    return _Parts(
        build_target=target,
        toolchain=plan_toolchain(target, host),
        components=components,
        options=(*spelled_for(options, table), _linked(components)),
        blockers=(
            *_host_blockers(target, host),
            *source_blockers(requirements, target),
            *refused,
            *override_blockers(options, switches),
        ),
        selection=_selection(build, options),
    )


def _host_blockers(target: Target, host: Target) -> tuple[Blocker, ...]:
    blocker = host_blocker(target, host)
    return (blocker,) if blocker else ()


def _own_kernels(recipe: Recipe, custom: CustomKernels) -> ReasonedChoice:
    operators = sorted(custom.operators or ())
    return ReasonedChoice(
        name=CUSTOM_OPS,
        reason=f"runtime.custom_ops is {recipe.runtime.custom_ops}, which "
        + (f"has {some(operators)}" if operators else "registers what only the runner can list"),
    )


def _source_components(
    build: SourceBuild, options: tuple[ReasonedChoice, ...]
) -> tuple[ReasonedChoice, ...]:
    by_hand = {o.name for o in options if o.by_hand and is_on(o)}
    reasons = {c: BY_HAND for c, switch in switches().items() if switch in by_hand}
    reasons |= build.component_reasons
    kernels = build.kernels
    return tuple(
        ReasonedChoice(
            name=name,
            value=kernels.value if kernels and kernels.name == name else None,
            reason=reasons[name],
        )
        for name in sorted(reasons, key=_position)
    )


def _selection(build: SourceBuild, options: tuple[ReasonedChoice, ...]) -> str | None:
    """A digest of what decides the selected kernels, equal for programs that need the same.

    None if nothing is selected, or if the recipe selects from something other than the program.
    """
    if not any(o.value == SELECTED_PROGRAM and not o.by_hand for o in options):
        return None
    operators = selected_operators(build.requirements)
    return digest_json({name: sorted(dtypes) for name, dtypes in sorted(operators.items())})


def _without(requirements: Requirements, custom: CustomKernels) -> Requirements:
    """The requirements that the recipe's own kernels do not meet."""
    left = {
        namespace: tuple(n for n in names if custom.operators and n not in custom.operators)
        for namespace, names in requirements.unknown.items()
    }
    return replace(
        requirements, unknown={namespace: names for namespace, names in left.items() if names}
    )


def _threadpool_reason(names: Iterable[str]) -> str:
    users = threaded(names)
    if users:
        verb = "runs" if len(users) == 1 else "run"
        return f"{', '.join(users)} {verb} on its threads"
    return "the wheel's runtime library is linked with it"


def _provider(
    recipe: Recipe,
    target: Target,
    wheel_target: Target,
    wheel: str,
    *,
    blocked: tuple[Blocker, ...],
) -> ReasonedChoice:
    wanted = recipe.runtime.provider
    portable = _deployed_with(target)
    if wanted != "auto":
        suffix = portable if wanted == "wheel" else ""
        return _provided(wanted, f"runtime.provider is {wanted}{suffix}")
    if wheel_target.wheel_platform is None:
        reason = f"there is no ExecuTorch wheel with libraries for {target.name}"
        return _provided(Provider.SOURCE, reason)
    asked = keys_needing_build(recipe.runtime.model_dump())
    if asked:
        keys = ", ".join(f"runtime.{key}" for key in asked)
        return _provided(
            Provider.SOURCE, f"the wheel is prebuilt, and a build is required for {keys}"
        )
    if blocked:
        missing = ", ".join(blocker.what for blocker in blocked)
        return _provided(Provider.SOURCE, f"{wheel} does not have {missing}")
    return _provided(Provider.WHEEL, f"{wheel} has everything that the program needs{portable}")


def _deployed_with(target: Target) -> str:
    if target.portable is None:
        return ""
    if target.system == "linux":
        return (
            "; the portable runner is deployed together with its C library, since the device's is "
            "older or another one"
        )
    return (
        f"; there is none for {target.name}, so the portable runner is deployed together with its "
        "C library"
    )


def _provided(value: str, reason: str) -> ReasonedChoice:
    return ReasonedChoice(name="provider", value=value, reason=reason)


def _toolchain(build_target: Target, host: Target) -> ReasonedChoice | None:
    if build_target.name == host.name or build_target.toolchain is None:
        return None
    return ReasonedChoice(
        name="toolchain",
        value=build_target.toolchain,
        reason=f"{host.name} builds for {build_target.name} with {build_target.compiler}",
    )


def _linked(components: tuple[ReasonedChoice, ...]) -> ReasonedChoice:
    return ReasonedChoice(
        name="ETDEPLOY_COMPONENTS",
        value=";".join(c.name for c in components),
        reason="the runner links these components only",
    )


def _position(name: str) -> tuple[int, str]:
    return (_ORDER.index(name) if name in _ORDER else len(_ORDER), name)


def run_notes(
    recipe: Recipe, requirements: Requirements, program: Program | None, target: Target
) -> Iterator[str]:
    """What to know about a run with the program's backends and kernels."""
    arches = REWRITES[LINEARS].arches or ()
    if program and target.arch not in arches and LINEAR_KERNELS & {*program.operators}:
        yield (
            f"The program's linear layers are computed by a kernel for {', '.join(arches)}, which "
            f"is slow on {target.arch}. Export the model for {target.name}."
        )
    for backend in _backends(requirements):
        yield from backend.plan_notes(
            PlannedRun(
                target,
                _threads(recipe),
                None if requirements.finished else recipe.export.quantization,
                _soc(recipe, program, backend),
            )
        )


def _threads(recipe: Recipe) -> str:
    wanted = recipe.runtime.threads
    return ", ".join(map(str, wanted)) if isinstance(wanted, tuple) else str(wanted or "")


def build_notes(requirements: Requirements, options: Iterable[ReasonedChoice]) -> Iterator[str]:
    """What to know about a build from source with these options before it starts."""
    values = {option.name: option.value for option in options}
    for backend in _backends(requirements):
        yield from backend.build_notes(values)
    for backend in _backends(requirements):
        if not backend.tried:
            yield (
                f"{backend.delegate_id} is untested: its options follow ExecuTorch's files, and it "
                "was never built."
            )


def _backends(requirements: Requirements) -> list[Backend]:
    return [b for b in map(backend_of, requirements.delegate_ids) if b]


def _soc(recipe: Recipe, program: Program | None, backend: Backend) -> str | None:
    """The SoC that the program was compiled for, or that the recipe names."""
    if program:
        compiled = program.compiled_by(str(backend.delegate_id))
        return compiled[0].soc if compiled else None
    named = recipe.export.soc
    return None if named == "auto" or not backend.socs else soc_name(named, None, backend.socs)
