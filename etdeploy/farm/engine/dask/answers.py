"""The coordinator's side in the scheduler's thread: answers hosts, and sends orders to them."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import re
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from distributed import Client
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.scheduler import Scheduler
from tornado.ioloop import PeriodicCallback

from etdeploy.core.errors import DeviceError, EtdeployError, UsageError
from etdeploy.core.files.basic import open_regular, remove_tree
from etdeploy.core.hashing import sha256_file
from etdeploy.farm.engine.certificates import revoked_serials
from etdeploy.farm.engine.dask import wire
from etdeploy.farm.engine.dask.orders import HostRegistry, Orders
from etdeploy.farm.engine.dask.settings import FarmSecurity, own_address, parse_address
from etdeploy.farm.engine.dask.wire import (
    ABOUT,
    CHUNK_BYTES,
    LIMIT_BYTES,
    About,
    Key,
    safe_relative,
    unpack,
)
from etdeploy.farm.model import AttemptResult, Fate, Offer, Order, Parcel
from etdeploy.farm.work.parcel import host_failure

# How long attempts that were cancelled at the end of a night may take to end.
_CLOSING_S = 15.0
_RECOVERY_S = 300.0


class Coordinator:
    """Runs in one event loop, with Dask's scheduler and client.

    Args:
        results: The folder for records of hosts.
        grace_s: How long a host may be gone before its attempts are lost.
        ended: Called once for each order.
    """

    def __init__(
        self, results: Path, grace_s: float, ended: Callable[[AttemptResult], None]
    ) -> None:
        self._grace_s = grace_s
        self._hosts = HostRegistry()
        self._parcels = ServedFiles()
        self._records = Records(results)
        self._orders = Orders(self._hosts, grace_s, ended)
        self._recoveries: dict[int, tuple[asyncio.Future[Offer], Callable[[str], None]]] = {}
        self._numbers = itertools.count()
        self._scheduler: FarmScheduler
        self._client: Client

    async def open(self, listen: str, security: FarmSecurity) -> str:
        """Starts to listen, and returns the address."""
        protocol, host, port = parse_address(listen)
        _require_free(listen, host, port)
        self._scheduler = FarmScheduler(
            protocol,
            host,
            port,
            security,
            {
                wire.HELLO: self._hello,
                wire.ANNOUNCE: self._announce,
                wire.READ: self._read,
                wire.STORE: self._store,
                wire.ENDED: self._end,
                wire.TOLD: self._tell,
                wire.RECOVERED: self._recovered,
            },
            Registry(self._hosts.came, self._hosts.went),
            self._hosts.is_welcome,
        )
        await self._scheduler
        address = f"{protocol}://{own_address(host)}:{self._scheduler.port}"
        self._client = await Client(
            address, security=security, asynchronous=True, set_as_default=False
        )
        return address

    async def close(self) -> None:
        """Ends what is under way, and the connections."""
        for visit in self._orders.visits():
            await self.cancel(visit)
        await self._orders.close(_CLOSING_S)
        await self._client.close()
        await self._scheduler.close()
        self._records.clear()

    async def offers(self) -> list[Offer]:
        """What the hosts offer now."""
        return list(self._hosts.offers())

    async def start(self, order: Order) -> None:
        """Begins an attempt."""
        self._parcels.add(order.parcel)
        self._orders.start(self._client, order)

    async def cancel(self, visit: str) -> None:
        """Has the host end what is under way for a visit."""
        for order in self._orders.of_visit(visit):
            self._send(order.offer.host, wire.CANCEL, key=list(wire.key_of(order)))
        self._orders.cancelled(visit)

    async def recover(self, offer: Offer, step: str, tell: Callable[[str], None]) -> Offer:
        """Has the host take a step of the recovery ladder."""
        number = next(self._numbers)
        future: asyncio.Future[Offer] = asyncio.get_running_loop().create_future()
        self._recoveries[number] = future, tell
        try:
            asked = wire.RecoveryStep(number=number, offer=offer, step=step).model_dump_json()
            if not self._send(offer.host, wire.RECOVER, step=asked):
                raise DeviceError(f"the host {offer.host} is not connected", place=offer.name)
            return await asyncio.wait_for(future, _RECOVERY_S)
        except asyncio.TimeoutError as error:
            raise DeviceError(f"the host {offer.host} did not answer", place=offer.name) from error
        finally:
            del self._recoveries[number]

    def _send(self, host: str, op: str, **message: Any) -> bool:
        address = self._hosts.worker(host)
        if address is None:
            return False
        self._scheduler.worker_send(address, {"op": op, **message})
        return True

    # Answers to hosts: each takes and gives plain values, so that nothing is pickled.

    async def _hello(self, hello: str) -> str:
        """Compares versions before anything else is read: the rest may have another form."""
        versions = wire.Versions.model_validate(json.loads(hello)["versions"])
        if differing := wire.mismatch(versions, wire.own_versions()):
            refused, remedy = differing
            return wire.Welcome(refused=refused, remedy=remedy, final=True).model_dump_json()
        said = wire.Hello.model_validate_json(hello)
        wanted = tuple(key for key in said.running if self._orders.find(key, said.session))
        answer = self._hosts.welcome(said)
        return answer.model_copy(
            update={"keep_s": self._grace_s, "wanted": wanted}
        ).model_dump_json()

    async def _announce(self, announcement: str) -> None:
        self._hosts.announced(wire.Announcement.model_validate_json(announcement))

    async def _read(self, session: str, digest: str, offset: int) -> dict[str, Any]:
        try:
            self._require_host(session)
            return {"data": await asyncio.to_thread(self._parcels.read, digest, offset)}
        except (EtdeployError, OSError) as error:
            return {"refused": str(error)}

    async def _store(
        self, session: str, key: list[Any], offset: int, data: bytes
    ) -> dict[str, Any]:
        """Takes a chunk of an attempt's records; in the loop, so that chunks keep their order."""
        attempt = (str(key[0]), int(key[1]))
        if self._orders.find(attempt, session) is None:
            return {"refused": "the attempt is not waited for any more"}
        try:
            return {"have": self._records.store(attempt, offset, data)}
        except (EtdeployError, OSError) as error:
            return {"refused": str(error)}

    async def _end(self, session: str, ending: str, digest: str | None) -> bool:
        """Takes the ending of an attempt; one that is not waited for any more is dropped."""
        said = AttemptResult.model_validate_json(ending)
        underway = self._orders.find(wire.key_of(said), session)
        if underway is None:
            self._records.drop(wire.key_of(said))
            return False
        kept = await asyncio.to_thread(self._kept, said, digest)
        if not underway.ending.done():
            underway.ending.set_result(kept)
        return True

    def _kept(self, ending: AttemptResult, digest: str | None) -> AttemptResult:
        """The ending with its record on this machine's disk."""
        if digest is None:
            return ending
        try:
            folder = self._records.finish(wire.key_of(ending), digest)
            record = ending.record and str(folder / safe_relative(ending.record))
            return ending.model_copy(update={"record": record})
        except (EtdeployError, OSError) as error:
            message = f"the records of {ending.host} could not be kept: {error}"
            failure = host_failure(message)
            changes = {"fate": Fate.FAILED, "record": None, "run_id": None, "failure": failure}
            return ending.model_copy(update=changes)

    async def _tell(self, number: int, text: str) -> None:
        if number in self._recoveries:
            self._recoveries[number][1](text)

    async def _recovered(self, recovered: str) -> None:
        said = wire.RecoveryReply.model_validate_json(recovered)
        if said.number in self._recoveries and not self._recoveries[said.number][0].done():
            self._recoveries[said.number][0].set_result(said.offer)

    def _require_host(self, session: str) -> None:
        if not self._hosts.knows(session):
            raise UsageError("only hosts of the farm may ask")


