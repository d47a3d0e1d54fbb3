"""A worker's failure as an error for the user."""

from __future__ import annotations

import ast
import os
import sys
import warnings
from pathlib import Path

from etdeploy.core.diagnostics import Diagnosis
from etdeploy.core.errors import EtdeployError, ExportError, UsageError
from etdeploy.core.processes.process import Outcome
from etdeploy.export.diagnostics import CRASH_FAILURES
from etdeploy.export.protocol import ExportFailure
from etdeploy.export.spec import CodeReference


def failure_error(
    failure: ExportFailure, log: Path, cause: Diagnosis | None = None
) -> EtdeployError:
    """The error for a failure that the worker described."""
    if cause:
        failure = failure.model_copy(update={"message": cause.cause, "remedy": cause.remedy})
    message = failure.message
    if failure.method:
        message += f" (method {failure.method})"
    if failure.operator and failure.operator not in message:
        message += f" (operator {failure.operator})"
    if failure.code:
        message += f"\n    {failure.code}"
    # What is asked of the model does not fit it, however late that is found.
    kind = UsageError if failure.kind == "speech" else ExportError
    return kind(message, place=_place(failure), remedy=failure.remedy, log=log)


def crash_error(outcome: Outcome, log: Path, cause: Diagnosis | None = None) -> ExportError:
    """The error for a worker that ended without a description; see `failure_error`."""
    end = outcome.signal_name or f"exit code {outcome.exit_code}"
    found = cause or CRASH_FAILURES.diagnose(end)
    if found is None:
        raise ValueError(end)
    return ExportError(found.cause, remedy=found.remedy, log=log)


def _place(failure: ExportFailure) -> str | None:
    if failure.file is None:
        return None
    path = short_path(failure.file)
    return path if failure.line is None else f"{path}:{failure.line}"


def short_path(path: str) -> str:
    """Relative to the working folder where the file is below it."""
    try:
        relative = os.path.relpath(path)
    except ValueError:  # another drive
        return path
    return path if relative.startswith("..") else relative


_SHOWN = 12
# With one of these in a file, its text does not show which names it will define.
_UNSURE = {
    "__dict__", "__getattr__", "eval", "exec", "globals", "locals", "modules", "setattr", "vars",
}  # fmt: skip


def check_function(reference: CodeReference, key: str) -> None:
    """Refuses a function that its file does not define."""
    if reference.file is None:
        return
    path = Path(reference.file)
    tree = _parsed(path)
    names = _bound(tree) if tree else None
    if tree is None or names is None or reference.name in names:
        return
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    raise ExportError(missing_function(reference, key, functions), place=short_path(str(path)))


def missing_function(reference: CodeReference, key: str, functions: list[str]) -> str:
    """The message for a function that is not there."""
    public = [name for name in functions if not name.startswith("_")]
    shown = ", ".join(public[:_SHOWN]) + (" and more" if len(public) > _SHOWN else "")
    there = f"; it has {shown}" if public else ""
    return f"{key} names {reference}, but there is no {reference.name!r} there{there}"


def install_remedy(module: str) -> str:
    """What to do when a module is not installed."""
    return f"Install the package that has {module} for {sys.executable}"


def _parsed(path: Path) -> ast.Module | None:
    """The file as a syntax tree; None when only running it can show what it holds."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are shown when the file is run
            return ast.parse(path.read_bytes(), str(path))
    except SyntaxError as error:
        code, shown = (error.text or "").strip(), short_path(str(path))
        raise ExportError(
            f"{path.name} is not Python {sys.version_info.major}.{sys.version_info.minor}: "
            f"{error.msg}" + (f"\n    {code}" if code else ""),
            place=f"{shown}:{error.lineno}" if error.lineno else shown,
        ) from error
    except (OSError, ValueError, RecursionError, MemoryError):
        return None


def _bound(tree: ast.Module) -> set[str] | None:
    """Every name that the file binds, at any depth; None when it may bind others."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            name = node.id if isinstance(node, ast.Name) else node.attr
            if name in _UNSURE:
                return None
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
        else:  # functions, classes, handlers of exceptions, patterns of match
            names |= {str(getattr(node, field, None)) for field in ("name", "rest")}
    return None if names & {"*", *_UNSURE} else names
