"""Recipes that other packages bring, named `package/recipe`.

A package names a Python package with YAML files of its own as an entry point:

    [project.entry-points."etdeploy.recipes"]
    lab = "etdeploy_lab.recipes"
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from etdeploy.core.errors import UsageError
from etdeploy.core.plugins import plugin_folder, plugin_names, plugin_owner

GROUP = "etdeploy.recipes"


def packaged_recipe(name: str) -> Path | None:
    """The file of a recipe that is named `package/recipe`; None if there is no such recipe.

    Raises:
        UsageError: The entry point of that name leads nowhere, or two packages have one.
    """
    package, slash, recipe = name.partition("/")
    # A name, not a path: only a file right in the package's folder can be meant.
    if not slash or not recipe or recipe in (".", "..") or "/" in recipe or "\\" in recipe:
        return None
    if package not in plugin_names(GROUP):
        return None
    folder = plugin_folder(GROUP, package)
    path = folder / f"{recipe}.yaml" if folder else None
    return path.resolve() if path and path.is_file() else None


def packaged_recipes() -> tuple[str, ...]:
    """The names of all of them, sorted; a package whose files cannot be found has none."""
    return tuple(name for package in plugin_names(GROUP) for name in _names(package))


def recipes_owner(name: str) -> str:
    """The distribution that brings a recipe, with its version."""
    return plugin_owner(GROUP, name.partition("/")[0])


def packages_problems() -> Iterator[UsageError]:
    """Why packages have no recipes although they say that they do."""
    for package in plugin_names(GROUP):
        try:
            plugin_folder(GROUP, package)
        except UsageError as error:
            yield error


def _names(package: str) -> list[str]:
    try:
        folder = plugin_folder(GROUP, package)
    except UsageError:
        return []
    files = sorted(folder.glob("*.yaml")) if folder else []
    return [f"{package}/{file.stem}" for file in files]
