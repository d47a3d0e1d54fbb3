"""Parcels of the coordinator in a host's cache: fetched by digest, each file once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from etdeploy.cache.folder import CacheKind
from etdeploy.cache.workspace import Workspace
from etdeploy.core import cancel
from etdeploy.core.errors import DeviceError
from etdeploy.core.files.basic import copy_file, naming, no_room_in
from etdeploy.core.hashing import sha256_file
from etdeploy.farm.engine.dask.wire import safe_relative
from etdeploy.farm.model import Parcel

_CONTENT = "content"
_PARTS = ".parts"
# What was begun and not wanted again for so long is deleted.
_STALE_S = 24 * 3600.0

Read = Callable[[str, int], bytes]
"""Gives a chunk of the file with a digest, from an offset on; empty at its end."""


def obtain_parcel(parcel: Parcel, workspace: Workspace, read: Read) -> Path:
    """The folder of a parcel in the cache; what is not there is fetched."""
    entry = workspace.entry(CacheKind.PARCELS, parcel.key)

    def build(folder: Path) -> None:
        for name, digest in sorted(parcel.files.items()):
            target = folder / safe_relative(name)
            target.parent.mkdir(parents=True, exist_ok=True)
            _link(obtain(digest, workspace, read), target)

    workspace.obtain(entry, build)
    return entry.path


def _link(source: Path, target: Path) -> None:
    """A hard link: a symbolic one would lead out of the parcel."""
    try:
        os.link(source, target)
    except OSError as error:
        if no_room_in(error):
            raise
        copy_file(source, target)  # this file system has none, or the file has too many


def obtain(digest: str, workspace: Workspace, read: Read) -> Path:
    """The file with that digest in the cache; fetched if it is not there."""
    entry = workspace.entry(CacheKind.FETCHED, digest)
    part = workspace.folder(CacheKind.FETCHED) / _PARTS / digest

    def build(folder: Path) -> None:
        _complete(part, digest, read)
        part.replace(folder / _CONTENT)

    workspace.obtain(entry, build)
    return entry.path / _CONTENT


def sweep_parts(workspace: Workspace) -> None:
    """Deletes what was begun to be fetched, and not wanted again for a day."""
    for part in (workspace.folder(CacheKind.FETCHED) / _PARTS).glob("*"):
        with suppress(OSError):
            if time.time() - part.stat().st_mtime > _STALE_S:
                part.unlink()


def _complete(part: Path, digest: str, read: Read) -> None:
    """Goes on where an earlier fetch was cut; the caller holds the lock of the digest."""
    part.parent.mkdir(parents=True, exist_ok=True)
    with naming(part), part.open("ab") as stream:
        while data := read(digest, stream.tell()):
            cancel.checkpoint()
            stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    if sha256_file(part) != digest:
        part.unlink()
        raise DeviceError("a file did not arrive as the coordinator sent it", place=digest[:12])
