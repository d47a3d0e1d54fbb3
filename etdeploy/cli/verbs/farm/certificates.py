"""etdeploy farm certificates."""

from __future__ import annotations

from pathlib import Path

import click

from etdeploy.core import console
from etdeploy.core.commands import quoted
from etdeploy.core.errors import UsageError


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("hosts", nargs=-1, required=True, metavar="HOST...")
@click.option("--renew", is_flag=True, help="Replace certificates and keys that are there.")
@click.option("--revoke", is_flag=True, help="Put the hosts' certificates on the list of revoked.")
def command(folder: Path, hosts: tuple[str, ...], renew: bool, revoke: bool) -> None:
    """Make or revoke certificates for the coordinator and the hosts of a farm.

    FOLDER gets a private certificate authority (ca.pem, ca-key.pem), its list of revoked
    certificates (crl.pem), and HOST.pem and HOST-key.pem for each HOST, which expire within a year.
    With the authority already there, further hosts are added.

    Each host needs ca.pem, crl.pem and its own two files. Whoever has such a pair may run code on
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
        console.message(_REVOKED)
        return
    for tls in make_certificates(folder, names, renew=renew):
        console.result(
            f"--tls-ca {quoted(str(tls.ca))} --tls-cert {quoted(str(tls.cert))} "
            f"--tls-key {quoted(str(tls.key))} --tls-crl {quoted(str(tls.crl))}"
        )
    console.message(_MADE)


_MADE = """\
Copy to each host ca.pem, crl.pem and its own two files, e.g. with scp. In farm.yaml:
  hosts:
    listen: tls://ADDRESS:8786
    tls: {ca: ca.pem, cert: HOST.pem, key: HOST-key.pem, crl: crl.pem}"""
_REVOKED = """\
Copy this file to the coordinator (hosts.tls.crl in farm.yaml) and to each host (--tls-crl). A
running night then ends the connections of these certificates; hosts check each new connection."""
