"""What other packages add to etdeploy, by entry points.

A package names them in its pyproject.toml, and they are found once it is installed:

    [project.entry-points."etdeploy.devices"]
    lab = "etdeploy_lab.device:KIND"

https://packaging.python.org/en/latest/specifications/entry-points. Finding them reads the metadata
of every installed package, so built-in things are looked for first. Only what is asked for by its
name is imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from shlex import quote
from typing import TYPE_CHECKING, TypeVar

from etdeploy.core.errors import UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")


def plugin_names(group: str) -> tuple[str, ...]:
    """The names of all plug-ins of a group, sorted; nothing is imported.

    Args:
        group: `etdeploy.devices` and the like.
    """
    from importlib.metadata import entry_points

    return tuple(sorted({point.name for point in entry_points(group=group)}))


def load_plugin(group: str, name: str, expected: type[T]) -> T | None:
    """The plug-in of that name; None if no package has one.

    Args:
        group: `etdeploy.devices` and the like.
        name: Of the entry point.
        expected: What it has to be an instance of.

    Raises:
        UsageError: It cannot be imported, is something else, or two packages have this name.
    """
    from importlib.metadata import entry_points

    found = list(_distinct(entry_points(group=group, name=name)))
    if not found:
        return None
    if len(found) > 1:
        owners = sorted(_owner(point) for point in found)
        raise UsageError(
            f"two packages have a plug-in {name!r} for {group}: {' and '.join(owners)}",
            remedy=f"Uninstall one of them: pip uninstall {quote(owners[-1])}",
        )
    [point] = found
    try:
        value = point.load()
    # The plug-in's own code runs at its import and may raise anything.
    except Exception as error:
        raise _broken(point, f"cannot be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(value, expected):
        raise _broken(point, f"is {value!r:.100}, not an instance of {expected.__qualname__}")
    return value


def _distinct(points: Iterable[EntryPoint]) -> Iterator[EntryPoint]:
    """Without repetitions: a package that is installed in two places is found twice."""
    seen = set()
    for point in points:
        key = (_owner(point), point.value)
        if key not in seen:
            seen.add(key)
            yield point


def _owner(point: EntryPoint) -> str:
    return point.dist.name if point.dist else "an unknown package"


def _broken(point: EntryPoint, problem: str) -> UsageError:
    version = f" {point.dist.version}" if point.dist else ""
    return UsageError(
        f"the plug-in {point.name!r} of the package {_owner(point)}{version} {problem}",
        place=f"entry point {point.value} of {point.group}",
        remedy=f"Use a version that works with this etdeploy, or remove it:\n"
        f"pip install --upgrade {quote(_owner(point))}\npip uninstall {quote(_owner(point))}",
    )
