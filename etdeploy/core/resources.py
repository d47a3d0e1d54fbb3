"""What the package itself has, from a checkout or installed: its data, and its code as a digest."""

from __future__ import annotations

import functools
from pathlib import Path

from etdeploy.core.hashing import digest_json, sha256_file

_PACKAGE = Path(__file__).resolve().parent.parent


def resource_folder(name: str) -> Path:
    """The folder `recipes`, `templates` or `toolchains`.

    In a checkout they stand at the top of the tree; a wheel carries them in `etdeploy/data`.
    """
    installed = _PACKAGE / "data" / name
    return installed if installed.is_dir() else _PACKAGE.parent / name


@functools.cache
def code_digest(*parts: str, package: Path = _PACKAGE) -> str:
    """A digest of the Python files of parts of etdeploy, read once in a process.

    What a part makes and keeps is known by it: a release with other rules makes it anew.

    Args:
        parts: Names of packages, such as `runtime`.
        package: The folder that they are in.
    """
    files = sorted(path for part in parts for path in (package / part).rglob("*.py"))
    return digest_json({p.relative_to(package).as_posix(): sha256_file(p) for p in files})
