"""Which method of a program is run."""

from __future__ import annotations

from collections.abc import Sequence

from etdeploy.core.errors import UsageError
from etdeploy.program.folder import FORWARD, Provenance
from etdeploy.program.model import Program

# Of every program that etdeploy exports from an example or a `.pt2` file.
EXPORTED_METHODS = (FORWARD,)


def require_method(wanted: str, methods: Sequence[str], place: str) -> None:
    """Raises UsageError unless the program, which a message calls `place`, has the method."""
    if wanted not in methods:
        raise UsageError(
            f"the program has no method {wanted!r}; it has {', '.join(methods) or 'none'}",
            place=place,
            remedy=f"--set benchmark.method={first_method(methods)}" if methods else None,
        )


def first_method(methods: Sequence[str]) -> str:
    """The method that is run where a recipe names none: `forward`, or else the first."""
    return FORWARD if FORWARD in methods else methods[0]


def only_method(program: Program, place: str) -> str:
    """The method of a finished program that is run where a recipe names none.

    Its file lists methods by the alphabet, so that which is first says nothing. Methods that only
    return a constant, as those of language models do, do not count.
    """
    names = [method.name for method in program.methods]
    computing = [m.name for m in program.methods if m.operators or m.delegates] or names
    if FORWARD in names or len(computing) == 1:
        return first_method(names if FORWARD in names else computing)
    raise UsageError(
        f"the program has no method forward; it has {', '.join(names)}",
        place=place,
        remedy=f"Name one of them: --set benchmark.method={computing[0]}",
    )


def values_of_method(provenance: Provenance, wanted: str | None, place: str) -> Provenance:
    """A program's provenance with the values of the method that a recipe runs.

    `wanted` is `benchmark.method`, and `place` the recipe in the UsageError for a missing method.
    """
    names = tuple(provenance.methods) or (provenance.method,)
    chosen = wanted or provenance.method
    require_method(chosen, names, place)
    return provenance.of(chosen)
