"""What a host does for the coordinator: an attempt with its files, and steps of recovery."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from etdeploy.cache.folder import limit_bytes
from etdeploy.cache.tidy import keep_below
from etdeploy.cache.workspace import Workspace
from etdeploy.core import cancel
from etdeploy.core.errors import DeviceError, EtdeployError, Interrupted
from etdeploy.core.files.disk import full_disk, no_room_in
from etdeploy.core.hashing import sha256_file
from etdeploy.farm.engine.dask import wire
from etdeploy.farm.engine.dask.archive import pack
from etdeploy.farm.engine.dask.fetch import obtain_parcel
from etdeploy.farm.engine.dask.link import Link, LinkLostError
from etdeploy.farm.model import Ending, Failure, Fate, Offer, Order


class Attempting(Protocol):
    """`etdeploy.farm.work.child.run_attempt`: an attempt in a child process."""

    def __call__(
        self,
        order: Order,
        parcel_folder: Path,
        output: Path,
        limit_s: float,
        cancelled: cancel.Flag,
    ) -> Ending: ...


@dataclass(frozen=True)
class Parts:
    """What a host does; tests put in their own.

    Attributes:
        plugged: The devices that are there now; those with these identities are left alone.
        attempt: Does an order in a child process.
        recover: Takes a step of the recovery ladder.
    """

    plugged: Callable[[Collection[str]], Sequence[Offer]]
    attempt: Attempting
    recover: Callable[[Offer, str, Callable[[str], None]], Offer]


class HostWork:
    """Does what the coordinator asks; each call in a thread of its own.

    Args:
        folder: For files of attempts.
        parts: What is done.
        link: To the coordinator.
    """

    def __init__(self, folder: Path, parts: Parts, link: Link) -> None:
        self._folder, self._parts, self._link = folder, parts, link

    def do(self, order: Order, flag: cancel.Flag, session: str) -> None:
        """Does an order and delivers its ending; what is not wanted any more is dropped."""
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        begun_s = time.monotonic()
        try:
            ending = self._ending(order, folder, flag, session)
        except LinkLostError:
            return
        except (Interrupted, EtdeployError, OSError) as error:
            ending = _failed(order, error)
        except Exception as error:  # a bug of ours must not leave the coordinator waiting
            failure = Failure(kind="bug", exit_code=9, message=f"{type(error).__name__}: {error}")
            ending = _ending_of(order, Fate.FAILED, failure)
        try:
            seconds = ending.seconds or time.monotonic() - begun_s
            self._deliver(ending.model_copy(update={"seconds": seconds}), folder, session)
        except (EtdeployError, OSError):
            return
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def recover(self, step: wire.RecoveryStep) -> None:
        """Takes a step of the recovery ladder and tells how it went."""

        def tell(text: str) -> None:
            self._link.ask(wire.TOLD, number=step.number, text=text)

        try:
            offer = self._parts.recover(step.offer, step.step, tell)
        except EtdeployError as error:
            changes = {"problem": error.message, "remedy": error.remedy or ""}
            offer = step.offer.model_copy(update=changes)
        answer = wire.Recovered(number=step.number, offer=offer)
        self._link.ask(wire.RECOVERED, recovered=answer.model_dump_json())

    def _ending(self, order: Order, folder: Path, flag: cancel.Flag, session: str) -> Ending:
        # One for each attempt: what it uses is free to be removed when it has ended.
        workspace = Workspace.default()
        with workspace.in_use():
            parcel = obtain_parcel(
                order.parcel, workspace, lambda *what: self._read(session, *what)
            )
            output = folder / "output"
            output.mkdir()
            ending = self._parts.attempt(order, parcel, output, order.limit_s, flag)
        if limit := limit_bytes():
            keep_below(workspace, limit)
        return ending

    def _read(self, session: str, digest: str, offset: int) -> bytes:
        answer = self._link.ask(wire.READ, session=session, digest=digest, offset=offset)
        if "data" not in answer:
            raise DeviceError(f"the coordinator gives no file: {answer['refused']}")
        return bytes(answer["data"])

    def _deliver(self, ending: Ending, folder: Path, session: str) -> None:
        """Sends the records, then the ending; only with that do the records count."""
        digest = None
        if ending.record:
            output = (folder / "output").resolve()
            record = Path(ending.record).resolve().relative_to(output).as_posix()
            ending = ending.model_copy(update={"record": record})
            archive = folder / "records.tar.gz"
            pack(output, archive)
            digest = sha256_file(archive)
            try:
                if not self._send(wire.key_of(ending), archive, session):
                    return
            except DeviceError as error:
                if isinstance(error, LinkLostError):
                    raise
                changes = {"fate": Fate.FAILED, "record": None, "run_id": None}
                failure = Failure(kind=error.kind, exit_code=error.exit_code, message=str(error))
                ending = ending.model_copy(update={**changes, "failure": failure})
                digest = None
        said = ending.model_dump_json()
        self._link.ask(wire.ENDED, to_the_end=True, session=session, ending=said, digest=digest)

    def _send(self, key: wire.Key, archive: Path, session: str) -> bool:
        """Sends an archive in chunks, from where the coordinator has it; False if unwanted."""
        offset = 0
        with archive.open("rb") as stream:
            while True:
                stream.seek(offset)
                if not (data := stream.read(wire.CHUNK_BYTES)):
                    return True
                answer = self._link.ask(
                    wire.STORE, to_the_end=True,
                    session=session, key=list(key), offset=offset, data=data,
                )  # fmt: skip
                if answer.get("unwanted"):
                    return False
                if "refused" in answer:
                    raise DeviceError(f"the coordinator took no records: {answer['refused']}")
                offset = int(answer["have"])


def _failed(order: Order, error: Exception) -> Ending:
    """The ending of an attempt that could not be made."""
    if isinstance(error, Interrupted):
        failure = Failure(kind="interrupted", exit_code=130, message="the attempt was stopped")
        return _ending_of(order, Fate.PUT_OFF, failure)
    if full := no_room_in(error):
        error = full_disk(full, Workspace.default().root)
    if isinstance(error, EtdeployError):
        failure = Failure(
            kind=error.kind,
            exit_code=error.exit_code,
            message=error.message,
            place=error.place,
            remedy=error.remedy,
        )
    else:
        failure = Failure(kind="device", exit_code=6, message=str(error))
    return _ending_of(order, Fate.FAILED, failure)


def _ending_of(order: Order, fate: Fate, failure: Failure) -> Ending:
    return Ending(
        visit=order.visit,
        attempt=order.attempt,
        identity=order.offer.identity,
        host=order.offer.host,
        fate=fate,
        failure=failure,
    )
