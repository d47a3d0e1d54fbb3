"""A worker's failure as an error for the user."""

from __future__ import annotations

import os
from pathlib import Path

from etdeploy.backends.causes import Cause
from etdeploy.core.errors import EtdeployError, ExportError, UsageError
from etdeploy.core.processes.process import Outcome
from etdeploy.export.protocol import ExportFailure


def failure_error(failure: ExportFailure, log: Path, cause: Cause | None = None) -> EtdeployError:
    """The error for a failure that the worker described.

    Args:
        failure: As the worker describes it.
        log: All that it printed.
        cause: What its backend makes of that, which is nearer than the exception that followed.
    """
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


def crash_error(outcome: Outcome, log: Path, cause: Cause | None = None) -> ExportError:
    """The error for a worker that ended without a description; see `failure_error`."""
    signal = outcome.signal_name
    if cause:
        return ExportError(cause.cause, remedy=cause.remedy, log=log)
    if signal == "SIGKILL":
        return ExportError(
            "the export process was killed (SIGKILL); the usual cause is that memory ran out",
            remedy="Close other programs, export a smaller model, or use a larger machine.",
            log=log,
        )
    if signal:
        return ExportError(
            f"the export process crashed ({signal}), in native code of PyTorch, ExecuTorch or an "
            "extension that the model uses",
            remedy="The log has the Python stack at the crash.",
            log=log,
        )
    return ExportError(
        f"the export process ended with code {outcome.exit_code} without saying why; code that the "
        "model imports may have ended it",
        remedy="Read the end of the log.",
        log=log,
    )


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
