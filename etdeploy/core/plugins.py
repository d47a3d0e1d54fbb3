"""What other packages add to etdeploy, by entry points.

A package names them in its pyproject.toml, and they are found once it is installed:

    [project.entry-points."etdeploy.devices"]
    lab = "etdeploy_lab.device:KIND"

https://packaging.python.org/en/latest/specifications/entry-points. Finding them reads the metadata
of every installed package, so built-in things are looked for first. Only what is asked for by its
name is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import all_suffixes
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, TypeVar

from etdeploy.core.errors import EtdeployError, PluginError, UsageError
from etdeploy.core.files.basic import no_room_in
from etdeploy.core.hashing import digest_json, sha256_file

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, PackageMetadata


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
    point = _only(group, name)
    if point is None:
        return None
    try:
        value = point.load()
    # The plug-in's own code runs at its import and may raise anything.
    except Exception as error:
        raise _broken(point, f"cannot be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(value, expected):
        raise _broken(point, f"is {value!r:.100}, not an instance of {expected.__qualname__}")
    return value


def _only(group: str, name: str) -> EntryPoint | None:
    found = _points(group, name)
    if len(found) > 1:
        owners = sorted(_owner(point) for point in found)
        raise UsageError(
            f"two packages have a plug-in {name!r} for {group}: {' and '.join(owners)}",
            remedy=f"Uninstall one of them: pip uninstall {quote(owners[-1])}",
        )
    return found[0] if found else None


def _points(group: str, name: str) -> list[EntryPoint]:
    from importlib.metadata import entry_points

    return list(_distinct(entry_points(group=group, name=name)))


def _release(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else _owner(point)


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
        place=_place(point),
        remedy=f"Use a version that works with this etdeploy, or remove it:\n"
        f"pip install --upgrade {quote(_owner(point))}\npip uninstall {quote(_owner(point))}",
    )


def _place(point: EntryPoint) -> str:
    return f"entry point {point.value} of {point.group}"


def plugin_owner(group: str, name: str) -> str:
    """The package that a plug-in comes from, with its version: `etdeploy-lab 1.2`."""
    return " and ".join(sorted(_release(point) for point in _points(group, name)))


def plugin_origin(group: str, name: str) -> Origin:
    """Who is to be told when a plug-in that was loaded fails."""
    [point, *_] = _points(group, name)
    told = contact(point.dist.metadata) if point.dist else None
    return Origin(name, _release(point), _place(point), _root(point.module), told)


def plugin_code(group: str, name: str, *modules: str) -> str:
    """A digest of what a plug-in does: the version and the Python files of its package.

    It is in the key of what the plug-in decides, so that an upgrade, or an edit of a package that
    is installed from its sources, is not ignored.

    Args:
        group: `etdeploy.devices` and the like.
        name: Of the entry point.
        modules: Further modules that belong to it, which are not imported.
    """
    points = _points(group, name)
    named = [*(point.module for point in points), *modules]
    roots = sorted({root for module in named if (root := _root(module))})
    files = {str(file): sha256_file(file) for root in roots for file in _python_files(root)}
    return digest_json({"versions": [_release(p) for p in points], "files": files})


def plugin_folder(group: str, name: str) -> Path | None:
    """The folder of the Python package that an entry point without attribute names.

    The package is not imported. None if no package has such a plug-in.

    Args:
        group: `etdeploy.recipes` and the like.
        name: Of the entry point.

    Raises:
        UsageError: There is no such folder, or two packages have this name.
    """
    point = _only(group, name)
    if point is None:
        return None
    folder = module_path(point.module)
    if folder is None or not folder.is_dir():
        raise _broken(point, f"names {point.value}, which is not a package with files")
    return folder


def module_path(name: str) -> Path | None:
    """The file of a module, or the folder of a package, as an import would find it; None if none.

    Nothing is imported, no outer package either. The outermost one may be found by an import hook,
    as with an editable installation.
    """
    outermost, *inner = name.split(".")
    try:
        spec = find_spec(outermost)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if spec.submodule_search_locations is None:
        return Path(spec.origin) if spec.origin and not inner else None
    found = [Path(folder) for folder in spec.submodule_search_locations]
    for part in inner:
        found = [path for folder in found for path in _inside(folder, part)]
    return found[0] if found else None


def _inside(folder: Path, part: str) -> list[Path]:
    """The package or the modules of a name in a folder; only a package is a folder itself."""
    package = folder / part
    if package.is_dir():
        return [package]
    files = (folder / f"{part}{suffix}" for suffix in all_suffixes())
    return [file for file in files if file.is_file()]


def _root(module: str) -> Path | None:
    """The folder of the outermost regular package that a module is in, or the module's file."""
    parts = module.split(".")
    paths = [module_path(".".join(parts[:length])) for length in range(1, len(parts) + 1)]
    regular = (path for path in paths if path and (path / "__init__.py").is_file())
    return next(regular, paths[-1])


