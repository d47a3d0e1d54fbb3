"""What the coordinator and its hosts say to each other, as values and by name.

A host opens every connection; the coordinator answers, or uses the stream of a host's Worker. So a
host needs no open port that the coordinator could reach.
"""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from etdeploy import __version__
from etdeploy.core.values import Value
from etdeploy.farm.model import Ending, Offer, Order

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


def key_of(attempt: Order | Ending) -> Key:
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
    """What differs and how to update the host; None where nothing does.

    Returns:
        Message and remedy.
    """
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


class Recovered(Value):
    """How that went: the device as it is afterwards, with `problem` where it did not help."""

    number: int
    offer: Offer
