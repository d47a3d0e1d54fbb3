"""Checks that the method that a recipe runs is one of the program's."""

from __future__ import annotations

from collections.abc import Iterable

from etdeploy.core.errors import UsageError

# Of every program that etdeploy exports: torch.export traces the module's forward.
EXPORTED_METHODS = ("forward",)


def require_method(wanted: str, methods: Iterable[str], place: str) -> None:
    """Raises unless the program has the method.

    Args:
        wanted: As `benchmark.method` names it.
        methods: Of the program.
        place: For the message: the recipe or the program.

    Raises:
        UsageError: It is none of them.
    """
    names = tuple(methods)
    if wanted not in names:
        raise UsageError(
            f"the program has no method {wanted!r}; it has {', '.join(names) or 'none'}",
            place=place,
            remedy=f"--set benchmark.method={names[0]}" if names else None,
        )
