"""What the coordinator and its hosts say to each other, and the tasks that Dask runs on a host.

A host opens every connection, so it needs no port that the coordinator could reach. Dask fetches
results from a port of the worker: here they are events of the worker's own stream instead.
"""

from __future__ import annotations

import asyncio
import ipaddress
import platform
import secrets
import ssl
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

from distributed.scheduler import Scheduler
from distributed.security import Security
from distributed.worker import Worker, get_worker
from tornado.ioloop import PeriodicCallback

from etdeploy import __version__
from etdeploy.core.errors import UsageError
from etdeploy.core.hashing import sha256_file
from etdeploy.core.values import Value
from etdeploy.farm.certificates import revoked_serials
from etdeploy.farm.engine.settings import FarmSecurity
from etdeploy.farm.model import AttemptResult, AvailableDevice, Order

# Questions of a host, answered by the scheduler.
HELLO = "farm_hello"
READ = "farm_read"
STORE = "farm_store"
# Topics of events that a host's worker logs.
OFFERS = "farm-offers"
ANSWER = "farm-answer"
# What the coordinator sends over the stream of a host's worker.
CANCEL = "farm-cancel"

ABOUT = "farm"
"""Where the scheduler finds the versions of a worker."""


class Versions(Value):
    """What has to be the same on the coordinator and its hosts, because Dask pickles between them.

    Attributes:
        etdeploy: Release of etdeploy.
        python: Major and minor version.
        distributed: Release of Dask.
    """

    etdeploy: str
    python: str
    distributed: str


def own_versions() -> Versions:
    """Those of this process."""
    try:
        distributed = version("distributed")
    except PackageNotFoundError:  # a copy without metadata
        distributed = "unknown"
    python = ".".join(platform.python_version_tuple()[:2])
    return Versions(etdeploy=__version__, python=python, distributed=distributed)


def mismatch(host: Versions, coordinator: Versions) -> tuple[str, str] | None:
    """What differs and how to update the host; None where nothing does."""
    names = (("etdeploy", "etdeploy"), ("python", "Python"), ("distributed", "distributed"))
    theirs, ours = host.model_dump(), coordinator.model_dump()
    differing = [(key, name) for key, name in names if theirs[key] != ours[key]]
    if not differing:
        return None
    told = ", ".join(f"{name} {theirs[key]} (here {ours[key]})" for key, name in differing)
    packages = [f"{key}=={ours[key]}" for key, _ in differing if key != "python"]
    steps = []
    if any(key == "python" for key, _ in differing):
        steps.append(f"set up a virtual environment with Python {ours['python']} on that host")
    if packages:
        words = " ".join(f"'{package}'" for package in packages)
        steps.append(f"pip install {words}")
    return f"the host has {told}", "\n".join(steps)


class Welcome(Value):
    """Whether a host may take part.

    Attributes:
        refused: Why it may not; empty where it may.
        remedy: What to do about that.
        final: Whether it makes no sense to ask again.
    """

    refused: str = ""
    remedy: str = ""
    final: bool = False


class DeliveredResult(Value):
    """How an attempt ended, with the digest of the archive of its records."""

    ending: AttemptResult
    digest: str | None = None


# How long a worker may take to register.
_REGISTER_S = 20.0
# How often to look for a new list of revoked certificates.
_REVOKED_MS = 2000
# Attempts that a host does at once: as many as it has devices.
_MOST_AT_ONCE = 1000


