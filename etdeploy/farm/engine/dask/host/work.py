"""What a host does for the coordinator: an attempt with its files, and steps of recovery."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from etdeploy.cache.folder import limit_bytes
from etdeploy.cache.tidy import keep_below
from etdeploy.cache.workspace import Workspace
from etdeploy.core import cancel
from etdeploy.core.errors import DeviceError, EtdeployError, Interrupted
from etdeploy.core.files.leftovers import remove_tree
from etdeploy.core.hashing import sha256_file
from etdeploy.farm.engine.dask import wire
from etdeploy.farm.engine.dask.host.link import CoordinatorConnection, LinkLostError, obtain_parcel
from etdeploy.farm.engine.dask.wire import pack
from etdeploy.farm.model import AttemptFailure, AttemptResult, Fate, Offer, Order
from etdeploy.farm.work.failures import failure_of


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
