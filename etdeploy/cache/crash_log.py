"""Tracebacks of bugs, in files of the cache's log folder."""

from __future__ import annotations

import platform
import sys
import tempfile
import time
import traceback
from pathlib import Path

from etdeploy import __version__
from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import EtdeployError, PluginError
from etdeploy.core.files.basic import write_atomic
from etdeploy.core.hashing import digest_json


def keep_traceback(error: PluginError) -> None:
    """Write the traceback to a file, and name it in the error, once."""
    if error.log is None:
        error.log = write_traceback(traceback_text(error, sys.argv[1:]))
        if error.log:
            error.remedy = f"{error.remedy}\nGive them the log: it contains the traceback."


def traceback_text(error: Exception, arguments: list[str]) -> str:
    """Return the traceback with versions."""
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    return (
        f"etdeploy {__version__}, Python {platform.python_version()}, {system}\n"
        f"arguments: {arguments}\n\n" + "".join(traceback.format_exception(error))
    )


def write_traceback(text: str) -> Path | None:
    """Write the text to the cache, else to a temporary file; return None if neither works.

    A disk or folder that cannot be written to may be the cause of the bug.
    """
    # Of several jobs, two may fail in the same second.
    name = f"bug-{time.strftime('%Y%m%d-%H%M%S')}-{digest_json(text)[:6]}.log"
    try:
        path = Workspace.opened().root / "logs" / name
        write_atomic(path, text)
    except (OSError, EtdeployError):
        path = Path(tempfile.gettempdir()) / f"etdeploy-{name}"
        try:
            write_atomic(path, text)
        except OSError:
            return None
    return path
