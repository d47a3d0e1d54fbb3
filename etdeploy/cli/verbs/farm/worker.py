"""etdeploy farm worker."""

from __future__ import annotations

from pathlib import Path

import click

from etdeploy.cli.options import complete_device
from etdeploy.core import console
from etdeploy.core.errors import UsageError

_FILE = click.Path(path_type=Path)


@click.command()
@click.option(
    "--scheduler",
    required=True,
    metavar="ADDRESS",
    help="Where the coordinator listens: tls://HOST:8786, as hosts.listen of its farm.yaml says.",
)
@click.option("--name", metavar="HOST", help="What this host is called; its host name by default.")
@click.option(
    "--pool",
    "pools",
    multiple=True,
    metavar="NAME",
    help="A pool that the devices of this host belong to; may be given several times.",
)
@click.option(
    "-d",
    "--device",
    "devices",
    multiple=True,
    metavar="DEVICE",
    shell_complete=complete_device,
    help="Offer only this device; may be given several times. By default every phone that is "
    "plugged in; boards (ssh:...) and this machine (host) only by name.",
)
@click.option("--tls-ca", type=_FILE, metavar="FILE", help="The farm's certificate authority.")
@click.option("--tls-cert", type=_FILE, metavar="FILE", help="This host's certificate.")
@click.option("--tls-key", type=_FILE, metavar="FILE", help="Its private key.")
@click.option(
    "--tls-crl", type=_FILE, metavar="FILE", help="The authority's list of revoked certificates."
)
def command(
    scheduler: str,
    name: str | None,
    pools: tuple[str, ...],
    devices: tuple[str, ...],
    tls_ca: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_crl: Path | None,
) -> None:
    """Offer the devices of this host to a farm on another.

    Stays between nights. Phones may be plugged in and out; Ctrl-C or SIGTERM ends it.
    """
    _require_distributed()
    from etdeploy.device_pool.reservations import this_host
    from etdeploy.devices.registry import parse_spec
    from etdeploy.farm.engine.host import local_dependencies, serve_host
    from etdeploy.farm.spec.model import Tls

    for device in devices:
        parse_spec(device)
    files = (tls_ca, tls_cert, tls_key)
    if any((*files, tls_crl)) and not all(files):
        raise UsageError("TLS needs all of --tls-ca, --tls-cert and --tls-key")
    tls = None
    if tls_ca and tls_cert and tls_key:
        tls = Tls(ca=tls_ca, cert=tls_cert, key=tls_key, crl=tls_crl)
    host = name or this_host()
    serve_host(
        host,
        scheduler,
        tls,
        lambda cache, folder: local_dependencies(cache, folder, host, devices, pools),
        console.message,
    )


def _require_distributed() -> None:
    from importlib.util import find_spec

    from etdeploy.core.commands import pip_command

    if find_spec("distributed") is None:
        raise UsageError(
            "several hosts need Dask distributed, which is not installed",
            remedy=pip_command("etdeploy[farm]"),
        )
