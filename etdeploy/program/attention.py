"""How the attention of a language model is computed."""

from __future__ import annotations

from typing import Literal

from etdeploy.backends.registry import backend_named
from etdeploy.recipe.model import ExportGeneration, Recipe

Attention = Literal["kernel", "stock"]
# Below, the kernel saves less than it costs to leave the delegate.
_LEAST_CONTEXT = 512


def attention_of(recipe: Recipe) -> tuple[Attention, str] | None:
    """The attention that a recipe asks for, and why, as a clause; None for other models."""
    if recipe.model.hf is None:
        return None
    return attention_for(recipe.export.generation or ExportGeneration(), recipe.export.backend)


def attention_for(asked: ExportGeneration, backend: str) -> tuple[Attention, str]:
    """The same for a section `export.generation`; a model may not fit it.

    Args:
        asked: The section.
        backend: `export.backend`.
    """
    if asked.path == "plain":
        return "stock", "export.generation.path is plain, which has the attention of transformers"
    if asked.attention != "auto":
        return asked.attention, f"export.generation.attention is {asked.attention}"
    if not backend_named(backend).own_kernels:
        return "stock", f"etdeploy's kernel runs on the CPU, and {backend} computes elsewhere"
    if asked.context < _LEAST_CONTEXT:
        return "stock", f"the cache has fewer than {_LEAST_CONTEXT} positions"
    return "kernel", "it reads keys and values where they are, up to the position that is reached"
