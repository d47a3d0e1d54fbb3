"""What can be wrong with the surroundings of a process: its working folder."""

from __future__ import annotations

import os

from etdeploy.core.errors import EtdeployError, UsageError


def surroundings_error(error: Exception) -> EtdeployError | None:
    """The error behind an unexpected exception that is not etdeploy's fault; else None."""
    try:
        os.getcwd()  # noqa: PTH109 - Path.cwd() is the same
    except OSError as reason:
        gone = UsageError(
            f"the current folder cannot be used: {reason.strerror}",
            remedy="It was deleted or moved, or you may not enter it. Change to another one:\ncd ~",
        )
        gone.__cause__ = error
        return gone
    return None
