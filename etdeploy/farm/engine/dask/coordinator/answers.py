"""The coordinator's side in the scheduler's thread: answers hosts, and sends orders to them."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from distributed import Client

from etdeploy.core.errors import DeviceError, EtdeployError, UsageError
from etdeploy.farm.engine.dask import wire
from etdeploy.farm.engine.dask.archive import safe_relative
from etdeploy.farm.engine.dask.coordinator.hosts import Hosts
from etdeploy.farm.engine.dask.coordinator.orders import Orders
from etdeploy.farm.engine.dask.coordinator.scheduler import FarmScheduler, Registry
from etdeploy.farm.engine.dask.coordinator.shelves import Parcels, Records
from etdeploy.farm.engine.dask.settings import FarmSecurity, own_address, parse_address
from etdeploy.farm.model import Ending, Fate, Offer, Order
from etdeploy.farm.work.failures import host_failure

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

    def __init__(self, results: Path, grace_s: float, ended: Callable[[Ending], None]) -> None:
        self._grace_s = grace_s
        self._hosts = Hosts()
        self._parcels = Parcels()
        self._records = Records(results)
        self._orders = Orders(self._hosts, grace_s, ended)
        self._recoveries: dict[int, tuple[asyncio.Future[Offer], Callable[[str], None]]] = {}
        self._numbers = itertools.count()
        self._scheduler: FarmScheduler
        self._client: Client

    async def open(self, listen: str, security: FarmSecurity) -> str:
        """Starts to listen, and returns the address.

        Raises:
            UsageError: Nothing can listen there.
        """
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
        """Has the host take a step of the recovery ladder.

        Raises:
            DeviceError: The host is gone, or does not answer.
        """
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
        said = Ending.model_validate_json(ending)
        underway = self._orders.find(wire.key_of(said), session)
        if underway is None:
            self._records.drop(wire.key_of(said))
            return False
        kept = await asyncio.to_thread(self._kept, said, digest)
        if not underway.ending.done():
            underway.ending.set_result(kept)
        return True

    def _kept(self, ending: Ending, digest: str | None) -> Ending:
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
        said = wire.Recovered.model_validate_json(recovered)
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
