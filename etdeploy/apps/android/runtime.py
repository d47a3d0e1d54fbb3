"""Which ExecuTorch an Android app has: the published library, or one built for the program.

Sources: scripts/build_android_library.sh, tools/cmake/preset/android.cmake,
extension/android/CMakeLists.txt and .github/workflows/android-release-*.yml of ExecuTorch 1.2 to
1.4, which build and publish the libraries.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from etdeploy.apps.platform import AppRuntime
from etdeploy.backends.base import Backend
from etdeploy.backends.registry import backend_of
from etdeploy.backends.schemes import OTHER_BACKEND, OTHER_PROGRAM
from etdeploy.core.errors import Blocker, BuildError, joined, refuse
from etdeploy.core.values import ReasonedChoice
from etdeploy.plan.components import (
    KERNELS_ETDEPLOY,
    KERNELS_LLM,
    KERNELS_OPTIMIZED,
    KERNELS_QUANTIZED,
    RUNTIME,
    THREADPOOL,
    operator_component,
)
from etdeploy.plan.requirements import some
from etdeploy.program.generation import LINEAR_KERNELS
from etdeploy.program.model import Program
from etdeploy.recipe.model import Recipe
from etdeploy.recipe.rules.sections import keys_needing_build
from etdeploy.targets.platforms import ANDROID_ABIS, find_target

GROUP = "org.pytorch"
LIBRARY = "executorch-android"
# What each of the published libraries has, besides its backends: the kernels of all operators that
# ExecuTorch's own libraries register, whole. No torchao kernels, and no event tracer.
_COMPONENTS = frozenset({RUNTIME, THREADPOOL, KERNELS_OPTIMIZED, KERNELS_QUANTIZED, KERNELS_LLM})
# Keys of `runtime` that ask for what they are built with: shared packed weights.
_BUILT_IN = frozenset({"weight_cache"})
# ABIs that they are built for.
_ABIS = ("arm64-v8a", "x86_64")
# What ANDROID_PLATFORM is in their build, although their manifests say 23.
RELEASE_API = 26
# The first release whose variants are all published.
_FIRST = (1, 2)
_RELEASE = re.compile(r"(\d+)\.(\d+)\.\d+")
_BUILD_IT = "Build ExecuTorch for the app: --set app.runtime=source"
_STOCK = (
    "Use ExecuTorch's own operators: --set export.generation.layout=executorch   or --set "
    "export.generation.attention=stock"
)
_NO_LINEARS = "Leave the linear layers in the delegate: --set export.rewrites="


def choose_runtime(
    recipe: Recipe, program: Program, version: str, abis: Sequence[str]
) -> AppRuntime:
    """Choose the ExecuTorch of an app; its package is what Gradle gets from Maven."""
    refuse(_foreign_blockers(recipe, program))
    blockers = tuple(prebuilt_blockers(recipe, program, version, abis))
    requested = recipe.app.runtime
    library = _variants(program)[-1]
    built, reason = requested, f"app.runtime is {requested}"
    if requested == "auto" and blockers:
        built, reason = "source", "; ".join(blocker.why for blocker in blockers)
    elif requested == "auto":
        built, reason = "prebuilt", f"{library} {version} has everything that the program needs"
    name = ReasonedChoice(name="app.runtime", value=built, reason=reason)
    if built == "source":
        return AppRuntime(name)
    blocker = joined(blockers)
    if blocker:
        raise BuildError(
            f"the app cannot have ExecuTorch's published library: {blocker.why}",
            remedy=blocker.remedy,
        )
    package = ReasonedChoice(name=library, value=f"{GROUP}:{library}:{version}", reason=reason)
    return AppRuntime(name, (package,))


def prebuilt_blockers(
    recipe: Recipe, program: Program, version: str, abis: Sequence[str]
) -> Iterator[Blocker]:
    """Reasons why an app for a program cannot have the published library."""
    yield from _release_blockers(version)
    yield from _key_blockers(recipe)
    yield from _backend_blockers(program, abis)
    yield from _operator_blockers(recipe, program)


def _release_blockers(version: str) -> Iterator[Blocker]:
    release = _RELEASE.fullmatch(version)
    if release is None or (int(release[1]), int(release[2])) < _FIRST:
        yield Blocker(
            what=f"{LIBRARY} {version}",
            why=f"the program is of ExecuTorch {version}, and {LIBRARY} is published for releases "
            f"from {_FIRST[0]}.{_FIRST[1]} on",
            remedy=f"{_BUILD_IT}\nor export the program with a release of ExecuTorch",
        )


def _key_blockers(recipe: Recipe) -> Iterator[Blocker]:
    keys = [k for k in keys_needing_build(recipe.runtime.model_dump()) if k not in _BUILT_IN]
    if keys:
        names = ", ".join(f"runtime.{key}" for key in keys)
        yield Blocker(
            what=names,
            why=f"{names} changes how ExecuTorch is built, which the published library is already",
            remedy=f"{_BUILD_IT}\nor remove {names} from the recipe",
        )


def _backend_blockers(program: Program, abis: Sequence[str]) -> Iterator[Blocker]:
    for delegate_id in program.backend_ids:
        backend = backend_of(delegate_id)
        if backend is None or backend.aar is None:
            yield Blocker(
                what=f"backend {delegate_id}",
                why=f"the program delegates to {delegate_id}, which no variant of {LIBRARY} has",
                remedy=_BUILD_IT,
            )
            continue
        for abi in abis:
            yield from _abi_blockers(backend, abi)
    variants = _variants(program)
    if len(variants) > 2:
        yield Blocker(
            what=" and ".join(variants[1:]),
            why=f"the program delegates to {' and '.join(program.backend_ids)}, and no variant of "
            f"{LIBRARY} has more than one of them",
            remedy=_BUILD_IT,
        )
    for abi in abis:
        if abi not in _ABIS:
            yield Blocker(
                what=f"ABI {abi}",
                why=f"{LIBRARY} is published for {' and '.join(_ABIS)}, and the app is for {abi}",
                remedy=f"--set app.abis=[{_ABIS[0]}]",
            )


def _foreign_blockers(recipe: Recipe, program: Program) -> Iterator[Blocker]:
    """Backends that no ExecuTorch has on Android, whoever builds it."""
    targets = [find_target(name) for name in ANDROID_ABIS.values()]
    for delegate_id in program.backend_ids:
        backend = backend_of(delegate_id)
        if backend and not any(map(backend.runs_on, targets)):
            yield Blocker(
                what=f"backend {delegate_id}",
                why=f"the program has parts for {delegate_id}, which runs on {backend.where} only",
                remedy=_other_way(recipe, backend),
                of_program=True,
            )


def _other_way(recipe: Recipe, backend: Backend) -> str:
    other = OTHER_PROGRAM if recipe.model.program else OTHER_BACKEND
    if "ios" not in backend.systems:
        return other
    return f"{other}\nor write an app for iPhones with the same recipe: etdeploy app ios"


def _abi_blockers(backend: Backend, abi: str) -> Iterator[Blocker]:
    """A backend that an instruction set does not have, as a phone's processor on an emulator."""
    if abi not in ANDROID_ABIS:
        return
    target = find_target(ANDROID_ABIS[abi])
    if backend.runs_on(target) and not any(backend.target_blockers(target, target)):
        return
    yield Blocker(
        what=f"{backend.delegate_id} for {abi}",
        why=f"{backend.aar} has no libraries for {abi}",
        remedy=f"--set app.abis=[{_ABIS[0]}]",
    )