def _python_files(root: Path) -> list[Path]:
    return sorted(root.rglob("*.py")) if root.is_dir() else [root]


@dataclass(frozen=True)
class Origin:
    """Where a plug-in comes from.

    Attributes:
        plugin: Its name.
        release: The package and its version: `etdeploy-lab 1.2`.
        entry: The entry point, for messages.
        code: The folder or file of its code; None if that is not known.
        contact: Where its authors want to be told; None if the package does not say.
    """

    plugin: str
    release: str
    entry: str
    code: Path | None = None
    contact: str | None = None


def contact(metadata: PackageMetadata) -> str | None:
    """Where the authors of a package want to be told of bugs, else where they are found.

    The labels of its addresses are free text; the usual ones are listed in
    https://packaging.python.org/en/latest/specifications/well-known-project-urls.
    """
    entries = [entry.partition(",") for entry in metadata.get_all("Project-URL") or ()]
    urls = {label.strip().lower(): url.strip() for label, _, url in entries}
    for word in ("issue", "bug", "tracker", "support", "source", "repository", "home"):
        for label, url in urls.items():
            if word in label:
                return str(url)
    fields = ("Home-page", "Author-email", "Maintainer-email")
    return next((str(metadata[name]) for name in fields if name in metadata), None)


@contextmanager
def blamed(origin: Origin, hook: str, *allowed: type[Exception]) -> Iterator[None]:
    """Names the package and the hook in whatever the block raises but errors for the user.

    Args:
        origin: Of the code that the block calls.
        hook: What is called.
        allowed: Further exceptions that the hook may raise.

    Raises:
        PluginError: The block raised something else.
    """
    try:
        yield
    except Exception as error:
        # A full disk is nobody's mistake.
        if isinstance(error, (EtdeployError, *allowed)) or no_room_in(error):
            raise
        raise _plugin_error(origin, hook, error) from error


def _plugin_error(origin: Origin, hook: str, error: Exception) -> PluginError:
    said = f": {error}" if str(error) else ""
    tell = f"Tell the authors of {origin.release}"
    return PluginError(
        f"the plug-in {origin.plugin!r} of the package {origin.release} failed in its hook "
        f"{hook}: {type(error).__name__}{said}",
        place=_line_in(origin.code, error) or origin.entry,
        remedy=f"{tell}: {origin.contact}" if origin.contact else f"{tell}.",
    )


def _line_in(code: Path | None, error: Exception) -> str | None:
    """The innermost line of the package's own code in a traceback."""
    lines = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    own = [f"{file}:{line}" for file, line in lines if code and Path(file).is_relative_to(code)]
    return own[-1] if own else None


def given(value: object, expected: type | tuple[type, ...]) -> Any:
    """What a hook gave, if it is what it has to be.

    Raises:
        TypeError: It is not.
    """
    if isinstance(value, expected):
        return value
    kinds = expected if isinstance(expected, tuple) else (expected,)
    names = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
    raise TypeError(f"it gave {value!r:.80}, not {names}")


def each_given(
    origin: Origin, hook: str, call: Callable[..., Any], expected: type
) -> Callable[..., Iterator[Any]]:
    """A hook that gives several things, asked for one after the other as they are needed.

    A later one may be possible only where nobody stopped at an earlier one.
    """

    def asked(*arguments: Any, **named: Any) -> Iterator[Any]:
        with blamed(origin, hook):
            for value in call(*arguments, **named):
                yield given(value, expected)

    return asked


def one_given(
    origin: Origin,
    hook: str,
    call: Callable[..., Any],
    expected: type | tuple[type, ...],
    *allowed: type[Exception],
) -> Callable[..., Any]:
    """A hook that gives one thing.

    Args:
        origin: Of the hook.
        hook: Its name.
        call: What is called.
        expected: What its result has to be.
        allowed: Further exceptions that it may raise.
    """

    def asked(*arguments: Any, **named: Any) -> Any:
        with blamed(origin, hook, *allowed):
            return given(call(*arguments, **named), expected)

    return asked
