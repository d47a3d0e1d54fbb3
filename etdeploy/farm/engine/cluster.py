"""The engine over several hosts: Dask's scheduler in a thread of the coordinator's process.

An order is a task that needs the resource that its device is. Dask gives it to the host that has
that; gives it again if the host's connection was lost and is back; and fails it if the host stays
away for longer than the grace period, or was lost several times with it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import queue
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from distributed import Client, wait
from distributed.scheduler import KilledWorker, NoValidWorkerError, NoWorkerError

from etdeploy.core.errors import DeviceError, EtdeployError, UsageError
from etdeploy.farm.engine import wire
from etdeploy.farm.engine.settings import (
    FarmSecurity,
    apply_settings,
    own_address,
    parse_address,
    require_safe,
    security_of,
)
from etdeploy.farm.engine.transfer import Key, Records, ServedFiles, key_of, safe_relative
from etdeploy.farm.engine.wire import DeliveredResult, FarmScheduler, resource
from etdeploy.farm.model import AttemptFailure, AttemptResult, AvailableDevice, Fate, Order
from etdeploy.farm.spec.model import Hosts
from etdeploy.farm.work.artifact import BUG, host_failure

GRACE_S = 15.0
"""How long a host may be gone before its attempts count as lost."""

# How long a host may take to end a child process after it was told to.
_CANCEL_S = 30.0
# How long attempts that were cancelled at the end of a night may take to end.
_CLOSING_S = 15.0
_RECOVERY_S = 300.0
_GONE = "the host, or the process of etdeploy on it, is gone"

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(eq=False)
class Underway:
    """An order that has not ended."""

    order: Order
    task: asyncio.Task[None] | None = None
    reason: str = _GONE


def _in_loop(
    method: Callable[Concatenate[ClusterEngine, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[ClusterEngine, P], T]:
    """Let other threads call a coroutine of the engine, and wait for it."""

    def run(self: ClusterEngine, /, *args: P.args, **kwargs: P.kwargs) -> T:
        work = method(self, *args, **kwargs)
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    return run


class ClusterEngine:
    """Brings orders to devices of several hosts.

    Attributes:
        address: Where hosts on this machine reach the scheduler.

    """

    def __init__(self, hosts: Hosts, results: Path, grace_s: float = GRACE_S) -> None:
        require_safe(hosts.listen, hosts.tls)
        security = security_of(hosts.tls)
        apply_settings()
        self._grace_s = grace_s
        self._ended: queue.SimpleQueue[AttemptResult] = queue.SimpleQueue()
        self._artifacts = ServedFiles()
        self._records = Records(results)
        self._underway: dict[Key, Underway] = {}
        self._offers: dict[str, tuple[AvailableDevice, ...]] = {}
        self._answers: dict[str, str] = {}
        self._numbers = itertools.count()
        self._scheduler: FarmScheduler
        self._client: Client
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="farm", daemon=True)
        self._thread.start()
        try:
            self.address = self._open(hosts.listen, security)
        except BaseException:
            self._end_loop()
            raise

    def ended(self, wait_s: float) -> Sequence[AttemptResult]:
        """Attempts that ended since the last call; waits so long for the first."""
        found = []
        try:
            found.append(self._ended.get(timeout=max(0.0, wait_s)))
            while True:
                found.append(self._ended.get_nowait())
        except queue.Empty:
            return found

    def close(self) -> None:
        """Cancel running attempts and stop the scheduler; `ended` may be called once more."""
        if self._closed:
            return
        self._closed = True
        try:
            self._close()
        finally:
            self._end_loop()

    def _end_loop(self) -> None:
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # What follows runs in the loop, with Dask's scheduler and client.

    @_in_loop
    async def _open(self, listen: str, security: FarmSecurity) -> str:
        """Start to listen, and return the address."""
        protocol, host, port = parse_address(listen)
        _require_free(listen, host, port)
        answers: dict[str, Callable[..., Any]]
        answers = {wire.HELLO: self._hello, wire.READ: self._read, wire.STORE: self._store}
        self._scheduler = FarmScheduler(
            (protocol, host, port), security, answers, self._hear, self._grace_s
        )
        await self._scheduler
        address = f"{protocol}://{own_address(host)}:{self._scheduler.port}"
        self._client = await Client(
            address, security=security, asynchronous=True, set_as_default=False
        )
        return address

    @_in_loop
    async def _close(self) -> None:
        for visit, _ in list(self._underway):
            self._cancel(visit)
        tasks = [each.task for each in self._underway.values() if each.task]
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSING_S)
        for each in list(self._underway.values()):
            _give_up(each, "the night was stopped")
        await asyncio.gather(*tasks)
        await self._client.close()
        await self._scheduler.close()
        self._records.clear()

    @_in_loop
    async def offers(self) -> list[AvailableDevice]:
        """All devices of all connected hosts; one that two hosts have is in the list twice."""
        workers = self._scheduler.workers
        return [o for address, found in self._offers.items() if address in workers for o in found]

    @_in_loop
    async def start(self, order: Order) -> None:
        """Begin an attempt on the device's host."""
        device = resource(order.offer.identity, order.offer.host)
        for each in self._underway.values():
            offer = each.order.offer
            is_same = key_of(each.order) == key_of(order)
            if is_same or device == resource(offer.identity, offer.host):
                raise ValueError(f"{order.offer.name} on {order.offer.host} has an order already")
        self._artifacts.add(order.artifact)
        underway = self._underway[key_of(order)] = Underway(order)
        underway.task = asyncio.create_task(self._follow(underway, device))

    @_in_loop
    async def cancel(self, visit: str) -> None:
        """Have the host cancel an attempt; it is lost if the host does not answer."""
        self._cancel(visit)

    def _cancel(self, visit: str) -> None:
        for (of, _), each in self._underway.items():
            address = self._scheduler.aliases.get(each.order.offer.host)
            if of == visit and address:
                message = {"op": wire.CANCEL, "key": list(key_of(each.order))}
                self._scheduler.worker_send(address, message)
            if of == visit:
                reason = "the host did not end the attempt"
                asyncio.get_running_loop().call_later(_CANCEL_S, _give_up, each, reason)

    @_in_loop
    async def recover(self, offer: AvailableDevice, step: str) -> AvailableDevice:
        """Have the host take a step of recovery."""
        address = self._scheduler.aliases.get(offer.host)
        if address is None:
            raise DeviceError(f"the host {offer.host} is not connected", place=offer.name)
        key = f"{step} {offer.identity} {next(self._numbers)}"
        task = self._run(wire.take_step, key, offer.model_dump_json(), step, workers=[address])
        try:
            return AvailableDevice.model_validate_json(await asyncio.wait_for(task, _RECOVERY_S))
        except (asyncio.TimeoutError, KilledWorker, NoValidWorkerError, NoWorkerError) as error:
            raise DeviceError(f"the host {offer.host} did not answer", place=offer.name) from error

    async def _follow(self, underway: Underway, device: str) -> None:
        order, begun_s = underway.order, time.monotonic()
        failure, fate = None, Fate.LOST
        try:
            key = f"{order.visit}#{order.attempt}#{next(self._numbers)}"
            said = await self._run(
                wire.perform, key, order.model_dump_json(), resources={device: 1}
            )
            delivery = DeliveredResult.model_validate_json(said)
            ending = await asyncio.to_thread(self._store_records, delivery)
        except (asyncio.CancelledError, KilledWorker, NoValidWorkerError, NoWorkerError):
            failure = host_failure(underway.reason, order.offer.host)
        except Exception as error:
            message, fate = f"{type(error).__name__}: {error}", Fate.FAILED
            failure = AttemptFailure(kind=BUG, exit_code=9, message=message, place=order.offer.host)
        finally:
            del self._underway[key_of(order)]
        if failure:
            self._records.drop(key_of(order))
            ending = order.end(fate, failure, begun_s)
        self._ended.put(ending)

    async def _run(self, function: Callable[..., Any], key: str, *said: str, **where: Any) -> str:
        """Run a task, and return what it answered: the answer comes before the task's end."""
        future = self._client.submit(function, key, *said, key=key, pure=False, **where)
        try:
            with self._client.as_current():
                over = wait([future])
            await over
            if future.status == "error":
                raise await future.exception()
            return self._answers.pop(key)
        finally:
            self._answers.pop(key, None)
            future.release()

    def _store_records(self, delivery: DeliveredResult) -> AttemptResult:
        """The ending with its record on this machine's disk."""
        ending = delivery.ending
        if delivery.digest is None:
            return ending
        try:
            folder = self._records.finish(key_of(ending), delivery.digest)
            record = ending.record and str(folder / safe_relative(ending.record))
            return ending.model_copy(update={"record": record})
        except (EtdeployError, OSError) as error:
            failure = host_failure(f"the records of {ending.host} could not be kept: {error}")
            changes = {"fate": Fate.FAILED, "record": None, "run_id": None, "failure": failure}
            return ending.model_copy(update=changes)

    # What hosts say and ask: plain values, so that nothing is pickled.

    def _hear(self, worker: str, topic: str, message: Any) -> None:
        if topic == wire.ANSWER:
            self._answers[message["key"]] = message["answer"]
        else:
            self._offers = {a: o for a, o in self._offers.items() if a in self._scheduler.workers}
            self._offers[worker] = tuple(map(AvailableDevice.model_validate_json, message))

    async def _hello(self, host: str, versions: str) -> str:
        """Compare versions before anything else is read: the rest may have another form."""
        theirs = wire.Versions.model_validate(json.loads(versions))
        if differing := wire.mismatch(theirs, wire.own_versions()):
            refused, remedy = differing
            return wire.Welcome(refused=refused, remedy=remedy, final=True).model_dump_json()
        if host in self._scheduler.aliases:
            return wire.Welcome(
                refused=f"another host is connected as {host!r}",
                remedy="If it is this one, from before, wait until its connection has ended. "
                "Else: --name OTHER_NAME",
            ).model_dump_json()
        return wire.Welcome().model_dump_json()

    async def _read(self, worker: str, digest: str, offset: int) -> dict[str, Any]:
        if worker not in self._scheduler.workers:
            return {"refused": "only hosts of the farm may ask"}
        try:
            return {"data": await asyncio.to_thread(self._artifacts.read, digest, offset)}
        except (EtdeployError, OSError) as error:
            return {"refused": str(error)}

    async def _store(self, worker: str, key: list[Any], offset: int, data: bytes) -> dict[str, Any]:
        """Take a chunk of an attempt's records; in the loop, so that chunks keep their order."""
        attempt = (str(key[0]), int(key[1]))
        underway, host = self._underway.get(attempt), self._scheduler.workers.get(worker)
        if underway is None or host is None or host.name != underway.order.offer.host:
            return {"refused": "the attempt is not waited for any more"}
        try:
            return {"have": self._records.store(attempt, offset, data)}
        except (EtdeployError, OSError) as error:
            return {"refused": str(error)}


async def _cancel_others() -> None:
    """End what Dask left in the loop, so that nothing is destroyed while it waits."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_default_executor()


def _give_up(underway: Underway, reason: str) -> None:
    if underway.task and not underway.task.done():
        underway.reason = reason
        underway.task.cancel()


def _require_free(listen: str, host: str, port: int) -> None:
    """Try the address first: after a failure, Dask's scheduler leaves sockets behind."""
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
