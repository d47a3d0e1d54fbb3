"""What other packages add to etdeploy, by entry points.

A package names them in its pyproject.toml, and they are found once it is installed:

    [project.entry-points."etdeploy.devices"]
    lab = "etdeploy_lab.device:KIND"

https://packaging.python.org/en/latest/specifications/entry-points. A search reads the metadata of
every installed package, so built-in things are looked for first. Only what is asked for by its
name is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from importlib.machinery import all_suffixes
from importlib.util import find_spec
from inspect import isfunction, signature
from pathlib import Path
from shlex import quote
from traceback import walk_tb
from types import FrameType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, TypeVar

from etdeploy.core.errors import EtdeployError, PluginError, UsageError
from etdeploy.core.files.basic import find_disk_full
from etdeploy.core.hashing import digest_json, sha256_file

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, PackageMetadata


T = TypeVar("T")
GROUPS = "etdeploy."
"""How the names of all groups of entry points begin."""


def plugin_names(group: str) -> tuple[str, ...]:
    """The names of all plug-ins of a group, sorted; nothing is imported."""
    from importlib.metadata import entry_points

    return tuple(sorted({point.name for point in entry_points(group=group)}))


def load_plugin(group: str, name: str, expected: type[T]) -> T | None:
    """The plug-in of that name; None if no package has one.

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


def contact(metadata: PackageMetadata) -> str | None:
    """Where the authors of a package want reports of bugs, else where to find them.

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


def plugin_error(error: BaseException) -> PluginError | None:
    """The same error as a plug-in's mistake; None if no plug-in's code ran when it was raised.

    Whatever a plug-in calls, a library or etdeploy itself, it is at fault: other code calls it with
    arguments that fit. An error for the user is as the plug-in means it, and a full disk is
    nobody's mistake.
    """
    if (
        not isinstance(error, Exception)
        or isinstance(error, EtdeployError)
        or find_disk_full(error)
    ):
        return None
    calls = [(frame.f_code, line) for frame, line in _calls(error)]
    points = _points_by_file({code.co_filename for code, _ in calls})
    own = [(code, line) for code, line in calls if code.co_filename in points]
    if not own:
        return None
    code, line = own[-1]
    point = points[code.co_filename]
    hook = next(
        outer.co_name for outer, _ in own if _owner(points[outer.co_filename]) == _owner(point)
    )
    found = _mistake(point, hook, error, f"{code.co_filename}:{line}")
    found.__cause__ = error
    return found


def _calls(error: BaseException) -> list[tuple[FrameType, int]]:
    """The frames of a traceback without those of context managers that the error passed through.

    The frame with such a `with` is in the traceback twice, before and after them.
    """
    found: list[tuple[FrameType, int]] = []
    for frame, line in walk_tb(error.__traceback__):
        first = next((i for i, (known, _) in enumerate(found) if known is frame), len(found))
        found[first:] = [(frame, line)]
    return found


@contextmanager
def attributed() -> Iterator[None]:
    """Raises a plug-in's mistake as a PluginError, where one must not stop what does not use it."""
    try:
        yield
    except Exception as error:
        if found := plugin_error(error):
            raise found from error
        raise


def call_hook(hook: Callable[..., Any], expected: type[T], *arguments: Any) -> T:
    """Calls a hook whose result goes far, so that a wrong one would fail where nobody knows it.

    Raises:
        PluginError: The result of a plug-in's hook is something else.
    """
    value = hook(*arguments)
    if isinstance(value, expected):
        return value
    error = TypeError(f"returned {value!r:.80}, not {expected.__name__}")
    code = getattr(hook, "__code__", None)
    file = code.co_filename if code else ""
    point = _points_by_file({file}).get(file)
    if code is None or point is None:
        raise error
    raise _mistake(point, code.co_name, error, f"{file}:{code.co_firstlineno}")


def check_hooks(group: str, name: str, value: object, interface: type) -> None:
    """Refuses a plug-in that lacks a hook, or whose hook takes other parameters."""
    for hook in filter(isfunction, vars(interface).values()):
        if not hook.__name__.startswith("_") and (why := _misfit(value, hook)):
            raise _broken(_points(group, name)[0], why)


def _misfit(value: object, hook: Callable[..., Any]) -> str | None:
    """Why a plug-in's hook cannot be called as this one; None if it can."""
    own = getattr(value, hook.__name__, None)
    if not callable(own):
        return f"has no hook {hook.__name__}"
    if not isinstance(own, FunctionType | MethodType):
        return None  # may not say which parameters it has
    _, *passed = signature(hook).parameters.values()
    by_name = [each.name for each in passed if each.kind is each.KEYWORD_ONLY]
    try:
        # Of a method without `self`, this is a ValueError.
        signature(own).bind(*passed[: len(passed) - len(by_name)], **dict.fromkeys(by_name))
    except (TypeError, ValueError) as error:
        return f"has a hook {hook.__name__} with other parameters: {error}"
    return None


def _points_by_file(files: Collection[str]) -> dict[str, EntryPoint]:
    """A plug-in of the package that each file belongs to, the one whose module it is if any."""
    from importlib.metadata import distributions

    found = {}
    for dist in distributions():
        points = [each for each in dist.entry_points if each.group.startswith(GROUPS)]
        if not points:
            continue
        roots = [root for point in points if (root := _root(point.module))]
        listed = {str(each.locate()) for each in dist.files or ()}
        for file in files:
            if file in listed or any(Path(file).is_relative_to(root) for root in roots):
                own = (point for point in points if module_path(point.module) == Path(file))
                found[file] = next(own, points[0])
    return found


def _mistake(point: EntryPoint, hook: str, error: Exception, place: str) -> PluginError:
    release, said = _release(point), f": {error}" if str(error) else ""
    address = contact(point.dist.metadata) if point.dist else None
    tell = f"Tell the authors of {release}"
    return PluginError(
        f"the plug-in {point.name!r} of the package {release} failed in its hook "
        f"{hook}: {type(error).__name__}{said}",
        place=place,
        remedy=f"{tell}: {address}" if address else f"{tell}.",
    )