def _operator_blockers(recipe: Recipe, program: Program) -> Iterator[Blocker]:
    absent: dict[str | None, list[str]] = {}
    for name in program.operators:
        component = operator_component(name)
        if component not in _COMPONENTS:
            absent.setdefault(component, []).append(name)
    for component, names in absent.items():
        remedies = [_BUILD_IT]
        if component == KERNELS_ETDEPLOY:
            linears = LINEAR_KERNELS & {*names}
            # Of a language model, `auto` may have the rewrite, and there is no other to lose.
            other = f"{_NO_LINEARS}{'none' if recipe.is_language_model else 'auto'}"
            remedies = [other] * bool(linears) + [_STOCK] * (len(names) > len(linears))
            remedies.append(f"or {_BUILD_IT[0].lower()}{_BUILD_IT[1:]}")
        yield Blocker(
            what=f"operators of {names[0].split('::')[0]}::",
            why=f"the program calls {some(names)}, {_whose(component, recipe)}",
            remedy="\n".join(remedies),
        )


def _whose(component: str | None, recipe: Recipe) -> str:
    if component == KERNELS_ETDEPLOY:
        return f"etdeploy's own kernel, which {LIBRARY} does not have"
    if component is not None:
        return f"of {component}, which {LIBRARY} does not have"
    given = recipe.runtime.custom_ops
    return f"of runtime.custom_ops ({given})" if given else "which no library of ExecuTorch has"


def _variants(program: Program) -> tuple[str, ...]:
    """The libraries that have the program's backends; the plain one, whose parts all have, first.

    With one backend more than that has, the last of them has all.
    """
    named = filter(None, map(backend_of, program.backend_ids))
    more = {backend.aar for backend in named if backend.aar} - {LIBRARY}
    return (LIBRARY, *sorted(more))
