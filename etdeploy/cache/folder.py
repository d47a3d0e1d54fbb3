"""The cache folder itself: created, marked as ours, and checked before anything starts."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from etdeploy.core.errors import EtdeployError, UsageError
from etdeploy.core.files.basic import (
    CACHE_VARIABLE,
    disk_full_error,
    find_disk_full,
    require_room,
    write_atomic,
)
from etdeploy.core.layout import size_limit
from etdeploy.core.values import StrEnum

# Makes backup tools skip the folder (bford.info/cachedir); it also marks the folder as ours.
TAG = "CACHEDIR.TAG"
_SIGNATURE = "Signature: 8a477f597d28d172789f06886806bc55\n"
_OURS = (
    "# This folder is the cache of etdeploy. It can be deleted: etdeploy makes all of it again.\n"
)
LOCKS = "locks"
LIMIT_VARIABLE = "ETDEPLOY_CACHE_MAX"
_LIMIT_BYTES = 20_000_000_000
# Every name that etdeploy creates in it.
NAMES = frozenset(
    {"programs", "runners", "builds", "sources", "zig", "kits", "wheels", "state", "bundles",
     "traces", "references", "parcels", "fetched", "logs", LOCKS, TAG, ".gone", "sizes.json"}
)  # fmt: skip
# A run that makes nothing new still writes notes and logs.
_LEAST_BYTES, _LEAST_FILES = 1_000_000, 50
_SHOWN = 3
_OTHER = f"export {CACHE_VARIABLE}=/path/to/another/folder"


def prepare_cache(root: Path) -> None:
    """Creates the folder, marks it, and tries to write to it."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        if not is_marked(root):
            _require_adoptable(root)
            write_atomic(root / TAG, f"{_SIGNATURE}{_OURS}")
        locks = root / LOCKS
        locks.mkdir(exist_ok=True)
        # Not os.access, which says yes to root even if the file system refuses.
        with tempfile.TemporaryFile(dir=locks) as probe:
            probe.write(b"x")
        require_room(root, _LEAST_BYTES, _LEAST_FILES)
    except OSError as error:
        raise _unusable(root, error) from error
    for path in root.iterdir():
        if path.name in NAMES and path.is_dir() and not os.access(path, os.W_OK | os.X_OK):
            raise _unusable(root, PermissionError(0, "it is not writable", str(path)))


def require_ours(root: Path) -> None:
    """Raises unless the cache may be deleted from; called before anything is deleted."""
    if root.is_dir() and not is_marked(root):
        _require_adoptable(root)


def limit_bytes() -> int | None:
    """The maximum size of the cache: `ETDEPLOY_CACHE_MAX`, or 20 GB if it is not set.

    20 GB hold a checkout of ExecuTorch with the builds for a few targets and a few dozen programs
    of usual size, and leave most of a laptop's disk to its user.
    """
    return size_limit(LIMIT_VARIABLE, _LIMIT_BYTES)


def is_marked(root: Path) -> bool:
    """Whether the folder is marked as ours."""
    try:
        return (root / TAG).read_text(errors="replace").startswith(f"{_SIGNATURE}{_OURS}")
    except OSError:
        return False


def _require_adoptable(root: Path) -> None:
    """Raises unless the folder is empty or contains only what etdeploy makes in a cache."""
    # Another run may be writing the mark right now.
    names = sorted(p.name for p in root.iterdir() if not p.name.startswith(f".{TAG}."))
    foreign = [name for name in names if name not in NAMES]
    if not foreign and (not names or LOCKS in names or names == ["logs"]):
        return
    shown = ", ".join((foreign or names)[:_SHOWN])
    raise UsageError(
        f"this folder cannot be the cache: it is not empty, and etdeploy did not create it ({shown}"
        f"{', ...' if len(foreign or names) > _SHOWN else ''})",
        place=str(root),
        remedy=f"Name a new or empty folder: {_OTHER}",
    )


def _unusable(root: Path, error: OSError) -> EtdeployError:
    if find_disk_full(error):
        return disk_full_error(error, root)
    chosen = os.environ.get(CACHE_VARIABLE)
    origin = CACHE_VARIABLE if chosen else "the default"
    where = f" ({error.filename})" if error.filename not in (None, str(root)) else ""
    return UsageError(
        f"the cache folder ({origin}) cannot be used: {error.strerror or error}{where}",
        place=str(root),
        remedy=f"Make it writable, or name another folder:\n{_OTHER}",
    )


class CacheKind(StrEnum):
    """The folders of the cache."""

    PROGRAMS = "programs"
    RUNNERS = "runners"
    WHEELS = "wheels"
    BUILDS = "builds"
    SOURCES = "sources"
    ZIG = "zig"
    KITS = "kits"
    BUNDLES = "bundles"
    TRACES = "traces"
    REFERENCES = "references"
    PARCELS = "parcels"
    FETCHED = "fetched"
    STATE = "state"
    LOGS = "logs"
    LOCKS = "locks"
