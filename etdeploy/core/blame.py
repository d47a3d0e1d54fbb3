"""Calls of another package's code: what goes wrong there is told as that package's mistake.

Without this, whoever installed a plug-in would report its mistakes as bugs of etdeploy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

from etdeploy.core.errors import EtdeployError, PluginError
from etdeploy.core.files.disk import no_room_in

if TYPE_CHECKING:
    from importlib.metadata import PackageMetadata


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
