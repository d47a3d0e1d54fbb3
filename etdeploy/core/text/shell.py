"""Text that a user can paste into a shell."""

from __future__ import annotations

import shlex
from pathlib import Path


def quoted(path: Path | str) -> str:
    """One word of a POSIX shell's command line; a plain path stays as it is.

    Args:
        path: Anything that a remedy names: a user's folder may have spaces and quotes in its name.
    """
    return shlex.quote(str(path))
