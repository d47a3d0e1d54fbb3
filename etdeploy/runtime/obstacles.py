"""What keeps a plan from being built, each with its way out."""

from __future__ import annotations

from collections.abc import Iterator

from etdeploy.program.model import Program
from etdeploy.recipe.backends import BACKENDS
from etdeploy.recipe.model import Recipe
from etdeploy.runtime.components import DELEGATES, operator_component
from etdeploy.runtime.plan_model import Obstacle
from etdeploy.targets.platforms import Target

_OTHER_BACKEND = "Lower to another backend: --set export.backend=xnnpack"
_SOURCE_LATER = "The provider `source`, which builds ExecuTorch itself, comes with a later release."


def platform_obstacles(
    recipe: Recipe, target: Target, build_target: Target, host: Target
) -> Iterator[Obstacle]:
    """A provider that is not there yet, and targets that cannot be built for, or not here."""
    if recipe.runtime.provider == "source":
        yield Obstacle(
            what="runtime.provider source",
            why="building ExecuTorch from its sources is not part of this release",
            remedy="Take the prebuilt libraries: --set runtime.provider=auto",
        )
    if build_target.wheel_platform is None:
        yield Obstacle(
            what=f"target {target.name}",
            why=f"no ExecuTorch wheel carries libraries for {target.name}",
            remedy=f"{_SOURCE_LATER}\nUntil then choose another device: etdeploy devices",
        )
    elif build_target.name != host.name and build_target.toolchain is None:
        yield Obstacle(
            what=f"target {target.name}",
            why=f"a runner for {target.name} cannot be built on {host.name}",
            remedy=f"Run etdeploy on {build_target.name} itself.",
        )


def wheel_obstacles(
    recipe: Recipe,
    program: Program | None,
    wheel: str,
    wanted: frozenset[str],
    shipped: frozenset[str],
) -> Iterator[Obstacle]:
    """What the program needs and `wheel` (as messages call it) does not have."""
    for name in sorted(wanted - shipped):
        yield Obstacle(
            what=f"component {name}",
            why=f"{wheel} has no component {name}",
            remedy=_remedy_for(name),
        )
    for backend_id in _delegate_ids(recipe, program):
        if DELEGATES.get(backend_id) is None:
            yield Obstacle(
                what=f"backend {backend_id}",
                why=f"the program delegates to {backend_id}, which {wheel} does not have",
                remedy=f"{_OTHER_BACKEND}\n{_SOURCE_LATER}",
            )
    for namespace, names in _unknown_operators(program):
        yield Obstacle(
            what=f"operators of {namespace}::",
            why=f"the program calls {', '.join(names)}; {wheel} has no library with operators of "
            f"{namespace}::",
            remedy="Export the model without these custom operators, or run it with Python's "
            f"executorch package.\n{_SOURCE_LATER}",
        )


def _remedy_for(component: str) -> str:
    """What helps when the wheel of a platform lacks a component; Core ML is in those of Macs."""
    if component == "backend_coreml":
        return f"{BACKENDS['coreml'].get}\n{_OTHER_BACKEND}"
    return f"{_OTHER_BACKEND}\n{_SOURCE_LATER}"


def vendor_obstacles(
    recipe: Recipe, program: Program | None, shipped: frozenset[str]
) -> Iterator[Obstacle]:
    """Libraries of others that a backend loads on the device, which no bundle carries."""
    if "QnnBackend" in _delegate_ids(recipe, program) and "backend_qnn" in shipped:
        yield Obstacle(
            what="Qualcomm's libraries",
            why="QnnBackend loads Qualcomm's own libraries where it runs, and this release does "
            "not bring them there",
            remedy=_OTHER_BACKEND,
        )


def _delegate_ids(recipe: Recipe, program: Program | None) -> tuple[str, ...]:
    """The backends of the program, or the one that the recipe asks for."""
    if program:
        return program.backend_ids
    delegate_id = BACKENDS[recipe.export.backend].delegate_id
    return (delegate_id,) if delegate_id and not recipe.model.program else ()


def _unknown_operators(program: Program | None) -> list[tuple[str, list[str]]]:
    by_namespace: dict[str, list[str]] = {}
    for name in program.operators if program else ():
        if operator_component(name) is None:
            by_namespace.setdefault(name.split("::", 1)[0], []).append(name)
    return sorted(by_namespace.items())
