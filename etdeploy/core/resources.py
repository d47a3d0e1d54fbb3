"""The package's own data files, and a digest of its code; in a checkout or installed."""

from __future__ import annotations

import functools
from pathlib import Path

from etdeploy.core.hashing import digest_json, sha256_file

_PACKAGE = Path(__file__).resolve().parent.parent


def resource_folder(name: str) -> Path:
    """The folder `recipes`, `templates` or `toolchains`.

    In a checkout they are at the top of the tree; a wheel has them in `etdeploy/data`.
    """
    installed = _PACKAGE / "data" / name
    return installed if installed.is_dir() else _PACKAGE.parent / name


@functools.cache
def code_digest(*parts: str, package: Path = _PACKAGE) -> str:
    """A digest of the Python files of parts of etdeploy, read once per process.

    It is part of the key of what these parts make: a release with other rules makes it again.

    Args:
        parts: Names of packages, such as `runtime`.
        package: The folder that contains them.
    """
    files = sorted(path for part in parts for path in (package / part).rglob("*.py"))
    return digest_json({p.relative_to(package).as_posix(): sha256_file(p) for p in files})
