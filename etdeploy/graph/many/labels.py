"""What the jobs and the tasks of a graph are called, so that all of them can be told apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from etdeploy.recipe.load import LoadedRecipe

_MOST_NAMED = 3


class Pair(NamedTuple):
    """A recipe and a device, as they are shown."""

    recipe: str
    device: str

    def __str__(self) -> str:
        return f"{self.recipe} on {self.device}"


def recipe_labels(recipes: Sequence[LoadedRecipe]) -> list[str]:
    """The recipes' names; of those with the same name, as much of the path as differs."""
    names = [loaded.name for loaded in recipes]
    return [
        loaded.name if names.count(loaded.name) == 1 else _distinct(loaded, recipes)
        for loaded in recipes
    ]


def _distinct(loaded: LoadedRecipe, recipes: Sequence[LoadedRecipe]) -> str:
    """The shortest end of the path that no other recipe with the same name has."""
    others = [r.path for r in recipes if r.name == loaded.name and r.path != loaded.path]
    parts = loaded.path.parts
    for length in range(1, len(parts)):
        end = parts[-length:]
        if not any(other.parts[-length:] == end for other in others):
            return "/".join(end)
    return str(loaded.path)


def served(some: Sequence[Pair], everyone: Sequence[Pair]) -> str:
    """Whom a task serves, in few words.

    Args:
        some: The jobs that need the task.
        everyone: All jobs of the graph.

    Returns:
        `all`; recipes, where the task is for all of their devices or there is one device; devices,
        where there is one recipe; else pairs. What is too long ends with a number.
    """
    if len(some) == len(everyone) > 1:
        return "all"
    names = []
    for recipe in dict.fromkeys(pair.recipe for pair in some):
        devices = [pair.device for pair in some if pair.recipe == recipe]
        if len(devices) == sum(pair.recipe == recipe for pair in everyone):
            names.append(recipe)
        elif len({pair.recipe for pair in everyone}) == 1:
            names += devices
        else:
            names += [f"{recipe} on {device}" for device in devices]
    shown = ", ".join(names[:_MOST_NAMED])
    more = len(names) - _MOST_NAMED
    return f"{shown} and {more} more" if more > 0 else shown
