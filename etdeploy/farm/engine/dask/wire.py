"""What the coordinator and its hosts say to each other, as values and by name.

A host opens every connection; the coordinator answers, or uses the stream of a host's Worker. So a
host needs no open port that the coordinator could reach.
"""

from __future__ import annotations

import ipaddress
import platform
import secrets
import shutil
import tarfile
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath
from typing import Any

from distributed.security import Security
from distributed.worker import Worker, get_worker

from etdeploy import __version__
from etdeploy.core.errors import UsageError
from etdeploy.core.files.basic import folder_files, new_folder
from etdeploy.core.values import Value
from etdeploy.farm.model import AttemptResult, Offer, Order

# Questions of a host, answered by the scheduler.
HELLO = "farm_hello"
ANNOUNCE = "farm_announce"
READ = "farm_read"
STORE = "farm_store"
ENDED = "farm_ended"
TOLD = "farm_told"
RECOVERED = "farm_recovered"
# What the coordinator sends over the stream of a host's Worker.
CANCEL = "farm-cancel"
RECOVER = "farm-recover"

ABOUT = "farm"
"""Where the scheduler finds what a Worker says of itself."""

CHUNK_BYTES = 1 << 20
"""Files and records travel in pieces of this size, so that heartbeats get between them."""

Key = tuple[str, int]
"""An attempt: its visit, and its number."""


def key_of(attempt: Order | AttemptResult) -> Key:
    """The attempt that an order begins or an ending ends."""
    return (attempt.visit, attempt.attempt)


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


class Hello(Value):
    """What a host says first.

    Attributes:
        host: Its name.
        session: Random, and new with each start of its process.
        versions: As text fields; compared before anything else is read.
        running: Attempts that its process has not ended or delivered.
    """

    host: str
    session: str
    versions: Versions
    running: tuple[Key, ...] = ()


class Welcome(Value):
    """The answer to that.

    Attributes:
        refused: Why the host may not take part; empty where it may.
        remedy: What to do about that.
        final: Whether it makes no sense to ask again.
        keep_s: How long the coordinator waits for attempts of a host that is gone.
        wanted: Those of the running attempts that it still waits for.
    """

    refused: str = ""
    remedy: str = ""
    final: bool = False
    keep_s: float = 0.0
    wanted: tuple[Key, ...] = ()


class About(Value):
    """What a Worker says of itself.

    Attributes:
        session: Of the host's process, which was welcomed before.
        host: Its name.
        identity: Of the device; None for the Worker that stands for the host.
    """

    session: str
    host: str
    identity: str | None = None


class Announcement(Value):
    """All devices that are plugged into a host now."""

    session: str
    offers: tuple[Offer, ...]


class RecoveryStep(Value):
    """A step of the recovery ladder that a host is asked for.

    Attributes:
        number: Unique for the coordinator.
        offer: The device.
        step: Its name.
    """

    number: int
    offer: Offer
    step: str


class RecoveryReply(Value):
    """How that went: the device as it is afterwards, with `problem` where it did not help."""

    number: int
    offer: Offer


LIMIT_BYTES = 4 << 30
"""What the records of one attempt may take on the coordinator's disk."""


def pack(folder: Path, archive: Path) -> None:
    """Writes the regular files of a folder to an archive."""
    with tarfile.open(archive, "w:gz", compresslevel=3) as tar:
        for name in folder_files(folder):
            path = folder / name
            if not path.is_symlink():
                tar.add(path, name, recursive=False)


def unpack(archive: Path, folder: Path, limit_bytes: int = LIMIT_BYTES) -> None:
    """Fills a new folder from an archive of another host; it appears complete or not at all."""
    try:
        with new_folder(folder) as work, tarfile.open(archive, "r:gz") as tar:
            left_bytes = limit_bytes
            for member in tar:
                left_bytes -= member.size
                if left_bytes < 0:
                    raise UsageError(f"the records take more than {limit_bytes} bytes")
                _extract(tar, member, work)
    except (tarfile.TarError, EOFError) as error:
        raise UsageError(f"the records arrived damaged: {error}") from error


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    name = safe_relative(member.name)
    source = tar.extractfile(member) if member.isreg() else None
    if source is None:
        raise UsageError(f"{member.name!r} in the records is no file")
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    with source, target.open("xb") as stream:
        shutil.copyfileobj(source, stream)


def safe_relative(name: str) -> PurePosixPath:
    """A path of another host that stays below the folder that it is joined to."""
    path = PurePosixPath(name)
    if path.is_absolute() or not path.parts or ".." in path.parts or "\0" in name:
        raise UsageError(f"the path {name!r} leads out of its folder")
    return path


# How long a Worker may take to register.
_PATIENCE_S = 20.0


class FarmWorker(Worker):  # type: ignore[misc]
    """A single-threaded Worker without a nanny, limits, pages or a port, in the host's process.

    A Worker runs whatever is sent to its port. The farm sends everything over the connection that
    the Worker opens to the scheduler, so it has no port.

    Args:
        scheduler: Its address.
        security: The certificates.
        about: Whose it is.
        folder: Where Dask may keep files.
        deliver: Does an order, and returns when the coordinator has its ending.
        heard: What the coordinator may send, by name.
    """

    def __init__(
        self,
        scheduler: str,
        security: Security,
        about: About,
        folder: Path,
        deliver: Callable[[Order], Awaitable[None]],
        heard: Mapping[str, Callable[..., Any]],
    ) -> None:
        identity = about.identity
        super().__init__(
            scheduler,
            nthreads=1,
            name=f"{identity}@{about.host}" if identity else f"host@{about.host}",
            resources={resource(identity): 1} if identity else {},
            security=security,
            memory_limit=0,
            local_directory=str(folder),
            dashboard=False,
            metrics={},
            startup_information={ABOUT: lambda _: about.model_dump(mode="json")},
            extensions={},
            death_timeout=_PATIENCE_S,
            contact_address=_unique_address(),
        )
        self.stream_handlers.update(heard)
        self.deliver = deliver

    async def listen(self, *_: Any, **__: Any) -> None:
        """Listens within this process only."""
        await super().listen("inproc://")

    def start_http_server(self, *_: Any, **__: Any) -> None:
        """Starts none."""


def _unique_address() -> str:
    """By which the scheduler tells Workers apart: in RFC 6666's discard-only block, as a name."""
    return f"tcp://[{ipaddress.IPv6Address((0x100 << 112) | secrets.randbits(64))}]:1"


def resource(identity: str) -> str:
    """The resource of which the Worker of a phone has one."""
    return f"device:{identity}"


async def perform(order: str) -> None:
    """Does an order on the host; what Dask pickles is this function's name and the JSON.

    It is a coroutine: the attempt has a thread and a process of its own, which go on when the
    connection to the scheduler, and with it this Worker, is lost.
    """
    worker = get_worker()
    assert isinstance(worker, FarmWorker)  # noqa: S101 - nobody else is sent here
    await worker.deliver(Order.model_validate_json(order))
