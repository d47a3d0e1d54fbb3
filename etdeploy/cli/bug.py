"""A bug of ours: the traceback goes to a file, the message says where."""

from __future__ import annotations

import platform
import sys
import time
import traceback

from etdeploy import __version__
from etdeploy.core import console
from etdeploy.core.workspace import Workspace


def report_bug(error: Exception, arguments: list[str]) -> None:
    """Writes the traceback with versions to the cache's log folder and names the file."""
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    text = (
        f"etdeploy {__version__}, Python {platform.python_version()}, {system}\n"
        f"arguments: {arguments}\n\n" + "".join(traceback.format_exception(error))
    )
    path = Workspace.default().root / "logs" / f"bug-{time.strftime('%Y%m%d-%H%M%S')}.log"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError:
        # The disk that we would write to may be the cause.
        sys.stderr.write(text)
    console.message(
        f"error (bug): this is a bug in etdeploy: {type(error).__name__}: {error}\n"
        f"  what to do: report it with this file, which holds the traceback\n"
        f"  log: {path}"
    )
