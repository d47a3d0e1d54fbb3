"""Dask's Worker for one phone, and the function that Dask calls on it."""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from distributed.security import Security
from distributed.worker import Worker, get_worker

from etdeploy.farm.engine.dask.wire import ABOUT, About
from etdeploy.farm.model import Order

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
