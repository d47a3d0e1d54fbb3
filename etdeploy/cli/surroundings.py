"""What can be wrong around a process: the folder that it works in."""

from __future__ import annotations

import os

from etdeploy.core.errors import EtdeployError, UsageError


def surroundings_error(error: Exception) -> EtdeployError | None:
    """What an unexpected exception comes from, when that is not etdeploy; else None."""
    try:
        os.getcwd()  # noqa: PTH109 - Path.cwd() is the same
    except OSError as reason:
        gone = UsageError(
            f"the folder that this shell works in cannot be used: {reason.strerror}",
            remedy="It was deleted, moved or closed to you. Change to another one:\ncd ~",
        )
        gone.__cause__ = error
        return gone
    return None
