"""A bug in etdeploy or a plug-in: the traceback goes to a file, which the message names."""

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
from etdeploy.core.errors import EtdeployError, PluginError
from etdeploy.core.files.basic import write_atomic
from etdeploy.core.hashing import digest_json


def keep_traceback(error: PluginError) -> None:
    """Writes what the plug-in's authors need to a file that the error names, once."""
    if error.log is None:
        error.log = _written(_text(error, sys.argv[1:]))
        if error.log:
            error.remedy = f"{error.remedy}\nGive them the log: it contains the traceback."


def report_bug(error: Exception, arguments: list[str]) -> None:
    """Writes the traceback with versions to the cache's log folder and names the file."""
    text = _text(error, arguments)
    log = _written(text)
    if log is None:
        sys.stderr.write(text)
    console.message(
        f"error (bug): this is a bug in etdeploy: {type(error).__name__}: {error}\n"
        f"  what to do: report it with {'this file' if log else 'the text above'}, which contains "
        "the traceback" + (f"\n  log: {log}" if log else "")
    )


def _text(error: Exception, arguments: list[str]) -> str:
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    return (
        f"etdeploy {__version__}, Python {platform.python_version()}, {system}\n"
        f"arguments: {arguments}\n\n" + "".join(traceback.format_exception(error))
    )


def _written(text: str) -> Path | None:
    """Writes the text to the cache, else to a temporary file; None if neither is possible.

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
