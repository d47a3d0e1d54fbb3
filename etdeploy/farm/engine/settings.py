"""Addresses, certificates and Dask's settings, the same on the coordinator and its hosts."""

from __future__ import annotations

import logging
import re
import resource
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

import dask
from distributed.security import Security

from etdeploy.core.errors import UsageError
from etdeploy.farm.certificates import check_certificate
from etdeploy.farm.spec.model import Tls, is_loopback

_ADDRESS = re.compile(r"(tls|tcp)://(\[[0-9a-fA-F:.]+\]|[^:/\[\]]+):(\d{1,5})")
DEFAULT_PORT = 8786

_SETTINGS: dict[str, Any] = {
    # A host that was lost with an order so often is not given it again.
    "distributed.scheduler.allowed-failures": 2,
    # A host that loses its power says nothing: after so long without a heartbeat it is gone.
    "distributed.scheduler.worker-ttl": "30s",
    "distributed.comm.timeouts.tcp": "20s",
    "distributed.comm.timeouts.connect": "10s",
    # Orders are pinned, small and long: nothing to steal, move, profile or show.
    "distributed.scheduler.work-stealing": False,
    "distributed.scheduler.active-memory-manager.start": False,
    "distributed.scheduler.preload": [],
    "distributed.worker.preload": [],
    "distributed.worker.profile.enabled": False,
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    "distributed.admin.system-monitor.interval": "10s",
    "distributed.admin.system-monitor.log-length": 2,
    "distributed.admin.log-length": 100,
    "distributed.admin.low-level-log-length": 100,
    "distributed.scheduler.events-cleanup-delay": "10s",
}


def apply_settings() -> None:
    """Sets what the farm needs of Dask for this process, and keeps its log to itself.

    Dask logs each lost connection with a traceback; the farm tells the user in a sentence. An
    attempt takes files of its host, so the usual limit of 1024 is raised as far as this user may.
    """
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != most:
        with suppress(OSError, ValueError):  # macOS takes no unlimited number
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    dask.config.set(_SETTINGS)
    for name in list(logging.root.manager.loggerDict):
        if name == "distributed" or name.startswith("distributed."):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)


class FarmSecurity(Security):  # type: ignore[misc]
    """Dask's certificates, and the authority's list of revoked ones, read at each connection.

    Attributes:
        crl: The list; None if nothing is checked.
    """

    crl: Path | None = None

    def get_connection_args(self, role: str) -> dict[str, Any]:
        """What a connection is opened with."""
        return self._checked(super().get_connection_args(role))

    def get_listen_args(self, role: str) -> dict[str, Any]:
        """What connections are accepted with."""
        return self._checked(super().get_listen_args(role))

    def _checked(self, arguments: dict[str, Any]) -> dict[str, Any]:
        if self.crl:
            arguments["ssl_context"].verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
            arguments["ssl_context"].load_verify_locations(self.crl)
        return arguments


def security_of(tls: Tls | None) -> FarmSecurity:
    """Dask's form of the certificates; each side shows its own and requires the other's."""
    if tls is None:
        return FarmSecurity(require_encryption=False)
    _require_pem(tls)
    check_certificate(tls)
    files = {"tls_ca_file": str(tls.ca)}
    for role in ("scheduler", "worker", "client"):
        files |= {f"tls_{role}_cert": str(tls.cert), f"tls_{role}_key": str(tls.key)}
    security = FarmSecurity(require_encryption=True, **files)
    security.crl = tls.crl
    try:
        security.get_connection_args("worker")
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise UsageError(
            f"the certificate, its key and the certificate authority do not fit: {error}",
            place=str(tls.cert),
        ) from error
    return security


def parse_address(text: str) -> tuple[str, str, int]:
    """Protocol, host and port of tls://HOST:PORT or tcp://HOST:PORT."""
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match[3]) > 65535:
        raise UsageError(
            f"{text!r} is not a scheduler address",
            remedy=f"tls://HOST:{DEFAULT_PORT}, or tcp://127.0.0.1:{DEFAULT_PORT} on this machine",
        )
    return match[1], match[2], int(match[3])


def require_safe(address: str, tls: Tls | None) -> None:
    """Refuses what would let anybody on a network run code here."""
    protocol, host, _ = parse_address(address)
    if protocol == "tls" and tls is None:
        raise UsageError(
            f"{address} needs certificates",
            remedy="name the files of the certificate authority, the certificate and its key; "
            "etdeploy farm certificates FOLDER HOST makes them",
        )
    if protocol == "tcp" and tls is not None:
        raise UsageError(
            f"there are certificates, but {address} does not use them",
            remedy=address.replace("tcp://", "tls://", 1),
        )
    if protocol == "tcp" and not is_loopback(host):
        raise UsageError(
            f"{address} has no TLS: whoever reaches that port could run code on every host",
            remedy="tls:// with certificates (etdeploy farm certificates FOLDER HOST makes them); "
            "tcp:// is for this machine, and for tunnels that end here",
        )


def own_address(host: str) -> str:
    """Where this process reaches what listens on `host`."""
    return {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)  # noqa: S104


def _require_pem(tls: Tls) -> None:
    for path, what in ((tls.ca, "CERTIFICATE"), (tls.cert, "CERTIFICATE"), (tls.key, "KEY")):
        if what not in _begin(path):
            raise UsageError(f"this is no PEM file with a {what.lower()}", place=str(path))


def _begin(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError as error:
        raise UsageError(f"the file cannot be read: {error.strerror}", place=str(path)) from error
