"""How a session chooses tokens: the caller's values over those of the recipe."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from etdeploy.core.errors import UsageError
from etdeploy.recipe.model import Recipe
from etdeploy.runner.generation import Sampling

# They have no effect at temperature 0.
_NEED_TEMPERATURE = ("top_k", "top_p", "min_p")


def resolve_sampling(
    recipe: Recipe,
    given: Mapping[str, float | int | None],
    shown: Callable[[str], str] = str,
    example: str = "temperature=0.8",
) -> Sampling:
    """Return how tokens are chosen; without a seed of the caller's or the recipe's, a new one.

    Args:
        recipe: Has the defaults, in `benchmark.generation`.
        given: By the names of `Sampling`; None for the default.
        shown: How the caller writes a name.
        example: How the caller writes a temperature.

    Raises:
        UsageError: A value is not possible, or has no effect.
    """
    own = recipe.benchmark.generation
    values: dict[str, Any] = {name: getattr(own, name) for name in Sampling.model_fields if own}
    values |= {name: value for name, value in given.items() if value is not None}
    if given.get("seed") is None and not (own and "seed" in own.model_fields_set):
        values["seed"] = secrets.randbelow(2**32)  # short enough to be typed again
    try:
        sampling = Sampling(**values)
    except ValidationError as error:
        problem = error.errors()[0]
        name = shown(str(problem["loc"][0]))
        raise UsageError(f"{name}: {problem['msg']}, not {problem['input']!r}") from error
    ignored = [shown(name) for name in _NEED_TEMPERATURE if given.get(name) is not None]
    if ignored and not sampling.temperature:
        raise UsageError(
            f"{ignored[0]} has no effect at temperature 0, which always takes the most probable "
            "token",
            remedy=example,
        )
    return sampling
