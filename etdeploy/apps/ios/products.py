"""Which products of ExecuTorch's Swift package a program needs, and what the package lacks.

The package is the branch `swiftpm-<version>` of ExecuTorch's repository; its products have the
names of ExecuTorch's components (Package.swift, 1.3 to 1.5).
"""

from __future__ import annotations

from collections.abc import Iterator

from etdeploy.backends.base import Backend
from etdeploy.backends.names import OTHER_PROGRAM
from etdeploy.backends.registry import backend_of, known_backends
from etdeploy.core.blocker import Blocker
from etdeploy.plan.components import (
    KERNELS_ETDEPLOY,
    KERNELS_LLM,
    KERNELS_OPTIMIZED,
    KERNELS_QUANTIZED,
    KERNELS_TORCHAO,
    RUNTIME,
    operator_component,
    threaded,
)
from etdeploy.program.model import Program
from etdeploy.targets.platforms import find_target

RUNTIME_PRODUCT = "executorch"
_KERNELS = (KERNELS_OPTIMIZED, KERNELS_QUANTIZED, KERNELS_LLM, KERNELS_TORCHAO)
# Their libraries use the thread pool, and of these only that of aten's kernels brings it along.
_NEED_POOL = frozenset({KERNELS_QUANTIZED, KERNELS_LLM})


def swift_products(program: Program) -> tuple[str, ...]:
    """The package's products that an app with the program links, sorted.

    What the package does not have is `package_blockers`'.
    """
    found = {RUNTIME_PRODUCT}
    for delegate_id in program.backend_ids:
        backend = backend_of(delegate_id)
        if backend and backend.component and _has(backend):
            found.add(backend.component)
    found |= {name for o in program.operators if (name := operator_component(o)) in _KERNELS}
    if found & _NEED_POOL:
        found.add(KERNELS_OPTIMIZED)
    return tuple(sorted(found))


def _has(backend: Backend) -> bool:
    """The package has every backend that runs on iPhones."""
    return backend.runs_on(find_target("ios-arm64"))


def has_thread_pool(products: tuple[str, ...]) -> bool:
    """Whether any of the products brings ExecuTorch's thread pool along."""
    return not threaded().isdisjoint(products)


def package_blockers(program: Program, *, finished: bool = False) -> Iterator[Blocker]:
    """What of the program cannot run with the package.

    Args:
        program: What inspection found in it.
        finished: Whether the recipe names it, so that no setting exports it anew.
    """
    for delegate_id in program.backend_ids:
        backend = backend_of(delegate_id)
        if backend is None or not _has(backend):
            yield Blocker(
                what=f"backend {delegate_id}",
                why=f"the program has parts for {delegate_id}, which does not run on iPhones",
                remedy=OTHER_PROGRAM if finished else _other_backends(),
                of_program=True,
            )
    lacking: dict[str | None, list[str]] = {}
    for operator in program.operators:
        component = operator_component(operator)
        if component not in (RUNTIME, *_KERNELS):
            lacking.setdefault(component, []).append(operator)
    for component, names in lacking.items():
        yield _no_kernels(component, names)


def _other_backends() -> str:
    names = [b.name for b in known_backends() if b.lowering and b.component and _has(b)]
    settings = "   or ".join(f"--set export.backend={name}" for name in names)
    return f"Export for another backend: {settings}"


def _no_kernels(component: str | None, names: list[str]) -> Blocker:
    own = component == KERNELS_ETDEPLOY
    return Blocker(
        what=f"operators {', '.join(names)}",
        why=f"the program calls {', '.join(names)}; ExecuTorch's Swift package has no kernel for "
        + ("etdeploy's own operators" if own else "them"),
        remedy="Export the model without them: --set export.generation.attention=stock"
        if own
        else "Use a model, or an export, without operators of your own in the app.",
        of_program=True,
    )
