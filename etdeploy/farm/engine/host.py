"""A host of the farm: its connection, its devices, and attempts that outlive the connection."""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distributed.comm.core import FatalCommClosedError
from distributed.core import Status, rpc
from distributed.security import Security

from etdeploy.cache.folder import CacheKind, limit_bytes
from etdeploy.cache.tidy import keep_below
from etdeploy.cache.workspace import Workspace
from etdeploy.core import cancel
from etdeploy.core.errors import DeviceError, EtdeployError, Interrupted, UsageError
from etdeploy.core.files.basic import remove_tree, sweep, working_folder
from etdeploy.core.hashing import sha256_file
from etdeploy.core.plugins import attributed
from etdeploy.farm.certificates import check_certificate
from etdeploy.farm.engine import wire
from etdeploy.farm.engine.local import LocalEngine
from etdeploy.farm.engine.settings import apply_settings, require_safe, security_of
from etdeploy.farm.engine.transfer import CHUNK_BYTES, fetch_artifact, key_of, pack, sweep_parts
from etdeploy.farm.engine.wire import DeliveredResult, FarmWorker, resource
from etdeploy.farm.model import AttemptResult, AvailableDevice, Fate, Order
from etdeploy.farm.spec.model import Tls
from etdeploy.farm.work.artifact import failure_of

_POLL_S = 0.2
_LONGEST_PAUSE_S = 15.0
_ANSWER_S = 20.0
# How long attempts may take to end when this process is stopped.
_STOPPING_S = 15.0
# After so long without a coordinator, attempts end: twice as long as that waits for a host.
_AWAY_S = 30.0
# Stands for the devices that were named, among the pools.
_NAMED = "named"


@dataclass(frozen=True)
class HostDependencies:
    """What a host does; tests put in their own. Each is called in threads.

    Attributes:
        plugged: The devices that are there now.
        attempt: Does an order with the artifact in a folder, until a flag is raised. A record is in
            a folder of its own, with all that belongs to it, below the host's folder.
        recover: Takes a step of recovery.
    """

    plugged: Callable[[], Sequence[AvailableDevice]]
    attempt: Callable[[Order, Path, cancel.Flag], AttemptResult]
    recover: Callable[[AvailableDevice, str], AvailableDevice]


def local_dependencies(
    workspace: Workspace, folder: Path, host: str, names: Sequence[str], pools: Sequence[str]
) -> HostDependencies:
    """What a host with real devices does.

    Args:
        workspace: The cache.
        folder: For records, until they were sent.
        host: Name of this host.
        names: Devices to offer, as `--device` takes them; empty for all that are plugged in, except
            the host itself, which has enough to do.
        pools: Names that the owner gave to these devices.
    """
    named = {_NAMED: tuple(names)} if names else {}
    engine = LocalEngine(folder, host=host, pools=named, workspace=workspace)

    def pooled(offer: AvailableDevice) -> AvailableDevice:
        return offer.model_copy(update={"pools": tuple(pools)})

    def plugged() -> list[AvailableDevice]:
        return [
            pooled(offer)
            for offer in engine.offers()
            if (_NAMED in offer.pools if names else not offer.capabilities.shares_cores)
        ]

    def attempt(order: Order, artifact: Path, flag: cancel.Flag) -> AttemptResult:
        moved = order.artifact.model_copy(update={"folder": str(artifact)})
        return engine.perform(order.model_copy(update={"artifact": moved}), flag)

    return HostDependencies(
        plugged, attempt, lambda offer, step: pooled(engine.recover(offer, step))
    )


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
        agent = Agent(
            name, scheduler, security, folder, tell, list_every_s, parts(workspace, folder)
        )
        asyncio.run(agent.run())


class HostRejectedError(DeviceError):
    """The coordinator does not take this host now."""


@dataclass(eq=False)
class Attempt:
    """An attempt that was begun.

    Attributes:
        order: What was asked for.
        flag: Ends it when it is raised.
        done: How it ended.
    """

    order: Order
    flag: cancel.Flag
    done: Future[DeliveredResult] = field(default_factory=Future)


class Link:
    """The worker that is connected now, for threads of attempts."""

    def __init__(self) -> None:
        self.worker: FarmWorker | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._parted_s = time.monotonic()

    def connect(self, worker: FarmWorker) -> None:
        """Let questions through; called in the loop that asks them."""
        self._loop, self.worker = asyncio.get_running_loop(), worker

    def part(self) -> None:
        """Hold questions back until there is a connection again."""
        self._parted_s = time.monotonic() if self.worker else self._parted_s
        self.worker = None

    @property
    def is_lost(self) -> bool:
        """Whether the coordinator no longer waits for what was begun for it."""
        return self.worker is None and time.monotonic() - self._parted_s > _AWAY_S

    def ask(self, op: str, *, to_the_end: bool = False, **message: Any) -> Any:
        """The coordinator's answer; waits for a connection that was lost, and asks again.

        Must not be called in the loop's thread.
        """
        while not self.is_lost:
            if not to_the_end:
                cancel.checkpoint()
            worker, loop = self.worker, self._loop
            if worker is not None and loop is not None:
                try:
                    work = worker.ask(op, message)
                    return asyncio.run_coroutine_threadsafe(work, loop).result()
                except (OSError, asyncio.CancelledError):
                    pass  # the connection is lost; `part` follows
            time.sleep(_POLL_S)
        raise DeviceError("the connection to the coordinator is lost")


