"""A host of the farm, put together: its devices, its child processes, its connection."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from distributed.comm.core import FatalCommClosedError
from distributed.core import Status, rpc
from distributed.security import Security

from etdeploy.cache.folder import CacheKind
from etdeploy.cache.workspace import Workspace
from etdeploy.core import cancel
from etdeploy.core.errors import DeviceError, EtdeployError, UsageError
from etdeploy.core.files.basic import sweep, working_folder
from etdeploy.farm.engine.certificates import check_certificate
from etdeploy.farm.engine.dask import wire
from etdeploy.farm.engine.dask.host.link import (
    CoordinatorConnection,
    HostDependencies,
    HostWork,
    sweep_parts,
)
from etdeploy.farm.engine.dask.settings import apply_settings, require_safe, security_of
from etdeploy.farm.engine.dask.wire import FarmWorker, Key, key_of
from etdeploy.farm.model import Offer, Order
from etdeploy.farm.spec.model import Tls


def serve_host(
    name: str,
    scheduler: str,
    tls: Tls | None,
    parts: Callable[[Workspace, Path], HostDependencies],
    tell: Callable[[str], None],
    *,
    list_every_s: float = 3.0,
) -> None:
    """Offers devices to the coordinator of each night, until this process is asked to stop.

    Args:
        name: Of this host in the farm.
        scheduler: tls://HOST:PORT of the coordinator, or tcp://HOST:PORT.
        tls: The certificates.
        parts: Gives what is done here, with the cache and a folder for records.
        tell: Shows the user a line.
        list_every_s: How often to look for devices.

    Raises:
        UsageError: The address or the certificates do not work, or the coordinator has another
            version.
    """
    require_safe(scheduler, tls)
    security = security_of(tls)
    if tls and (warning := check_certificate(tls)):
        tell(warning)
    apply_settings()
    workspace = Workspace.opened()
    fetched = workspace.folder(CacheKind.FETCHED)
    fetched.mkdir(exist_ok=True)
    sweep(fetched)
    sweep_parts(workspace)
    # A name that a later start knows to sweep, if this one is killed.
    with working_folder(fetched, ".staging-") as folder:
        site = Site(name, scheduler, security, folder, tell, list_every_s)
        asyncio.run(Agent(site, parts(workspace, folder)).run())


_POLL_S = 0.2
# More Workers that register at once would exceed the time that each of them has.
_AT_ONCE = 16
_LIST_EVERY_S = 3.0
_LONGEST_PAUSE_S = 15.0
_ANSWER_S = 20.0
# How long attempts may take to end when this process is stopped.
_STOPPING_S = 15.0


class HostRejectedError(DeviceError):
    """The coordinator does not take this host now."""


@dataclass(frozen=True)
class Site:
    """A host of the farm.

    Attributes:
        name: Of the host.
        scheduler: Address of the coordinator.
        security: The certificates.
        folder: For what Dask and attempts write; it is removed by whoever made it.
        tell: Shows the user a line.
        list_every_s: How often to look for devices.
    """

    name: str
    scheduler: str
    security: Security
    folder: Path
    tell: Callable[[str], None]
    list_every_s: float = _LIST_EVERY_S


@dataclass
class Agent:
    """Connects to the coordinator of each night, and stays while there is none.

    Attributes:
        site: The host.
        parts: What it does there.
    """

    site: Site
    parts: HostDependencies
    _session: str = field(default_factory=lambda: uuid4().hex)
    _link: CoordinatorConnection = field(default_factory=CoordinatorConnection)
    _phones: dict[str, FarmWorker] = field(default_factory=dict)
    _told: str = ""

    def __post_init__(self) -> None:
        self._work = HostWork(self.site.folder, self.parts, self._link)
        self._attempts = Attempts(lambda order, flag: self._work.do(order, flag, self._session))

    async def run(self) -> None:
        """Returns when the process is asked to stop."""
        pause_s = 1.0
        while not cancel.requested():
            try:
                await self._connection()
                self._say("the coordinator is gone; waiting for the next night")
                pause_s = 1.0
            except FatalCommClosedError as error:
                raise UsageError(
                    f"the certificates do not fit: {_short(error)}",
                    place=self.site.scheduler,
                    remedy="All hosts need certificates of one certificate authority.",
                ) from error
            except (OSError, asyncio.TimeoutError, ValueError, HostRejectedError) as error:
                self._say(f"waiting for the coordinator at {self.site.scheduler}: {_short(error)}")
            await self._pause(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _connection(self) -> None:
        """Serves one coordinator until it is gone or this process is stopped."""
        arguments = self.site.security.get_connection_args("worker")
        async with rpc(self.site.scheduler, connection_args=arguments) as coordinator:
            welcome = await self._hello(coordinator)
            self._attempts.cancel(set(self._attempts.running()) - set(welcome.wanted))
            host = self._worker(None)
            try:
                await host
                self._link.connected(coordinator, welcome.keep_s)
                self._told = ""
                self._say(f"connected to {self.site.scheduler} as {self.site.name}")
                await self._serve(coordinator, host)
                await self._stopped()
            finally:
                self._link.parted()
                await _close([host, *self._phones.values()])
                self._phones.clear()

    async def _hello(self, coordinator: rpc) -> wire.Welcome:
        hello = wire.Hello(
            host=self.site.name,
            session=self._session,
            versions=wire.own_versions(),
            running=self._attempts.running(),
        ).model_dump_json()
        answer = await asyncio.wait_for(coordinator.farm_hello(hello=hello), _ANSWER_S)
        if not isinstance(answer, str):
            raise HostRejectedError("what listens there is no coordinator of etdeploy")
        welcome = wire.Welcome.model_validate_json(answer)
        if welcome.refused and welcome.final:
            raise UsageError(
                f"the coordinator refused this host: {welcome.refused}",
                place=self.site.scheduler,
                remedy=welcome.remedy,
            )
        if welcome.refused:
            raise HostRejectedError(f"{welcome.refused}. {welcome.remedy}")
        return welcome

    async def _serve(self, coordinator: rpc, host: FarmWorker) -> None:
        """Keeps Workers and announcements in step with what is plugged in."""
        announced: tuple[Offer, ...] | None = None
        while _runs(host) and not cancel.requested():
            offers = await asyncio.to_thread(self._offers)
            if offers != announced:
                # A phone is offered as soon as its Worker is there, too, and waits for no other's.
                said = wire.Announcement(session=self._session, offers=offers)
                await coordinator.farm_announce(announcement=said.model_dump_json())
                announced = offers
            await self._adjust({o.identity for o in offers if not o.problem})
            until_s = time.monotonic() + self.site.list_every_s
            while time.monotonic() < until_s and _runs(host) and not cancel.requested():
                await asyncio.sleep(_POLL_S)

    def _offers(self) -> tuple[Offer, ...]:
        """What is plugged in now."""
        try:
            return tuple(self.parts.plugged())
        except EtdeployError as error:
            self._say(f"devices cannot be listed: {error}")
            return ()

    async def _adjust(self, identities: set[str]) -> None:
        """Starts and closes Workers; one whose phone is gone stays until its attempt has ended."""
        for identity, worker in list(self._phones.items()):
            wanted = identity in identities or identity in self._attempts.busy()
            if not (wanted and _runs(worker)):
                await _close([self._phones.pop(identity)])
        missing = sorted(identities - self._phones.keys())
        for begin in range(0, len(missing), _AT_ONCE):
            started = await asyncio.gather(*map(self._started, missing[begin : begin + _AT_ONCE]))
            self._phones |= {identity: worker for identity, worker in started if worker}

    async def _started(self, identity: str) -> tuple[str, FarmWorker | None]:
        """A Worker that has registered; None for one that could not, and is tried again."""
        worker = self._worker(identity)
        try:
            await worker
        except Exception:  # Dask's reasons are many, and the host's own Worker tells of a loss
            await _close([worker])
            return identity, None
        return identity, worker

    def _worker(self, identity: str | None) -> FarmWorker:
        return FarmWorker(
            self.site.scheduler,
            self.site.security,
            wire.About(session=self._session, host=self.site.name, identity=identity),
            self.site.folder,
            self._deliver,
            {wire.CANCEL: self._cancel, wire.RECOVER: self._recover},
        )

    async def _deliver(self, order: Order) -> None:
        done = self._attempts.begin(order).done
        # Dask cancels this when its Worker closes; the attempt goes on.
        await asyncio.shield(asyncio.wrap_future(done))

    def _cancel(self, key: list[Any]) -> None:
        self._attempts.cancel([(str(key[0]), int(key[1]))])

    async def _recover(self, step: str) -> None:
        await asyncio.to_thread(self._work.recover, wire.RecoveryStep.model_validate_json(step))

    async def _stopped(self) -> None:
        """When this process is stopped, lets attempts end and tell the coordinator."""
        until_s = time.monotonic() + _STOPPING_S
        while cancel.requested() and self._attempts.running() and time.monotonic() < until_s:
            await asyncio.sleep(_POLL_S)

    async def _pause(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s and not cancel.requested():
            await asyncio.sleep(_POLL_S)
        if self._link.is_lost:
            self._attempts.cancel(self._attempts.running())

    def _say(self, text: str) -> None:
        """Tells something once, and not with every attempt to connect."""
        if text != self._told:
            self.site.tell(text)
            self._told = text


def _runs(worker: FarmWorker) -> bool:
    return bool(worker.status == Status.running)


async def _close(workers: list[FarmWorker]) -> None:
    closing = [worker.close(timeout=2, executor_wait=False) for worker in workers]
    await asyncio.gather(*closing, return_exceptions=True)


def _short(error: BaseException) -> str:
    """The innermost reason, in a line: Dask wraps a refused connection four times."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error) or type(error).__name__).splitlines()[0]


