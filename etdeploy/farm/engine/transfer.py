"""Files between the coordinator and its hosts: artifacts one way, records of attempts the other."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tarfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path, PurePosixPath

from etdeploy.cache.folder import CacheKind
from etdeploy.cache.workspace import Workspace
from etdeploy.core import cancel
from etdeploy.core.errors import DeviceError, UsageError
from etdeploy.core.files.basic import (
    annotate_oserror,
    copy_file,
    find_disk_full,
    folder_files,
    new_folder,
    open_regular,
    remove_tree,
)
from etdeploy.core.hashing import sha256_file
from etdeploy.farm.model import AttemptResult, BuildArtifact, Order

_INCOMING = ".incoming"
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}")

CHUNK_BYTES = 1 << 20
"""Files and records travel in pieces of this size, so that heartbeats get between them."""

Key = tuple[str, int]
"""An attempt: its visit, and its number."""


def key_of(attempt: Order | AttemptResult) -> Key:
    """The attempt that an order begins or an ending ends."""
    return (attempt.visit, attempt.attempt)


LIMIT_BYTES = 4 << 30
"""What the records of one attempt may take on the coordinator's disk."""


def pack(folder: Path, archive: Path) -> None:
    """Writes the regular files of a folder to an archive."""
    with tarfile.open(archive, "w:gz", compresslevel=3) as tar:
        for name in folder_files(folder):
            path = folder / name
            if not path.is_symlink():
                tar.add(path, name, recursive=False)


def unpack(archive: Path, folder: Path, limit_bytes: int = LIMIT_BYTES) -> None:
    """Fills a new folder from an archive of another host; it appears complete or not at all."""
    try:
        with new_folder(folder) as work, tarfile.open(archive, "r:gz") as tar:
            left_bytes = limit_bytes
            for member in tar:
                left_bytes -= member.size
                if left_bytes < 0:
                    raise UsageError(f"the records take more than {limit_bytes} bytes")
                _extract(tar, member, work)
    except (tarfile.TarError, EOFError) as error:
        raise UsageError(f"the records arrived damaged: {error}") from error


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    name = safe_relative(member.name)
    source = tar.extractfile(member) if member.isreg() else None
    if source is None:
        raise UsageError(f"{member.name!r} in the records is no file")
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    with source, target.open("xb") as stream:
        shutil.copyfileobj(source, stream)


def safe_relative(name: str) -> PurePosixPath:
    """A path of another host that stays below the folder that it is joined to."""
    path = PurePosixPath(name)
    if path.is_absolute() or not path.parts or ".." in path.parts or "\0" in name:
        raise UsageError(f"the path {name!r} leads out of its folder")
    return path


class ServedFiles:
    """The files of artifacts by digest: the only ones that a host may read."""

    def __init__(self) -> None:
        self._paths: dict[str, Path] = {}

    def add(self, artifact: BuildArtifact) -> None:
        """Let hosts read the files of an artifact."""
        for name, digest in artifact.files.items():
            self._paths[digest] = Path(artifact.folder) / safe_relative(name)

    def read(self, digest: str, offset: int) -> bytes:
        """At most a chunk of a file; empty at its end."""
        path = self._paths.get(digest)
        if path is None or offset < 0:
            raise UsageError("only files of artifacts can be read")
        with open_regular(path) as stream:
            stream.seek(offset)
            return stream.read(CHUNK_BYTES)


class Records:
    """Archives of attempts that hosts send in chunks, and the folders that they become."""

    def __init__(self, results: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self._results = results
        self._limit_bytes = limit_bytes
        self.clear()

    def store(self, key: Key, offset: int, data: bytes) -> int:
        """Append a chunk if it is the next one; the first one begins the archive anew."""
        path = self._incoming(key)
        if offset == 0:
            self.drop(key)
        have_bytes = path.stat().st_size if path.exists() else 0
        if offset != have_bytes:
            return have_bytes
        if have_bytes + len(data) > self._limit_bytes:
            self.drop(key)
            raise UsageError(f"the records take more than {self._limit_bytes} bytes")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as stream:
            stream.write(data)
        return have_bytes + len(data)

    def finish(self, key: Key, digest: str) -> Path:
        """Unpack an archive that is complete."""
        path = self._incoming(key)
        try:
            if not path.is_file() or sha256_file(path) != digest:
                raise UsageError("the records did not arrive as they were sent")
            folder = self._results / _folder_name(key)
            unpack(path, folder, self._limit_bytes)
            return folder
        finally:
            self.drop(key)

    def drop(self, key: Key) -> None:
        """Delete what has arrived of an archive."""
        self._incoming(key).unlink(missing_ok=True)

    def clear(self) -> None:
        """Delete what was cut."""
        remove_tree(self._results / _INCOMING)

    def _incoming(self, key: Key) -> Path:
        return self._results / _INCOMING / f"{_folder_name(key)}.tar.gz"


def _folder_name(key: Key) -> str:
    visit, attempt = key
    plain = visit if _PLAIN.fullmatch(visit) else hashlib.sha256(visit.encode()).hexdigest()[:16]
    return f"{plain}-attempt-{attempt}"


_CONTENT = "content"
_PARTS = ".parts"
# What was begun and not wanted again for so long is deleted.
_STALE_S = 24 * 3600.0

Read = Callable[[str, int], bytes]
"""Gives a chunk of the file with a digest, from an offset on; empty at its end."""


def fetch_artifact(artifact: BuildArtifact, workspace: Workspace, read: Read) -> Path:
    """The folder of an artifact in the cache; what is not there is fetched."""
    entry = workspace.entry(CacheKind.PARCELS, artifact.key)

    def build(folder: Path) -> None:
        for name, digest in sorted(artifact.files.items()):
            target = folder / safe_relative(name)
            target.parent.mkdir(parents=True, exist_ok=True)
            _link(obtain(digest, workspace, read), target)

    workspace.obtain(entry, build)
    return entry.path


def _link(source: Path, target: Path) -> None:
    """A hard link: a symbolic one would lead out of the artifact."""
    try:
        os.link(source, target)
    except OSError as error:
        if find_disk_full(error):
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
    with annotate_oserror(part), part.open("ab") as stream:
        while data := read(digest, stream.tell()):
            cancel.checkpoint()
            stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    if sha256_file(part) != digest:
        part.unlink()
        raise DeviceError("a file did not arrive as the coordinator sent it", place=digest[:12])
