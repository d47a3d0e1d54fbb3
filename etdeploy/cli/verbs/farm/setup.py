"""etdeploy farm init, worker, certificates and schema."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from etdeploy.cli.options import complete_device
from etdeploy.core import console
from etdeploy.core.commands import pip_command, quoted
from etdeploy.core.errors import UsageError

if TYPE_CHECKING:
    from etdeploy.farm.scaffold import FarmSite

_LOCALTIME = Path("/etc/localtime")
_FILE = click.Path(path_type=Path)
_COPY_CERTIFICATES = """\
Copy to each host ca.pem, crl.pem and its own two files, e.g. with scp. In farm.yaml:
  hosts:
    listen: tls://ADDRESS:8786
    tls: {ca: ca.pem, cert: HOST.pem, key: HOST-key.pem, crl: crl.pem}"""
_COPY_REVOKED = """\
Copy this file to the coordinator (hosts.tls.crl in farm.yaml) and to each host (--tls-crl). A
running night then ends the connections of these certificates; hosts check each new connection."""


@click.command()
@click.argument(
    "folder", default=".", type=click.Path(path_type=Path, file_okay=False), metavar="[FOLDER]"
)
def init(folder: Path) -> None:
    """Write a farm.yaml for the connected devices, a GitHub workflow and a systemd timer.

    FOLDER is the current folder by default. The workflow is for a self-hosted runner and goes to
    the top of the git repository; the systemd units contain the commands that install them.
    Existing files are never overwritten.
    """
    from etdeploy.farm.scaffold import farm_files, write_new

    site = _site(folder.resolve())
    written = write_new(farm_files(site))
    for path in written:
        console.result(str(path))
    plan = f"etdeploy farm plan {quoted(os.path.relpath(site.folder / 'farm.yaml'))}"
    text = "All files exist already." if not written else "Check the farm.yaml, then run:"
    console.message(f"\n{text}  {plan}")


def _site(folder: Path) -> FarmSite:
    from etdeploy.backends.schemes import DEFAULT_RECIPE
    from etdeploy.devices.registry import list_devices
    from etdeploy.farm.scaffold import FarmSite

    return FarmSite(
        folder=folder,
        devices=list_devices(),
        command=_command(),
        repository=_repository(folder),
        timezone=_timezone(),
        recipe=DEFAULT_RECIPE,
    )


def _command() -> Path:
    """This etdeploy: beside the interpreter, where a virtual environment has it."""
    import shutil

    beside = Path(sys.executable).with_name("etdeploy")
    found = shutil.which("etdeploy")
    return beside if beside.is_file() or not found else Path(found)


def _repository(folder: Path) -> Path:
    """The top of the git repository that a folder is in, which may not exist yet."""
    return next((up for up in (folder, *folder.parents) if (up / ".git").exists()), folder)


def _timezone() -> str | None:
    """The IANA name of this machine's time zone, by the link that names its file."""
    from etdeploy.farm.spec.conditions import zone_problem

    name = os.environ.get("TZ", "").removeprefix(":")
    if not name and _LOCALTIME.is_symlink():
        name = str(_LOCALTIME.resolve()).rpartition("/zoneinfo/")[2]
    return name if name and zone_problem(name) is None else None


@click.command()
@click.option(
    "--scheduler",
    required=True,
    metavar="ADDRESS",
    help="The coordinator's address, tls://HOST:8786: hosts.listen of its farm.yaml.",
)
@click.option("--name", metavar="HOST", help="A name for this host. By default its host name.")
@click.option(
    "--pool",
    "pools",
    multiple=True,
    metavar="NAME",
    help="A pool that this host's devices belong to. Repeatable.",
)
@click.option(
    "-d",
    "--device",
    "devices",
    multiple=True,
    metavar="DEVICE",
    shell_complete=complete_device,
    help="Offer only this device. Repeatable. By default all connected phones; boards (ssh:...) "
    "and this machine (host) have to be named.",
)
@click.option("--tls-ca", type=_FILE, metavar="FILE", help="The farm's certificate authority.")
@click.option("--tls-cert", type=_FILE, metavar="FILE", help="This host's certificate.")
@click.option("--tls-key", type=_FILE, metavar="FILE", help="This host's private key.")
@click.option("--tls-crl", type=_FILE, metavar="FILE", help="The authority's revocation list.")
def worker(
    scheduler: str,
    name: str | None,
    pools: tuple[str, ...],
    devices: tuple[str, ...],
    tls_ca: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_crl: Path | None,
) -> None:
    """Offer the devices of this host to a farm on another host.

    It keeps running between nights. Phones may be plugged in and out; Ctrl-C or SIGTERM ends it.
    """
    _require_distributed()
    from etdeploy.device_pool import this_host
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

    if find_spec("distributed") is None:
        raise UsageError(
            "several hosts need Dask distributed, which is not installed",
            remedy=pip_command("etdeploy[farm]"),
        )


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("hosts", nargs=-1, required=True, metavar="HOST...")
@click.option("--renew", is_flag=True, help="Replace existing certificates and keys.")
@click.option("--revoke", is_flag=True, help="Add the hosts' certificates to the revocation list.")
def certificates(folder: Path, hosts: tuple[str, ...], renew: bool, revoke: bool) -> None:
    """Create or revoke certificates for the coordinator and the hosts of a farm.

    FOLDER gets a private certificate authority (ca.pem, ca-key.pem), its revocation list (crl.pem),
    and HOST.pem and HOST-key.pem for each HOST, which expire within a year. If FOLDER has an
    authority, hosts are added.

    Each host needs ca.pem, crl.pem and its own two files. Whoever has such a pair can run code on
    every host; keep ca-key.pem on one machine.
    """
    from etdeploy.farm.certificates import make_certificates, revoke_certificates

    if renew and revoke:
        raise UsageError(
            "choose one of --renew and --revoke", remedy="After --revoke, make a new certificate."
        )
    names = list(dict.fromkeys(hosts))
    if revoke:
        console.result(str(revoke_certificates(folder, names)))
        console.message(_COPY_REVOKED)
        return
    for tls in make_certificates(folder, names, renew=renew):
        console.result(
            f"--tls-ca {quoted(str(tls.ca))} --tls-cert {quoted(str(tls.cert))} "
            f"--tls-key {quoted(str(tls.key))} --tls-crl {quoted(str(tls.crl))}"
        )
    console.message(_COPY_CERTIFICATES)


@click.command()
def schema() -> None:
    """Print the JSON Schema of farm.yaml, for completion in editors."""
    from etdeploy.farm.spec.written import schema as make_schema

    console.result_json(make_schema())
