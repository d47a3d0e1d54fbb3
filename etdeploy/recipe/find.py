"""Which file a recipe's name refers to."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path

from etdeploy.core.commands import quoted
from etdeploy.core.errors import Problem, RecipeError, UsageError
from etdeploy.core.files.basic import not_regular, resource_folder
from etdeploy.core.plugins import plugin_folder, plugin_names, plugin_owner
from etdeploy.recipe.document import SourceLocation

_SUFFIXES = (".yaml", ".yml")


def bundled_recipes() -> tuple[str, ...]:
    """The names of the recipes that are bundled with etdeploy."""
    return tuple(sorted(path.stem for path in resource_folder("recipes").glob("*.yaml")))


def find_recipe(name: str, folder: Path, place: SourceLocation | None = None) -> Path:
    """The file of a bundled name, of a path relative to `folder`, or of `package/recipe`.

    Args:
        name: A bundled recipe, or a path: anything with a suffix or a slash is a path, unless there
            is no such file, and a package or etdeploy has a recipe of that name.
        folder: Where relative paths start.
        place: Where the name appears, for messages; the command line when None.
    """
    shown = str(place) if place else name
    if name in bundled_recipes():
        return _bundled(name)
    named = f": {name!r}" if place else ""
    try:
        path = resolved(folder, name)
        if path.is_file():
            return path
        packaged = packaged_recipe(name)
        if packaged:
            return packaged
        stem, _, suffix = name.rpartition(".")
        if f".{suffix}" in _SUFFIXES and stem in bundled_recipes() and not path.exists():
            return _bundled(stem)
        is_folder = path.is_dir()
    except OSError as error:
        problem = Problem(shown, f"this path cannot be used{named} ({error.strerror})")
        raise RecipeError([problem]) from None
    if is_folder:
        found = _recipes_in(path)
        raise RecipeError(
            [Problem(shown, "a recipe is a YAML file, and this is a folder" + named)],
            remedy=f"Name a file in it: {', '.join(quoted(path / name) for name in found[:5])}"
            if found
            else None,
        )
    near = None if path.exists() else _alike(name, folder)
    what = (
        f"a recipe is a YAML file, and this is {not_regular(path)}"
        if path.exists()
        else "there is no such recipe"
    )
    raise RecipeError(
        [Problem(shown, what + named, f"did you mean {near!r}?" if near else None)],
        remedy=f"{_available()}Or give the path of a YAML file.",
    )


def _bundled(name: str) -> Path:
    return (resource_folder("recipes") / f"{name}.yaml").resolve()


def _available() -> str:
    others = ", ".join(packaged_recipes())
    packaged = f"Recipes of packages: {others}. " if others else ""
    return f"Bundled recipes: {', '.join(bundled_recipes())}. {packaged}"


def resolved(folder: Path, name: str) -> Path:
    """The absolute path of `name`, which may start with `~`."""
    try:
        return (folder / Path(name).expanduser()).resolve()
    except (ValueError, RuntimeError) as error:
        # A null byte, an unknown user after `~`, a circle of links.
        raise OSError(0, str(error)) from None


def _recipes_in(folder: Path) -> list[str]:
    try:
        return sorted(p.name for p in folder.iterdir() if p.suffix in _SUFFIXES and p.is_file())
    except OSError:
        return []


def _alike(name: str, folder: Path) -> str | None:
    """A bundled recipe or a file in the same folder with a similar name."""
    parent, _, last = name.rpartition("/")
    files = _recipes_in(folder / (parent or "/" if "/" in name else "."))
    if last in {Path(file).stem for file in files}:
        found = next(file for file in files if Path(file).stem == last)
    elif Path(last).stem in bundled_recipes():
        return Path(last).stem
    else:
        known = files if parent else [*bundled_recipes(), *files]
        found = next(iter(get_close_matches(last, known, n=1)), "")
    if not found:
        return next(iter(get_close_matches(name, packaged_recipes(), n=1)), None)
    return f"{parent}/{found}" if "/" in name else found


GROUP = "etdeploy.recipes"


def packaged_recipe(name: str) -> Path | None:
    """The file of a recipe that is named `package/recipe`; None if there is no such recipe."""
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
