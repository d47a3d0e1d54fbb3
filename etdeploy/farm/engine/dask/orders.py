"""Orders under way: each ends exactly once, whatever happens to the host that does it."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from distributed import Client, wait
from distributed.scheduler import KilledWorker, NoValidWorkerError

from etdeploy.farm.engine.dask.wire import (
    About,
    Announcement,
    Hello,
    Key,
    Welcome,
    key_of,
    perform,
    resource,
)
from etdeploy.farm.model import AttemptFailure, AttemptResult, Fate, Offer, Order
from etdeploy.farm.work.parcel import BUG, host_failure

_POLL_S = 0.1
# How long a host may take to end a child process after it was told to.
_CANCEL_S = 30.0


@dataclass(eq=False)
class Underway:
    """An order that has not ended.

    Attributes:
        order: What was asked for.
        session: The process of the host that got it; None until then.
        ending: What the host says at the end.
        begun_s: By this machine's monotonic clock: clocks of hosts are never compared.
    """

    order: Order
    session: str | None
    ending: asyncio.Future[AttemptResult]
    begun_s: float

    def lost(self, reason: str) -> AttemptResult:
        """The ending of an attempt of which nothing is known."""
        return self._end(Fate.LOST, host_failure(reason, self.order.offer.host))

    def failed(self, reason: str) -> AttemptResult:
        """The ending of an attempt that Dask or the coordinator could not bring to its end."""
        failure = AttemptFailure(kind=BUG, exit_code=9, message=reason, place=self.order.offer.host)
        return self._end(Fate.FAILED, failure)

    def _end(self, fate: Fate, failure: AttemptFailure) -> AttemptResult:
        order = self.order
        return AttemptResult(
            visit=order.visit,
            attempt=order.attempt,
            identity=order.offer.identity,
            host=order.offer.host,
            fate=fate,
            failure=failure,
            seconds=time.monotonic() - self.begun_s,
        )


class Orders:
    """Follows every order to its end. Only the scheduler's thread uses it.

    Args:
        hosts: Where their Workers are.
        grace_s: How long a host may be gone before its attempts are lost. A host that is back
            with the same process within that time goes on with them.
        ended: Called once for each order.
    """

    def __init__(
        self, hosts: HostRegistry, grace_s: float, ended: Callable[[AttemptResult], None]
    ) -> None:
        self._hosts, self._grace_s, self._ended = hosts, grace_s, ended
        self._underway: dict[Key, Underway] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, client: Client, order: Order) -> None:
        """Begins an attempt."""
        self._require_free(order)
        loop = asyncio.get_running_loop()
        session = self._hosts.session(order.offer.host)
        underway = Underway(order, session, loop.create_future(), time.monotonic())
        self._underway[key_of(order)] = underway
        task = loop.create_task(self._follow(client, underway))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def find(self, key: Key, session: str) -> Underway | None:
        """The attempt, if it is waited for and that host's process got it."""
        underway = self._underway.get(key)
        if underway is None or underway.ending.done() or underway.session != session:
            return None
        return underway

    def of_visit(self, visit: str) -> list[Order]:
        """What is under way for a visit."""
        return [underway.order for key, underway in self._underway.items() if key[0] == visit]

    def cancelled(self, visit: str) -> None:
        """Declares a visit's attempts lost if the host does not end them soon."""
        loop = asyncio.get_running_loop()
        for key, underway in self._underway.items():
            if key[0] == visit:
                loop.call_later(_CANCEL_S, _give_up, underway, "the host did not end the attempt")

    def visits(self) -> list[str]:
        """All that have an attempt under way."""
        return [visit for visit, _ in self._underway]

    async def close(self, wait_s: float) -> None:
        """Waits for what was cancelled, and declares the rest lost."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=wait_s)
        for underway in self._underway.values():
            _give_up(underway, "the night was stopped")
        await asyncio.gather(*self._tasks)

    def _require_free(self, order: Order) -> None:
        for underway in self._underway.values():
            same = (underway.order.offer.identity, underway.order.offer.host) == (
                order.offer.identity,
                order.offer.host,
            )
            if same or key_of(underway.order) == key_of(order):
                raise ValueError(f"{order.offer.name} on {order.offer.host} has an order already")

    async def _follow(self, client: Client, underway: Underway) -> None:
        try:
            ending = await self._brought(client, underway)
        except Exception as error:
            ending = underway.failed(f"{type(error).__name__}: {error}")
        finally:
            del self._underway[key_of(underway.order)]
        self._ended(ending)

    async def _brought(self, client: Client, underway: Underway) -> AttemptResult:
        """Hands the order to the phone's Worker, again after each loss of the connection."""
        gone = None
        for number in itertools.count():
            address = await self._address(underway, gone)
            if address is None:
                break
            future = _submit(client, underway.order, address, number)
            problem = await _until(client, underway, future)
            if underway.ending.done():
                break
            if problem:
                return underway.failed(problem)
            gone = address
        return underway.ending.result() if underway.ending.done() else underway.lost(_GONE)

    async def _address(self, underway: Underway, gone: str | None) -> str | None:
        """Where the phone's Worker is; None if it stays away or its host's process has ended."""
        offer = underway.order.offer
        until_s = time.monotonic() + self._grace_s
        while time.monotonic() < until_s and not underway.ending.done():
            session = self._hosts.session(offer.host)
            underway.session = underway.session or session
            if session and session != underway.session:
                return None
            address = self._hosts.phone(offer.host, offer.identity)
            if address and address != gone:
                return address
            await asyncio.sleep(_POLL_S)
        return None


