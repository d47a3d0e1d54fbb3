"""Dask's scheduler, with the farm's questions and only the farm's Workers."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.scheduler import Scheduler
from tornado.ioloop import PeriodicCallback

from etdeploy.core.errors import UsageError
from etdeploy.core.hashing import sha256_file
from etdeploy.farm.engine.certificates import revoked_serials
from etdeploy.farm.engine.dask.settings import FarmSecurity
from etdeploy.farm.engine.dask.wire import ABOUT, About

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
