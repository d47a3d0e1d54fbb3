"""A private certificate authority for a farm, and a certificate for each of its hosts.

Whoever has one of these certificates may run code on every host of the farm, so the authority signs
for nothing else.
"""

from __future__ import annotations

import datetime
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from etdeploy.core.errors import UsageError
from etdeploy.core.files.basic import write_atomic
from etdeploy.farm.spec.model import Tls

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

DAYS = 3650
_CA, _CA_KEY = "ca.pem", "ca-key.pem"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
# Clocks of hosts differ.
_BEFORE = datetime.timedelta(days=1)


def make_certificates(folder: Path, hosts: list[str]) -> list[Tls]:
    """Makes the authority, if the folder has none, and a certificate for each host.

    Args:
        folder: Made if missing, for its owner only.
        hosts: Their names.

    Returns:
        The files of each host.

    Raises:
        UsageError: A name cannot be one of a file, a host has a certificate already, or the
            authority in the folder is not one of etdeploy's.
        OSError: The folder cannot be written to.
    """
    for host in hosts:
        if not _NAME.fullmatch(host) or host == "ca":
            raise UsageError(f"{host!r} cannot be a host's name here: letters, digits, . _ -")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    files = [_files(folder, host) for host in hosts]
    for tls in files:
        if tls.cert.exists() or tls.key.exists():
            raise UsageError(
                "there is a certificate already", place=str(tls.cert), remedy="delete it first"
            )
    authority = _authority(folder)
    for host, tls in zip(hosts, files, strict=True):
        key = _new_key()
        _write(tls.key, tls.cert, key, _signed(host, key, authority))
    return files


def _files(folder: Path, host: str) -> Tls:
    return Tls(ca=folder / _CA, cert=folder / f"{host}.pem", key=folder / f"{host}-key.pem")


def _authority(folder: Path) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if not (folder / _CA).exists() and not (folder / _CA_KEY).exists():
        own = _new_key()
        _write(folder / _CA_KEY, folder / _CA, own, _signed("etdeploy farm", own, None))
    try:
        certificate = x509.load_pem_x509_certificate((folder / _CA).read_bytes())
        key = load_pem_private_key((folder / _CA_KEY).read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(
            f"the certificate authority cannot be read: {error}", place=str(folder / _CA)
        ) from error
    if not isinstance(key, EllipticCurvePrivateKey):
        raise UsageError("the certificate authority is not of etdeploy", place=str(folder / _CA))
    return certificate, key


def _new_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _signed(
    name: str,
    key: EllipticCurvePrivateKey,
    authority: tuple[x509.Certificate, EllipticCurvePrivateKey] | None,
) -> x509.Certificate:
    """A certificate for a host, or with None that of the authority itself.

    It has every extension that OpenSSL's strict checks ask for, which are Python 3.13's default.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issuer, signer = (authority[0].subject, authority[1]) if authority else (subject, key)
    now = datetime.datetime.now(datetime.timezone.utc)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    path_length = None if authority else 0
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .add_extension(x509.BasicConstraints(authority is None, path_length), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(identifier, critical=False)
        .add_extension(_usage(is_authority=authority is None), critical=True)
    )
    if authority:
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(both), critical=False)
        names = x509.SubjectAlternativeName([x509.DNSName(name)])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(signer, hashes.SHA256())


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )


def _write(
    key_file: Path,
    certificate_file: Path,
    key: EllipticCurvePrivateKey,
    certificate: x509.Certificate,
) -> None:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    data = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    # Nobody else may read it, not even for a moment.
    handle = os.open(key_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as stream:
        stream.write(data)
    write_atomic(certificate_file, certificate.public_bytes(Encoding.PEM))
