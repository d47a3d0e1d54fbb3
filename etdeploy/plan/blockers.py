"""What prevents a plan from being built, each with its remedy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from etdeploy.backends.base import Backend
from etdeploy.backends.registry import backend_of
from etdeploy.backends.schemes import OTHER_BACKEND, OTHER_PROGRAM
from etdeploy.core.errors import Blocker
from etdeploy.core.values import ReasonedChoice
from etdeploy.plan.cmake_options import is_on
from etdeploy.plan.components import KERNELS_TORCHAO, provided
from etdeploy.plan.requirements import Requirements
from etdeploy.recipe.model import Recipe
from etdeploy.targets.platforms import Target, find_target

_BUILD_IT = "Build ExecuTorch for it: --set runtime.provider=source"


def wheel_target_blockers(target: Target, host: Target) -> Iterator[Blocker]:
    """Targets without a wheel, or whose runner cannot be linked on this machine."""
    if target.wheel_platform is None:
        yield Blocker(
            what=f"target {target.name}",
            why=f"no ExecuTorch wheel carries libraries for {target.name}",
            remedy=_BUILD_IT,
        )
    elif target.name != host.name and target.toolchain is None:
        yield Blocker(
            what=f"target {target.name}",
            why=f"a runner for {target.name} cannot be built on {host.name}",
            remedy=f"Run etdeploy on {target.name} itself.",
        )


def wheel_blockers(
    requirements: Requirements, target: Target, wheel: str, shipped: frozenset[str]
) -> Iterator[Blocker]:
    """What the program needs and `wheel` (its name in messages) does not have."""
    for name in sorted(provided(requirements.reasons) - shipped if shipped else ()):
        yield Blocker(
            what=f"component {name}",
            why=f"{wheel} has no component {name}: {requirements.reasons[name]}",
            remedy=_remedy_for(name, requirements),
        )
    yield from _unknown_backends(requirements)
    for backend in filter(None, map(backend_of, requirements.delegate_ids)):
        # A wheel may have a component that needs more than its target gives.
        if backend.component in shipped and not backend.runs_on(target):
            yield _elsewhere(backend, requirements, target)


def source_blockers(requirements: Requirements, target: Target) -> Iterator[Blocker]:
    """What the program needs and no build for the target can provide."""
    yield from _unknown_backends(requirements)
    for delegate_id in requirements.delegate_ids:
        backend = backend_of(delegate_id)
        if backend is None:
            continue
        if not backend.runs_on(target):
            yield _elsewhere(backend, requirements, target)
        elif backend.loads and target.static:
            yield Blocker(
                what=f"backend {delegate_id}",
                why=f"{delegate_id} loads the device maker's libraries, and a static runner, "
                f"such as that for {target.name}, cannot load any",
                remedy=f"Choose another target: {'   or '.join(_loading_targets(backend))}",
            )
    if KERNELS_TORCHAO in requirements.reasons and target.arch != "aarch64":
        yield Blocker(
            what=f"component {KERNELS_TORCHAO}",
            why=f"torchao's kernels are for 64-bit Arm only, and the target is {target.name}",
            remedy=_other_backend(requirements),
        )


def _loading_targets(backend: Backend) -> Iterator[str]:
    """Targets with an Arm processor that have the libraries that a backend loads."""
    for target in map(find_target, ("android-arm64", "linux-aarch64")):
        if backend.runs_on(target) and not any(backend.target_blockers(target, target)):
            yield f"--target {target.name}"


def custom_blockers(recipe: Recipe, requirements: Requirements) -> Iterator[Blocker]:
    """Operators that no ExecuTorch library provides."""
    for namespace, names in requirements.unknown.items():
        given = recipe.runtime.custom_ops
        yield Blocker(
            what=f"operators of {namespace}::",
            why=f"the program calls {', '.join(names)}; no ExecuTorch library has operators of "
            f"{namespace}::" + (f", and {given} does not list them" if given else ""),
            remedy="List them in the yaml file of that folder."
            if given
            else "Name the folder with their C++ kernels: --set runtime.custom_ops=path/to/kernels",
            of_program=True,
        )


def override_blockers(
    options: Iterable[ReasonedChoice], switches: dict[str, tuple[str, str]]
) -> Iterator[Blocker]:
    """Switches that the program needs and the recipe turns off."""
    for option in options:
        if option.name in switches and option.by_hand and not is_on(option):
            component, reason = switches[option.name]
            yield Blocker(
                what=f"{option.name}=OFF",
                why=f"the recipe turns {option.name} off, and the runner needs {component}: "
                f"{reason}",
                remedy=f"Remove {option.name} from runtime.cmake.",
            )


def vendor_blockers(
    requirements: Requirements, target: Target, build_target: Target
) -> Iterator[Blocker]:
    """What a backend itself has against the target, such as libraries that no bundle carries."""
    for backend in filter(None, map(backend_of, requirements.delegate_ids)):
        yield from backend.target_blockers(target, build_target, _other_backend(requirements))


def _unknown_backends(requirements: Requirements) -> Iterator[Blocker]:
    for delegate_id in requirements.delegate_ids:
        if backend_of(delegate_id) is None:
            yield Blocker(
                what=f"backend {delegate_id}",
                why=f"the program delegates to {delegate_id}, and etdeploy knows no component of "
                "ExecuTorch that provides it",
                remedy=_other_backend(requirements),
                of_program=True,
            )


def _other_backend(requirements: Requirements) -> str:
    return OTHER_PROGRAM if requirements.finished else OTHER_BACKEND


def _remedy_for(component: str, requirements: Requirements) -> str:
    """What to do when a platform's wheel has no such component; others may carry it."""
    backends = [b for b in map(backend_of, requirements.delegate_ids) if b]
    elsewhere = next((b for b in backends if b.component == component and b.wheels and b.get), None)
    way = elsewhere.get if elsewhere else _BUILD_IT
    return f"{way}\n{_other_backend(requirements)}"


def _elsewhere(backend: Backend, requirements: Requirements, target: Target) -> Blocker:
    return Blocker(
        what=f"backend {backend.delegate_id}",
        why=f"{backend.delegate_id} runs on {backend.where} only, and the target is {target.name}",
        remedy=f"{_get(backend)}{_other_backend(requirements)}",
    )


def _get(backend: Backend) -> str:
    return f"{backend.get}\n" if backend.get else ""
