"""Writes a report to the file that the user names, and to no file that is not a report."""

from __future__ import annotations

from pathlib import Path

from etdeploy.core.files.results import ResultFile, begins_with
from etdeploy.report.formats import BEGINNINGS, Format

_EXAMPLE = "report.html"


def require_free(path: Path, form: Format) -> None:
    """Checks that a file is new, empty, or an earlier report in the same format.

    Raises:
        UsageError: It is none of these, or cannot be written; with the reason.
        OSError: The disk is full.
    """
    _file(form).require_free(path)


def write_report(text: str, path: Path, form: Format) -> Path:
    """Writes a report, all of it or nothing.

    Returns:
        The file's absolute path; where `path` is a link, of what it leads to.

    Raises:
        UsageError: The file is somebody else's, or cannot be written.
        OSError: The disk is full.
    """
    return _file(form).write(text, path)


def _file(form: Format) -> ResultFile:
    return ResultFile("report", f"a report in {form}", begins_with(BEGINNINGS[form]), _EXAMPLE)
