"""etdeploy farm certificates."""

from __future__ import annotations

from pathlib import Path

import click

from etdeploy.core import console
from etdeploy.core.text.shell import quoted


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("hosts", nargs=-1, required=True, metavar="HOST...")
def command(folder: Path, hosts: tuple[str, ...]) -> None:
    """Make certificates for the coordinator and the hosts of a farm.

    FOLDER gets a private certificate authority (ca.pem, ca-key.pem), and HOST.pem and HOST-key.pem
    for each HOST. With the authority already there, further hosts are added.

    Each host needs ca.pem and its own two files. Whoever has such a pair may run code on every
    host; keep ca-key.pem on one machine.
    """
    from etdeploy.farm.engine.certificates import make_certificates

    for tls in make_certificates(folder, list(dict.fromkeys(hosts))):
        console.result(
            f"--tls-ca {quoted(str(tls.ca))} --tls-cert {quoted(str(tls.cert))} "
            f"--tls-key {quoted(str(tls.key))}"
        )
    console.message(
        "Copy to each host ca.pem and its own two files, e.g. with scp. In farm.yaml:\n"
        "  hosts: {listen: tls://0.0.0.0:8786, tls: {ca: ca.pem, cert: HOST.pem, key: "
        "HOST-key.pem}}"
    )
