"""What to know about a plan, as sentences of the backends that run the program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from etdeploy.backends.base import Backend
from etdeploy.backends.registry import backend_of
from etdeploy.backends.values import PlannedRun
from etdeploy.core.values import Explained
from etdeploy.plan.requirements import Requirements
from etdeploy.program.model import Program
from etdeploy.recipe.model import Recipe
from etdeploy.targets.android import soc_name
from etdeploy.targets.platforms import Target


def run_notes(
    recipe: Recipe, requirements: Requirements, program: Program | None, target: Target
) -> Iterator[str]:
    """What to know about a run with the program's backends.

    Args:
        recipe: What the user requested.
        requirements: Name the backends.
        program: The exported program, if it is known.
        target: What the runner is for.
    """
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


def build_notes(requirements: Requirements, options: Iterable[Explained]) -> Iterator[str]:
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