def _require_free(listen: str, host: str, port: int) -> None:
    """Tries the address first: after a failure, Dask's scheduler leaves sockets behind."""
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    with socket.socket(family) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host.strip("[]"), port))
        except OSError as error:
            raise UsageError(
                f"the scheduler cannot listen: {error.strerror or error}",
                place=listen,
                remedy="Is another night running, or is the address not of this machine?",
            ) from error


_INCOMING = ".incoming"
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}")


class ServedFiles:
    """The files of parcels by digest: the only ones that a host may read."""

    def __init__(self) -> None:
        self._paths: dict[str, Path] = {}

    def add(self, parcel: Parcel) -> None:
        """Lets hosts read the files of a parcel."""
        for name, digest in parcel.files.items():
            self._paths[digest] = Path(parcel.folder) / safe_relative(name)

    def read(self, digest: str, offset: int) -> bytes:
        """At most a chunk of a file; empty at its end."""
        path = self._paths.get(digest)
        if path is None or offset < 0:
            raise UsageError("only files of parcels can be read")
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
        """Appends a chunk if it is the next one."""
        path = self._incoming(key)
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
        """Unpacks an archive that is complete."""
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
        """Deletes what has arrived of an archive."""
        self._incoming(key).unlink(missing_ok=True)

    def clear(self) -> None:
        """Deletes what was cut."""
        remove_tree(self._results / _INCOMING)

    def _incoming(self, key: Key) -> Path:
        return self._results / _INCOMING / f"{_folder_name(key)}.tar.gz"


