"""How a language model's program computes attention, and why."""

from __future__ import annotations

from collections.abc import Iterator

from etdeploy.core.values import Explained
from etdeploy.program.generation import Generation
from etdeploy.recipe.model import Recipe

_STOCK = (
    "the cache's write in place, products and softmax are operators of every runtime: the wheel's "
    "libraries and a build from source run the same program, and apps can use ExecuTorch's own "
    "release; llama::custom_sdpa and llama::update_cache would need kernels of their own, and were "
    "not faster (docs/performance.md)"
)


def language_choices(recipe: Recipe, generation: Generation | None) -> tuple[Explained, ...]:
    """The path, the operators of the attention and the methods of a language model's program.

    Args:
        recipe: What the user requested.
        generation: Of the exported program; None before the export.

    Returns:
        Nothing for other models.
    """
    return tuple(_choices(recipe, generation)) if recipe.model.hf is not None else ()


def _choices(recipe: Recipe, generation: Generation | None) -> Iterator[Explained]:
    yield _path(recipe, generation)
    yield Explained(name="attention", value="stock operators", reason=_STOCK)
    if generation is None:
        return
    for method in generation.methods:
        most = f"{'up to ' if method.dynamic else ''}{method.max_tokens:,} tokens"
        yield Explained(
            name=method.name,
            value="one token" if method.max_tokens == 1 else most,
            reason=f"its attention looks at {method.capacity:,} of {generation.context:,} "
            "positions, whatever the position is",
        )


def _path(recipe: Recipe, generation: Generation | None) -> Explained:
    asked = recipe.export.generation
    wanted = asked.path if asked else "auto"
    if generation:
        value, reason = generation.path, generation.path_reason.rstrip(".")
        return Explained(name="path", value=value, reason=reason[0].lower() + reason[1:])
    if wanted == "auto":
        reason = (
            "export.generation.path is auto: fast where the model's logits there are those of its "
            "own forward, else plain; the export compares them"
        )
        return Explained(name="path", value="fast or plain", reason=reason)
    return Explained(
        name="path", value=wanted, reason=f"export.generation.path is {wanted}", by_hand=True
    )