@dataclass(eq=False)
class Attempt:
    """An attempt under way.

    Attributes:
        order: What was asked for.
        flag: Ends it when it is raised.
        done: Over when the coordinator has its ending, or no longer wants it.
    """

    order: Order
    flag: cancel.Flag
    done: Future[None] = field(default_factory=Future)


class Attempts:
    """All that were begun and have not ended, by visit and number.

    Args:
        work: Does an order, and delivers its ending. It runs in a thread that is bound to the
            attempt's flag.
    """

    def __init__(self, work: Callable[[Order, cancel.Flag], None]) -> None:
        self._work = work
        self._above = cancel.current()
        self._lock = threading.Lock()
        self._attempts: dict[Key, Attempt] = {}
        self._phones: dict[str, threading.Lock] = {}

    def begin(self, order: Order) -> Attempt:
        """Begins an attempt, or finds it: the coordinator asks again after a lost connection."""
        with self._lock:
            known = self._attempts.get(key_of(order))
            if known is not None:
                return known
            attempt = Attempt(order, cancel.Flag(self._above))
            self._attempts[key_of(order)] = attempt
            phone = self._phones.setdefault(order.offer.identity, threading.Lock())
        name = f"{order.visit}#{order.attempt}"
        threading.Thread(target=self._do, args=(attempt, phone), name=name, daemon=True).start()
        return attempt

    def running(self) -> tuple[Key, ...]:
        """Those that have not ended."""
        with self._lock:
            return tuple(self._attempts)

    def busy(self) -> frozenset[str]:
        """Identities of devices on which one is under way."""
        with self._lock:
            return frozenset(a.order.offer.identity for a in self._attempts.values())

    def cancel(self, keys: Iterable[Key]) -> None:
        """Has those end, as far as they are under way."""
        with self._lock:
            for key in keys:
                if key in self._attempts:
                    self._attempts[key].flag.set()

    def _do(self, attempt: Attempt, phone: threading.Lock) -> None:
        """One at a time on a phone, even while one that was given up is still ending there."""
        try:
            with phone, cancel.bound(attempt.flag):
                self._work(attempt.order, attempt.flag)
        finally:
            with self._lock:
                del self._attempts[key_of(attempt.order)]
            attempt.done.set_result(None)
