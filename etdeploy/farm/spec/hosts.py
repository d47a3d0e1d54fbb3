"""Where workers connect to, and how that is kept from others.

Whoever can connect to a scheduler can run code on it, unless TLS says who that may be:
https://distributed.dask.org/en/stable/tls.html
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from urllib.parse import urlsplit

from etdeploy.core.files.basic import not_regular
from etdeploy.farm.spec.findings import Findings
from etdeploy.farm.spec.model import Hosts, Tls
from etdeploy.farm.spec.written import Certificates, HostsSection

_LISTEN = ("hosts", "listen")
_EXAMPLE = "e.g. tls://0.0.0.0:8786, or tcp://127.0.0.1:8786 for this machine alone"
_SECTION = "tls: {ca: ca.pem, cert: host.pem, key: host-key.pem, crl: crl.pem}"


def read_hosts(written: HostsSection | None, findings: Findings) -> Hosts | None:
    """The section of several hosts; None for one, or where it cannot be used."""
    if written is None:
        return None
    tls = _certificates(written.tls, findings) if written.tls else None
    scheme, address = _address(written.listen, findings)
    if scheme == "tls" and written.tls is None:
        findings.add(_LISTEN, "hosts.listen: TLS needs certificates", f"add {_SECTION} to hosts")
    if scheme == "tcp" and written.tls is not None:
        findings.add(
            _LISTEN, "hosts.listen: tcp:// uses no certificates, and hosts.tls names some",
            f"write tls://{written.listen.partition('://')[2]}",
        )  # fmt: skip
    elif scheme == "tcp" and not is_loopback(address):
        findings.add(
            _LISTEN,
            f"hosts.listen: tcp:// lets whoever reaches {address} run code on this machine",
            f"write tls:// and add {_SECTION}; or listen on tcp://127.0.0.1 only",
        )
    return Hosts(listen=written.listen, tls=tls, here=written.here)


def _address(listen: str, findings: Findings) -> tuple[str, str]:
    """Scheme and address; empty where it cannot be read."""
    try:
        parts = urlsplit(listen)
        port, address = parts.port, parts.hostname
    except ValueError:
        port, address, parts = None, None, urlsplit("")
    rest = parts.path or parts.query or parts.fragment or parts.username
    if parts.scheme not in ("tls", "tcp") or not address or not port or rest:
        findings.add(_LISTEN, f"hosts.listen takes tls://ADDRESS:PORT, not {listen!r}", _EXAMPLE)
        return "", ""
    return parts.scheme, address


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches the address."""
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return address == "localhost"


def _certificates(written: Certificates, findings: Findings) -> Tls | None:
    found: dict[str, Path] = {}
    texts = written.model_dump(exclude_none=True)
    for key, text in texts.items():
        keys = ("hosts", "tls", key)
        path = findings.path(keys, text)
        if path is None:
            continue
        if what := not_regular(path) if path.exists() else "missing":
            findings.add(keys, f"hosts.tls.{key}: the file {path} is {what}")
        found[key] = path
    return Tls(**found) if len(found) == len(texts) else None