_GONE = "the host, or the process of etdeploy on it, is gone"


def _submit(client: Client, order: Order, address: str, number: int) -> Any:
    """Pins the order to one Worker; Dask may neither repeat it nor give it to another."""
    return client.submit(
        perform,
        order.model_dump_json(),
        key=f"{order.visit}#{order.attempt}#{number}",
        workers=[address],
        allow_other_workers=False,
        resources={resource(order.offer.identity): 1},
        retries=0,
        pure=False,
    )


async def _until(client: Client, underway: Underway, future: Any) -> str | None:
    """Waits until the ending is there or the task is over."""
    with client.as_current():
        over = asyncio.ensure_future(wait([future]))
    try:
        await asyncio.wait({over, underway.ending}, return_when=asyncio.FIRST_COMPLETED)
        if underway.ending.done() or future.status != "error":
            return None
        error = await future.exception()
        if isinstance(error, KilledWorker | NoValidWorkerError):
            return None
        return f"{type(error).__name__}: {error}"
    finally:
        over.cancel()
        future.release()


def _give_up(underway: Underway, reason: str) -> None:
    if not underway.ending.done():
        underway.ending.set_result(underway.lost(reason))


@dataclass
class Host:
    """A host that was welcomed.

    Attributes:
        session: Of its process.
        worker: Address of the Worker that stands for it; it is connected as long as that is there.
        phones: Addresses of its phones' Workers by identity.
        offers: What it announced last.
    """

    session: str
    worker: str | None = None
    phones: dict[str, str] = field(default_factory=dict)
    offers: tuple[Offer, ...] = ()


class HostRegistry:
    """All hosts by name. Only the scheduler's thread uses it."""

    def __init__(self) -> None:
        self._hosts: dict[str, Host] = {}

    def welcome(self, hello: Hello) -> Welcome:
        """Takes a host in, unless another process has its name."""
        known = self._hosts.get(hello.host)
        if known and known.worker and known.session != hello.session:
            return Welcome(
                refused=f"another host is connected as {hello.host!r}",
                remedy="If it is this one, from before, wait until its connection has ended. "
                "Else: --name OTHER_NAME",
            )
        if known is None or known.session != hello.session:
            self._hosts[hello.host] = Host(hello.session)
        return Welcome()

    def is_welcome(self, about: About) -> bool:
        """Whether a Worker belongs to a host that was taken in."""
        return self.of(about.session, about.host) is not None

    def of(self, session: str, host: str) -> Host | None:
        """The host, if it is still that process."""
        known = self._hosts.get(host)
        return known if known and known.session == session else None

    def knows(self, session: str) -> bool:
        """Whether some host has that session."""
        return any(host.session == session for host in self._hosts.values())

    def session(self, host: str) -> str | None:
        """The session of a connected host."""
        known = self._hosts.get(host)
        return known.session if known and known.worker else None

    def came(self, about: About, address: str) -> None:
        """Notes a Worker."""
        host = self.of(about.session, about.host)
        if host and about.identity:
            host.phones[about.identity] = address
        elif host:
            host.worker = address

    def went(self, about: About, address: str) -> None:
        """Forgets a Worker, and the host with the one that stands for it."""
        host = self.of(about.session, about.host)
        if host is None:
            return
        if about.identity and host.phones.get(about.identity) == address:
            del host.phones[about.identity]
        elif host.worker == address:
            del self._hosts[about.host]

    def announced(self, announcement: Announcement) -> None:
        """Notes what a host offers."""
        for host in self._hosts.values():
            if host.session == announcement.session:
                host.offers = announcement.offers

    def offers(self) -> Sequence[Offer]:
        """What can be used now, or says why it cannot."""
        return [
            offer
            for host in self._hosts.values()
            if host.worker
            for offer in host.offers
            if offer.problem or offer.identity in host.phones
        ]

    def phone(self, host: str, identity: str) -> str | None:
        """The address of a phone's Worker."""
        known = self._hosts.get(host)
        return known.phones.get(identity) if known and known.worker else None

    def worker(self, host: str) -> str | None:
        """The address of the Worker that stands for a host."""
        known = self._hosts.get(host)
        return known.worker if known else None
