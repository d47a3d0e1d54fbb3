"""Dask's scheduler in the coordinator: files and records for its hosts, and who may connect."""

from __future__ import annotations

import hashlib
import re
import ssl
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from distributed.scheduler import Scheduler
from tornado.ioloop import PeriodicCallback

from etdeploy.core.errors import UsageError
from etdeploy.core.files.basic import open_regular, remove_tree
from etdeploy.core.hashing import sha256_file
from etdeploy.farm.engine.certificates import revoked_serials
from etdeploy.farm.engine.dask.settings import FarmSecurity
from etdeploy.farm.engine.dask.wire import (
    ABOUT,
    ANSWER,
    CHUNK_BYTES,
    LIMIT_BYTES,
    OFFERS,
    Key,
    own_versions,
    safe_relative,
    unpack,
)
from etdeploy.farm.model import Parcel

_INCOMING = ".incoming"
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}")
# How often to look for a new list of revoked certificates.
_REVOKED_MS = 2000


class FarmScheduler(Scheduler):  # type: ignore[misc]
    """A scheduler that answers hosts, and takes workers of `etdeploy farm worker` only.

    Args:
        address: Protocol, host and port to listen on; port 0 for any that is free.
        security: The certificates.
        answers: What hosts may ask, by name.
        heard: Gets the events of workers: address, topic, message.
        grace_s: How long a task waits for a worker with its device.
    """

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


class ServedFiles:
    """The files of parcels by digest: the only ones that a host may read."""

    def __init__(self) -> None:
        self._paths: dict[str, Path] = {}

    def add(self, parcel: Parcel) -> None:
        """Let hosts read the files of a parcel."""
        for name, digest in parcel.files.items():
            self._paths[digest] = Path(parcel.folder) / safe_relative(name)

    def read(self, digest: str, offset: int) -> bytes:
        """At most a chunk of a file; empty at its end."""
        path = self._paths.get(digest)
        if path is None or offset < 0:
            raise UsageError("only files of parcels can be read")
        with open_regular(path) as stream:
            stream.seek(offset)
            return stream.read(CHUNK_BYTES)


class Records:
    """Archives of attempts that hosts send in chunks, and the folders that they become."""

    def __init__(self, results: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self._results = results
        self._limit_bytes = limit_bytes
        self.clear()

    def store(self, key: Key, offset: int, data: bytes) -> int:
        """Append a chunk if it is the next one; the first one begins the archive anew."""
        path = self._incoming(key)
        if offset == 0:
            self.drop(key)
        have_bytes = path.stat().st_size if path.exists() else 0
        if offset != have_bytes:
            return have_bytes
        if have_bytes + len(data) > self._limit_bytes:
            self.drop(key)
            raise UsageError(f"the records take more than {self._limit_bytes} bytes")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as stream:
            stream.write(data)
        return have_bytes + len(data)

    def finish(self, key: Key, digest: str) -> Path:
        """Unpack an archive that is complete."""
        path = self._incoming(key)
        try:
            if not path.is_file() or sha256_file(path) != digest:
                raise UsageError("the records did not arrive as they were sent")
            folder = self._results / _folder_name(key)
            unpack(path, folder, self._limit_bytes)
            return folder
        finally:
            self.drop(key)

    def drop(self, key: Key) -> None:
        """Delete what has arrived of an archive."""
        self._incoming(key).unlink(missing_ok=True)

    def clear(self) -> None:
        """Delete what was cut."""
        remove_tree(self._results / _INCOMING)

    def _incoming(self, key: Key) -> Path:
        return self._results / _INCOMING / f"{_folder_name(key)}.tar.gz"


def _folder_name(key: Key) -> str:
    visit, attempt = key
    plain = visit if _PLAIN.fullmatch(visit) else hashlib.sha256(visit.encode()).hexdigest()[:16]
    return f"{plain}-attempt-{attempt}"
