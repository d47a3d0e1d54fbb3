"""A bug in etdeploy: the traceback goes to a file, and the message names the file."""

from __future__ import annotations

import platform
import sys
import tempfile
import time
import traceback
from pathlib import Path

from etdeploy import __version__
from etdeploy.cache.workspace import Workspace
from etdeploy.core import console
from etdeploy.core.errors import EtdeployError
from etdeploy.core.files.basic import write_atomic


def report_bug(error: Exception, arguments: list[str]) -> None:
    """Writes the traceback with versions to the cache's log folder and names the file."""
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    text = (
        f"etdeploy {__version__}, Python {platform.python_version()}, {system}\n"
        f"arguments: {arguments}\n\n" + "".join(traceback.format_exception(error))
    )
    log = _written(text)
    if log is None:
        sys.stderr.write(text)
    console.message(
        f"error (bug): this is a bug in etdeploy: {type(error).__name__}: {error}\n"
        f"  what to do: report it with {'this file' if log else 'the text above'}, which contains "
        "the traceback" + (f"\n  log: {log}" if log else "")
    )


def _written(text: str) -> Path | None:
    """Writes the text to the cache, else to a temporary file; None if neither is possible.

    A disk or folder that cannot be written to may be the cause of the bug.
    """
    name = f"bug-{time.strftime('%Y%m%d-%H%M%S')}.log"
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