class FarmScheduler(Scheduler):  # type: ignore[misc]
    """A scheduler that answers hosts, and takes workers of `etdeploy farm worker` only."""

    def __init__(
        self,
        address: tuple[str, str, int],
        security: FarmSecurity,
        answers: Mapping[str, Callable[..., Any]],
        heard: Callable[[str, str, Any], None],
        grace_s: float,
    ) -> None:
        protocol, host, port = address
        super().__init__(
            protocol=protocol, host=host, port=port, security=security, dashboard=False
        )
        self.handlers.update(answers)
        self.no_workers_timeout = grace_s
        self._heard = heard
        self._context: ssl.SSLContext | None = None
        self._read_list = ""
        if security.crl:
            check = PeriodicCallback(partial(self._drop_revoked, security.crl), _REVOKED_MS)
            self.periodic_callbacks["farm-revoked"] = check

    async def listen(self, *args: Any, **kwargs: Any) -> None:
        """Listen, and keep what decides on new connections."""
        self._context = kwargs.get("ssl_context")
        await super().listen(*args, **kwargs)

    def _drop_revoked(self, crl: Path) -> None:
        """Use a list that was replaced while the night runs; end connections that it names."""
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
        """Start none: it would show the farm to the network without a certificate."""

    async def add_worker(self, comm: Any, *, extra: dict[str, Any], **rest: Any) -> None:
        if extra.get(ABOUT) == own_versions().model_dump():
            await super().add_worker(comm, extra=extra, **rest)
            return
        message = "this scheduler takes workers of `etdeploy farm worker` only"
        await comm.write({"status": "error", "message": message, "time": time.time()})

    def log_worker_event(self, worker: str, topic: Any, msg: Any) -> None:
        """Take an event of a worker; those of the farm are not stored."""
        if topic in (OFFERS, ANSWER):
            self._heard(worker, topic, msg)
        else:
            super().log_worker_event(worker, topic, msg)


class HostTasks(Protocol):
    """What a host does for Dask's tasks."""

    async def perform(self, order: Order) -> DeliveredResult: ...

    def recover(self, offer: AvailableDevice, step: str) -> AvailableDevice: ...


class FarmWorker(Worker):  # type: ignore[misc]
    """The worker of a host, without a nanny, limits, pages or a port, in the host's process.

    Each of its devices is a resource. A worker runs whatever is sent to its port. The farm sends
    everything over the connection that the worker opens to the scheduler, so it has no port.
    """

    def __init__(
        self,
        scheduler: str,
        security: Security,
        host: str,
        devices: Mapping[str, int],
        folder: Path,
        tasks: HostTasks,
        cancel: Callable[[list[Any]], None],
    ) -> None:
        super().__init__(
            scheduler,
            nthreads=_MOST_AT_ONCE,
            name=host,
            resources=devices,
            security=security,
            memory_limit=0,
            local_directory=str(folder),
            dashboard=False,
            metrics={},
            startup_information={ABOUT: lambda _: own_versions().model_dump()},
            extensions={},
            death_timeout=_REGISTER_S,
            contact_address=_unique_address(),
        )
        self.stream_handlers[CANCEL] = lambda key: cancel(key)
        self.tasks = tasks

    async def listen(self, *_: Any, **__: Any) -> None:
        """Listen within this process only."""
        await super().listen("inproc://")

    def start_http_server(self, *_: Any, **__: Any) -> None:
        """Start none."""

    async def ask(self, op: str, message: dict[str, Any]) -> Any:
        """The coordinator's answer."""
        return await getattr(self.scheduler, op)(worker=self.contact_address, **message)


def _unique_address() -> str:
    """By which the scheduler tells workers apart: in RFC 6666's discard-only block, as a name."""
    return f"tcp://[{ipaddress.IPv6Address((0x100 << 112) | secrets.randbits(64))}]:1"


def resource(identity: str, host: str) -> str:
    """The resource that a device of a host is."""
    return f"device:{identity}@{host}"


def _worker() -> FarmWorker:
    worker = get_worker()
    assert isinstance(worker, FarmWorker)  # noqa: S101 - nobody else is sent here
    return worker


async def perform(key: str, order: str) -> None:
    """Do an order on its host; what Dask pickles is this function's name and the JSON.

    It is a coroutine: the attempt has a thread and a process, which go on when the connection to
    the scheduler, and with it this worker, is lost. Dask sends the task to the worker that comes
    next, which finds the attempt.
    """
    worker = _worker()
    done = await worker.tasks.perform(Order.model_validate_json(order))
    worker.log_event(ANSWER, {"key": key, "answer": done.model_dump_json()})


async def take_step(key: str, offer: str, step: str) -> None:
    """Take a step of recovery on a device's host."""
    worker = _worker()
    after = await asyncio.to_thread(
        worker.tasks.recover, AvailableDevice.model_validate_json(offer), step
    )
    worker.log_event(ANSWER, {"key": key, "answer": after.model_dump_json()})