class HostAttempts:
    """The last attempt on each device, and steps of recovery."""

    def __init__(self, folder: Path, parts: HostDependencies, link: Link) -> None:
        self._folder, self._parts, self._link = folder, parts, link
        self._above = cancel.current()
        self._attempts: dict[str, Attempt] = {}

    async def perform(self, order: Order) -> DeliveredResult:
        """Do an order, or wait for it: Dask sends it again after a lost connection.

        A new order for a device cancels the attempt that runs there: the coordinator gave it up.
        """
        known = self._attempts.get(order.offer.identity)
        if known is None or key_of(known.order) != key_of(order):
            attempt = Attempt(order, cancel.Flag(self._above))
            self._attempts[order.offer.identity] = attempt
            if known:
                known.flag.set()
            arguments = (attempt, known.done if known else None)
            threading.Thread(
                target=self._run, args=arguments, name=f"visit {order.visit}", daemon=True
            ).start()
            known = attempt
        # Dask cancels this when its worker closes; the attempt goes on.
        return await asyncio.shield(asyncio.wrap_future(known.done))

    def recover(self, offer: AvailableDevice, step: str) -> AvailableDevice:
        """Take a step of recovery; in a thread."""
        try:
            with attributed():
                return self._parts.recover(offer, step)
        except EtdeployError as error:
            changes = {"problem": error.message, "remedy": error.remedy or ""}
            return offer.model_copy(update=changes)

    def busy(self) -> list[AvailableDevice]:
        """The devices on which an attempt is under way."""
        return [each.order.offer for each in self._attempts.values() if not each.done.done()]

    def end(self, key: list[Any] | None = None) -> None:
        """Have an attempt end, or all."""
        for attempt in self._attempts.values():
            if key is None or list(key_of(attempt.order)) == list(key):
                attempt.flag.set()

    def _run(self, attempt: Attempt, before: Future[DeliveredResult] | None) -> None:
        order, begun_s = attempt.order, time.monotonic()
        if before:  # one at a time on a device, even while one that was given up still ends
            before.exception()
        try:
            with cancel.bound(attempt.flag):
                attempt.done.set_result(self._deliver(self._attempt(order, attempt.flag)))
        except Exception as error:  # a bug of ours must not leave the coordinator waiting
            fate = Fate.PUT_OFF if isinstance(error, Interrupted) else Fate.FAILED
            failure = failure_of(error, Workspace.default().root)
            attempt.done.set_result(DeliveredResult(ending=order.end(fate, failure, begun_s)))

    def _attempt(self, order: Order, flag: cancel.Flag) -> AttemptResult:
        # One for each attempt: what it uses is free to be removed when it has ended.
        workspace, begun_s = Workspace.default(), time.monotonic()
        with workspace.in_use():
            artifact = fetch_artifact(order.artifact, workspace, self._read)
            ending = self._parts.attempt(order, artifact, flag)
        if limit := limit_bytes():
            keep_below(workspace, limit)
        seconds = ending.seconds or time.monotonic() - begun_s
        return ending.model_copy(update={"seconds": seconds})

    def _read(self, digest: str, offset: int) -> bytes:
        answer = self._link.ask(wire.READ, digest=digest, offset=offset)
        if "data" not in answer:
            raise DeviceError(f"the coordinator gives no file: {answer['refused']}")
        return bytes(answer["data"])

    def _deliver(self, ending: AttemptResult) -> DeliveredResult:
        """Send what belongs to a record; only with the ending does it count."""
        if not ending.record:
            return DeliveredResult(ending=ending)
        try:
            records = Path(ending.record).resolve().parent
            if self._folder.resolve() not in records.parents:
                raise ValueError(f"the record {ending.record} has no folder of its own")
            try:
                with tempfile.TemporaryDirectory(dir=self._folder) as folder:
                    archive = Path(folder) / "records.tar.gz"
                    pack(records, archive)
                    self._send(list(key_of(ending)), archive)
                    digest = sha256_file(archive)
            finally:
                remove_tree(records)
        except (EtdeployError, OSError) as error:
            failure = failure_of(error, Workspace.default().root)
            changes = {"fate": Fate.FAILED, "record": None, "run_id": None, "failure": failure}
            return DeliveredResult(ending=ending.model_copy(update=changes))
        ending = ending.model_copy(update={"record": Path(ending.record).name})
        return DeliveredResult(ending=ending, digest=digest)

    def _send(self, key: list[Any], archive: Path) -> None:
        """Send an archive in chunks, from where the coordinator has it."""
        offset = 0
        with archive.open("rb") as stream:
            while data := stream.read(CHUNK_BYTES):
                answer = self._link.ask(
                    wire.STORE, to_the_end=True, key=key, offset=offset, data=data
                )
                if "refused" in answer:
                    raise DeviceError(f"the coordinator took no records: {answer['refused']}")
                offset = int(answer["have"])
                stream.seek(offset)