def _folder_name(key: Key) -> str:
    visit, attempt = key
    plain = visit if _PLAIN.fullmatch(visit) else hashlib.sha256(visit.encode()).hexdigest()[:16]
    return f"{plain}-attempt-{attempt}"


# How often to look for a new list of revoked certificates.
_REVOKED_MS = 2000


class Registry(SchedulerPlugin):  # type: ignore[misc]
    """Tells which Workers come and go."""

    name = "etdeploy-farm"

    def __init__(
        self, came: Callable[[About, str], None], went: Callable[[About, str], None]
    ) -> None:
        self._came, self._went = came, went
        self._known: dict[str, About] = {}

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        about = About.model_validate(scheduler.workers[worker].extra[ABOUT])
        self._known[worker] = about
        self._came(about, worker)

    def remove_worker(self, scheduler: Scheduler, worker: str, **_: Any) -> None:  # noqa: ARG002
        about = self._known.pop(worker, None)
        if about is not None:
            self._went(about, worker)


class FarmScheduler(Scheduler):  # type: ignore[misc]
    """A scheduler that answers hosts, and takes Workers of welcomed hosts only.

    Args:
        protocol: tls or tcp.
        host: The address to listen on.
        port: 0 for any that is free.
        security: The certificates.
        answers: What hosts may ask, by name.
        registry: Is told of Workers.
        welcomed: Whether a Worker belongs to a host that was welcomed.
    """

    def __init__(
        self,
        protocol: str,
        host: str,
        port: int,
        security: FarmSecurity,
        answers: Mapping[str, Callable[..., Any]],
        registry: Registry,
        welcomed: Callable[[About], bool],
    ) -> None:
        super().__init__(
            protocol=protocol,
            host=host,
            port=port,
            security=security,
            dashboard=False,
            plugins=[registry],
        )
        self.handlers.update(answers)
        self._welcomed = welcomed
        self._context: ssl.SSLContext | None = None
        self._read_list = ""
        if security.crl:
            check = PeriodicCallback(partial(self._drop_revoked, security.crl), _REVOKED_MS)
            self.periodic_callbacks["farm-revoked"] = check

    async def listen(self, *args: Any, **kwargs: Any) -> None:
        """Listens, and keeps what decides on new connections."""
        self._context = kwargs.get("ssl_context")
        await super().listen(*args, **kwargs)

    def _drop_revoked(self, crl: Path) -> None:
        """Uses a list that was replaced while the night runs; ends connections that it names."""
        try:
            digest = sha256_file(crl)
            if self._context is None or digest == self._read_list:
                return
            serials = revoked_serials(crl)
            self._context.load_verify_locations(crl)
        except (OSError, UsageError):
            return  # it is being copied
        self._read_list = digest
        for comm in list(self._comms):
            certificate = comm.extra_info.get("peercert") or {}
            if int(certificate.get("serialNumber", "0"), 16) in serials:
                comm.abort()

    def start_http_server(self, *_: Any, **__: Any) -> None:
        """Starts none: it would show the farm to the network without a certificate."""

    async def add_worker(self, comm: Any, *, extra: dict[str, Any], **rest: Any) -> None:
        try:
            welcome = self._welcomed(About.model_validate(extra.get(ABOUT)))
        except ValueError:
            welcome = False
        if welcome:
            await super().add_worker(comm, extra=extra, **rest)
            return
        message = "this scheduler takes Workers of `etdeploy farm worker` only"
        await comm.write({"status": "error", "message": message, "time": time.time()})
