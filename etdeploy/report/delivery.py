"""Writes a report to the file that the user names, and to no file that is not a report."""

from __future__ import annotations

from pathlib import Path

from etdeploy.core.errors import UsageError
from etdeploy.core.files.basic import not_regular, open_regular, write_atomic
from etdeploy.core.files.delivery import require_writable
from etdeploy.core.files.disk import no_room_in
from etdeploy.core.text.shell import quoted
from etdeploy.report.formats import BEGINNINGS, Format

_CHOOSE = "Name another file: --output FILE"


def require_free(path: Path, form: Format) -> None:
    """Checks that a file is new, empty, or an earlier report in the same format.

    Raises:
        UsageError: It is none of these, or cannot be written; with the reason.
        OSError: The disk is full.
    """
    try:
        if what := not_regular(path):
            raise UsageError(f"the report needs a file, and this is {what}", place=str(path),
                             remedy=_remedy(path, what))  # fmt: skip
        with open_regular(path) as stream:
            beginning = stream.read(len(BEGINNINGS[form].encode()))
    except FileNotFoundError:
        _require_folder(path)
        beginning = b""
    except OSError as error:
        raise _unwritable(path, error) from error
    _require_writable(path)
    if beginning and beginning != BEGINNINGS[form].encode():
        raise UsageError(
            f"the file exists and is not a report in {form}; it was not changed",
            place=str(path),
            remedy=f"{_CHOOSE}\nOr remove it first: rm {quoted(path)}",
        )


def write_report(text: str, path: Path, form: Format) -> Path:
    """Writes a report, all of it or nothing.

    Returns:
        The file's absolute path; where `path` is a link, of what it leads to.

    Raises:
        UsageError: The file is somebody else's, or cannot be written.
        OSError: The disk is full.
    """
    require_free(path, form)
    final = path.resolve()
    try:
        write_atomic(final, text)
    except OSError as error:
        if no_room_in(error):
            raise
        raise _unwritable(path, error) from error
    return final


def _require_folder(path: Path) -> None:
    """A folder that is missing is more likely a slip than meant: nothing is created above it."""
    folder = path.resolve().parent
    if not folder.is_dir():
        raise UsageError("the folder for the report does not exist", place=str(folder),
                         remedy=f"Create it: mkdir -p {quoted(folder)}\n{_CHOOSE}")  # fmt: skip


def _require_writable(path: Path) -> None:
    try:
        require_writable(path.resolve().parent)
    except OSError as error:
        if no_room_in(error):
            raise
        raise _unwritable(path, error) from error


def _remedy(path: Path, what: str) -> str:
    if what == "a folder":
        return f"Name a file in it: --output {quoted(path / 'report.html')}"
    return "For standard output: --output -"


def _unwritable(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"the report cannot be written: {error.strerror or error}", place=str(path), remedy=_CHOOSE
    )