@dataclass
class Agent:
    """Connects to the coordinator of each night, and waits while there is none.

    Attributes:
        name: Of the host in the farm.
        scheduler: Address of the coordinator.
        security: The certificates.
        folder: For what Dask and attempts write; `serve_host` removes it.
        tell: Shows the user a line.
        list_every_s: How often to look for devices.
        parts: What the host does.
    """

    name: str
    scheduler: str
    security: Security
    folder: Path
    tell: Callable[[str], None]
    list_every_s: float
    parts: HostDependencies
    _link: Link = field(default_factory=Link)
    _offered: tuple[AvailableDevice, ...] = ()
    _told: str = ""

    def __post_init__(self) -> None:
        self._attempts = HostAttempts(self.folder, self.parts, self._link)

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
                    place=self.scheduler,
                    remedy="All hosts need certificates of one certificate authority.",
                ) from error
            except (OSError, asyncio.TimeoutError, ValueError, HostRejectedError) as error:
                self._say(f"waiting for the coordinator at {self.scheduler}: {_short(error)}")
            await self._pause(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _connection(self) -> None:
        """Serves one coordinator until it is gone or this process is stopped."""
        arguments = self.security.get_connection_args("worker")
        async with rpc(self.scheduler, connection_args=arguments) as coordinator:
            await self._hello(coordinator)
        worker = FarmWorker(
            self.scheduler, self.security, self.name, self._devices(),
            self.folder, self._attempts, self._attempts.end,
        )  # fmt: skip
        try:
            await worker
            self._link.connect(worker)
            self._told = ""
            self._say(f"connected to {self.scheduler} as {self.name}")
            await self._serve(worker)
            until_s = time.monotonic() + _STOPPING_S
            while cancel.requested() and self._attempts.busy() and time.monotonic() < until_s:
                await asyncio.sleep(_POLL_S)
            if cancel.requested():
                await asyncio.sleep(_POLL_S)  # what was answered last is on its way
        finally:
            self._link.part()
            await worker.close(timeout=2, executor_wait=False)

    async def _hello(self, coordinator: rpc) -> None:
        versions = wire.own_versions().model_dump_json()
        hello = coordinator.farm_hello(host=self.name, versions=versions)
        answer = await asyncio.wait_for(hello, _ANSWER_S)
        if not isinstance(answer, str):
            raise HostRejectedError("what listens there is not a coordinator of etdeploy")
        welcome = wire.Welcome.model_validate_json(answer)
        if welcome.refused and welcome.final:
            raise UsageError(
                f"the coordinator refused this host: {welcome.refused}",
                place=self.scheduler,
                remedy=welcome.remedy,
            )
        if welcome.refused:
            raise HostRejectedError(f"{welcome.refused}. {welcome.remedy}")

    def _devices(self) -> dict[str, int]:
        """What Dask may give orders to; a device that is unplugged stays until its attempt ends."""
        usable = [offer for offer in self._offered if not offer.problem]
        return {resource(o.identity, self.name): 1 for o in (*usable, *self._attempts.busy())}

    async def _serve(self, worker: FarmWorker) -> None:
        """Keeps resources and offers in step with what is plugged in."""
        offered: tuple[AvailableDevice, ...] | None = None
        devices = self._devices()
        while _runs(worker) and not cancel.requested():
            self._offered = await asyncio.to_thread(self._offers)
            if (now := self._devices()) != devices:
                await worker.set_resources(**dict.fromkeys(devices.keys() - now.keys(), 0), **now)
                devices = now
            if self._offered != offered:
                worker.log_event(wire.OFFERS, [each.model_dump_json() for each in self._offered])
                offered = self._offered
            await self._pause(self.list_every_s, worker)

    def _offers(self) -> tuple[AvailableDevice, ...]:
        """What is plugged in now."""
        try:
            return tuple(self.parts.plugged())
        except EtdeployError as error:
            self._say(f"devices cannot be listed: {error}")
            return ()

    async def _pause(self, seconds: float, worker: FarmWorker | None = None) -> None:
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s and not cancel.requested():
            if worker and not _runs(worker):
                return
            await asyncio.sleep(_POLL_S)
        if self._link.is_lost:
            self._attempts.end()

    def _say(self, text: str) -> None:
        """Tells something once, and not with every attempt to connect."""
        if text != self._told:
            self.tell(text)
            self._told = text


def _runs(worker: FarmWorker) -> bool:
    return bool(worker.status == Status.running)


def _short(error: BaseException) -> str:
    """The innermost reason, in a line: Dask wraps a refused connection four times."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error) or type(error).__name__).splitlines()[0]
