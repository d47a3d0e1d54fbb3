"""A host's questions to the coordinator, from any thread, across losses of the connection."""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from distributed.core import rpc

from etdeploy.cache.folder import CacheKind, limit_bytes
from etdeploy.cache.tidy import keep_below
from etdeploy.cache.workspace import Workspace
from etdeploy.core import cancel
from etdeploy.core.errors import DeviceError, EtdeployError, Interrupted
from etdeploy.core.files.basic import copy_file, naming, no_room_in, remove_tree
from etdeploy.core.hashing import sha256_file
from etdeploy.core.plugins import attributed
from etdeploy.farm.engine.dask import wire
from etdeploy.farm.engine.dask.wire import pack, safe_relative
from etdeploy.farm.model import AttemptFailure, AttemptResult, Fate, Offer, Order, Parcel
from etdeploy.farm.work.parcel import failure_of

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


@dataclass(frozen=True)
class HostDependencies:
    """What a host does; tests put in their own. Each is called in threads.

    Attributes:
        plugged: The devices that are there now.
        attempt: Does an order with the parcel in a folder, until a flag is raised. A record is in
            a folder of its own, with all that belongs to it, below the host's folder.
        recover: Takes a step of the recovery ladder.
    """

    plugged: Callable[[], Sequence[Offer]]
    attempt: Callable[[Order, Path, cancel.Flag], AttemptResult]
    recover: Callable[[Offer, str, Callable[[str], None]], Offer]


class HostWork:
    """Does what the coordinator asks; each call in a thread of its own.

    Args:
        folder: For files of attempts.
        parts: What is done.
        link: To the coordinator.
    """

    def __init__(self, folder: Path, parts: HostDependencies, link: CoordinatorConnection) -> None:
        self._folder, self._parts, self._link = folder, parts, link

    def do(self, order: Order, flag: cancel.Flag, session: str) -> None:
        """Does an order and delivers its ending; what is not wanted any more is dropped."""
        begun_s = time.monotonic()
        try:
            ending = self._ending(order, flag, session)
        except LinkLostError:
            return
        except Exception as error:  # a bug of ours must not leave the coordinator waiting
            fate = Fate.PUT_OFF if isinstance(error, Interrupted) else Fate.FAILED
            failure = failure_of(error, Workspace.default().root)
            ending = _ending_of(order, fate, failure)
        seconds = ending.seconds or time.monotonic() - begun_s
        try:
            self._deliver(ending.model_copy(update={"seconds": seconds}), session)
        except LinkLostError:
            return
        finally:
            if ending.record:
                remove_tree(self._records_of(ending.record))

    def recover(self, step: wire.RecoveryStep) -> None:
        """Takes a step of the recovery ladder and tells how it went."""

        def tell(text: str) -> None:
            self._link.ask(wire.TOLD, number=step.number, text=text)

        try:
            with attributed():
                offer = self._parts.recover(step.offer, step.step, tell)
        except EtdeployError as error:
            changes = {"problem": error.message, "remedy": error.remedy or ""}
            offer = step.offer.model_copy(update=changes)
        answer = wire.RecoveryReply(number=step.number, offer=offer)
        self._link.ask(wire.RECOVERED, recovered=answer.model_dump_json())

    def _ending(self, order: Order, flag: cancel.Flag, session: str) -> AttemptResult:
        # One for each attempt: what it uses is free to be removed when it has ended.
        workspace = Workspace.default()
        with workspace.in_use():
            parcel = obtain_parcel(
                order.parcel, workspace, lambda *what: self._read(session, *what)
            )
            ending = self._parts.attempt(order, parcel, flag)
        if limit := limit_bytes():
            keep_below(workspace, limit)
        return ending

    def _records_of(self, record: str) -> Path:
        """The folder that a record and all that belongs to it are in."""
        folder = Path(record).resolve().parent
        if self._folder.resolve() not in folder.parents:
            raise ValueError(f"the record {record} has no folder of its own")
        return folder

    def _read(self, session: str, digest: str, offset: int) -> bytes:
        answer = self._link.ask(wire.READ, session=session, digest=digest, offset=offset)
        if "data" not in answer:
            raise DeviceError(f"the coordinator gives no file: {answer['refused']}")
        return bytes(answer["data"])

    def _deliver(self, ending: AttemptResult, session: str) -> None:
        """Sends the records, then the ending; only with that do the records count."""
        digest = None
        try:
            if ending.record:
                digest = self._sent(ending, session)
                ending = ending.model_copy(update={"record": Path(ending.record).name})
        except LinkLostError:
            raise
        except (EtdeployError, OSError) as error:
            failure = failure_of(error, Workspace.default().root)
            changes = {"fate": Fate.FAILED, "record": None, "run_id": None, "failure": failure}
            ending = ending.model_copy(update=changes)
        said = ending.model_dump_json()
        self._link.ask(wire.ENDED, to_the_end=True, session=session, ending=said, digest=digest)

    def _sent(self, ending: AttemptResult, session: str) -> str:
        """Sends what belongs to a record, and returns the digest of its archive."""
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            archive = Path(folder) / "records.tar.gz"
            pack(self._records_of(str(ending.record)), archive)
            self._send(wire.key_of(ending), archive, session)
            return sha256_file(archive)

    def _send(self, key: wire.Key, archive: Path, session: str) -> None:
        """Sends an archive in chunks, from where the coordinator has it."""
        offset = 0
        with archive.open("rb") as stream:
            while data := _chunk(stream, offset):
                answer = self._link.ask(
                    wire.STORE, to_the_end=True,
                    session=session, key=list(key), offset=offset, data=data,
                )  # fmt: skip
                if "refused" in answer:
                    raise DeviceError(f"the coordinator took no records: {answer['refused']}")
                offset = int(answer["have"])


def _chunk(stream: BinaryIO, offset: int) -> bytes:
    stream.seek(offset)
    return stream.read(wire.CHUNK_BYTES)


def _ending_of(order: Order, fate: Fate, failure: AttemptFailure) -> AttemptResult:
    return AttemptResult(
        visit=order.visit,
        attempt=order.attempt,
        identity=order.offer.identity,
        host=order.offer.host,
        fate=fate,
        failure=failure,
    )
