"""A host's questions to the coordinator, from any thread, across losses of the connection."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from distributed.core import rpc

from etdeploy.cache.folder import CacheKind
from etdeploy.cache.workspace import Workspace
from etdeploy.core import cancel
from etdeploy.core.errors import DeviceError
from etdeploy.core.files.basic import copy_file
from etdeploy.core.files.disk import naming, no_room_in
from etdeploy.core.hashing import sha256_file
from etdeploy.farm.engine.dask.wire import safe_relative
from etdeploy.farm.model import Parcel

_POLL_S = 0.2
# The coordinator counts from when it notices a loss, which may be later.
_MARGIN_S = 5.0


class LinkLostError(DeviceError):
    """The coordinator was away for longer than it waits for a host."""


class CoordinatorConnection:
    """The connection of a host, while there is one.

    Attributes:
        keep_s: How long the coordinator waits for attempts of a host that is gone.
    """

    def __init__(self) -> None:
        self.keep_s = 0.0
        self._lock = threading.Lock()
        self._coordinator: rpc | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._parted_s = time.monotonic()

    def connected(self, coordinator: rpc, keep_s: float) -> None:
        """Lets questions through; called in the loop that asks them."""
        with self._lock:
            self._coordinator, self.keep_s = coordinator, keep_s
            self._loop = asyncio.get_running_loop()

    def parted(self) -> None:
        """Holds questions back until there is a connection again."""
        with self._lock:
            if self._coordinator is not None:
                self._parted_s = time.monotonic()
            self._coordinator = None

    @property
    def is_lost(self) -> bool:
        """Whether the coordinator no longer waits for what was begun for it."""
        with self._lock:
            away_s = time.monotonic() - self._parted_s
            return self._coordinator is None and away_s > self.keep_s + _MARGIN_S

    def ask(self, op: str, *, to_the_end: bool = False, **message: Any) -> Any:
        """The coordinator's answer; waits for a connection that was lost, and asks again.

        Must not be called in the loop's thread.

        Args:
            op: Name of the question.
            to_the_end: Whether to ask also while this process is being stopped.
            message: Plain values.

        Raises:
            LinkLostError: There was none for longer than the coordinator waits.
            Interrupted: The run was asked to stop.
        """
        while True:
            if not to_the_end:
                cancel.checkpoint()
            with self._lock:
                coordinator, loop = self._coordinator, self._loop
            if coordinator is not None and loop is not None:
                try:
                    work = _asked(coordinator, op, message)
                    return asyncio.run_coroutine_threadsafe(work, loop).result()
                except (OSError, asyncio.CancelledError):
                    pass  # the connection is lost; `parted` follows
            if self.is_lost or (to_the_end and loop is None):
                raise LinkLostError("the connection to the coordinator is lost")
            time.sleep(_POLL_S)


async def _asked(coordinator: rpc, op: str, message: dict[str, Any]) -> Any:
    return await getattr(coordinator, op)(**message)


_CONTENT = "content"
_PARTS = ".parts"
# What was begun and not wanted again for so long is deleted.
_STALE_S = 24 * 3600.0

Read = Callable[[str, int], bytes]
"""Gives a chunk of the file with a digest, from an offset on; empty at its end."""


def obtain_parcel(parcel: Parcel, workspace: Workspace, read: Read) -> Path:
    """The folder of a parcel in the cache; what is not there is fetched.

    Args:
        parcel: Whose files are needed.
        workspace: The cache; it has to be `in_use`, so that nobody removes the files meanwhile.
        read: Asks the coordinator.

    Raises:
        UsageError: A path leads out of the folder.
        DeviceError: A file did not arrive as it was sent, or the connection is lost.
        OSError: There is no room.
        Interrupted: The attempt was stopped.
    """
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
