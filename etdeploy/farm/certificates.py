"""A private certificate authority for a farm, and a certificate for each of its hosts.

Whoever has one of these certificates may run code on every host of the farm, so the authority signs
for nothing else, certificates expire within a year, and the authority keeps a list of revoked ones.
"""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from etdeploy.core.errors import UsageError
from etdeploy.core.files.basic import write_atomic
from etdeploy.farm.spec.model import Tls

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

    Authority = tuple[x509.Certificate, EllipticCurvePrivateKey]

HOST_DAYS = 364
_AUTHORITY_DAYS = 3650
_WARN_DAYS = 30
_CA, _CA_KEY, _CRL = "ca.pem", "ca-key.pem", "crl.pem"
# Certificates that were renewed or revoked: an older one may have to be revoked by name, too.
_OLD = "old"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
# Clocks of hosts differ.
_BEFORE = datetime.timedelta(days=1)


def make_certificates(folder: Path, hosts: list[str], *, renew: bool = False) -> list[Tls]:
    """Makes the authority, if the folder has none, and a certificate for each host.

    Args:
        folder: Made if missing, for its owner only.
        hosts: Their names.
        renew: Whether to replace certificates and keys that are there. The replaced certificates
            stay valid until they expire or are revoked.

    Returns:
        The files of each host.

    Raises:
        UsageError: A name cannot be one of a file, a host has a certificate already, or the
            authority in the folder is not one of etdeploy's.
        OSError: The folder cannot be written to.
    """
    for host in hosts:
        if not _NAME.fullmatch(host) or host in ("ca", "crl") or host.endswith("-key"):
            raise UsageError(
                f"{host!r} cannot be a host's name here",
                remedy="Use letters, digits, . _ - and none of ca, crl and names that end in -key",
            )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    files = [_files(folder, host) for host in hosts]
    for tls in files:
        if not renew and (tls.cert.exists() or tls.key.exists()):
            raise UsageError(
                "there is a certificate already",
                place=str(tls.cert),
                remedy="--renew replaces it by a new one; --revoke makes it useless",
            )
    authority = _authority(folder)
    if not (folder / _CRL).exists():
        _write_revoked(folder / _CRL, authority, ())
    for host, tls in zip(hosts, files, strict=True):
        _put_aside(tls)
        key = _new_key()
        _write(tls.key, tls.cert, key, _signed(host, key, authority))
    return files


def revoke_certificates(folder: Path, hosts: list[str]) -> Path:
    """Adds every certificate that was made for these hosts to the list of revoked ones.

    Args:
        folder: That of the authority.
        hosts: Names of hosts, which may get new certificates afterwards.

    Returns:
        The list; it has to be copied to the coordinator and to the hosts.

    Raises:
        UsageError: The folder has no certificate of a host, or no authority.
        OSError: The folder cannot be written to.
    """
    serials: set[int] = set()
    for host in hosts:
        found = _serials(folder, host)
        if not found:
            raise UsageError(
                f"there is no certificate of {host!r}",
                place=str(folder),
                remedy="Name the folder in which the certificate was made, with its ca-key.pem.",
            )
        serials |= found
    _write_revoked(folder / _CRL, _authority(folder), serials)
    for host in hosts:
        _put_aside(_files(folder, host))
    return folder / _CRL


def check_certificate(tls: Tls) -> str | None:
    """Refuses this host's certificate where others would.

    Returns:
        A warning, if it expires soon.

    Raises:
        UsageError: It has expired or was revoked, or a file does not hold what it should.
    """
    certificate = _loaded(tls.cert)
    remedy = (
        "On the machine with ca-key.pem: etdeploy farm certificates FOLDER HOST --renew; then copy "
        f"HOST.pem to {tls.cert} and HOST-key.pem to {tls.key}"
    )
    if tls.crl and certificate.serial_number in revoked_serials(tls.crl):
        raise UsageError("this certificate was revoked", place=str(tls.cert), remedy=remedy)
    expires = certificate.not_valid_after_utc
    left = expires - datetime.datetime.now(datetime.timezone.utc)
    if left < datetime.timedelta():
        message = f"this certificate expired on {expires:%Y-%m-%d}"
        raise UsageError(message, place=str(tls.cert), remedy=remedy)
    if left < datetime.timedelta(days=_WARN_DAYS):
        return f"{tls.cert}: this certificate expires on {expires:%Y-%m-%d}. {remedy}"
    return None


def revoked_serials(crl: Path) -> frozenset[int]:
    """Serial numbers of the certificates that an authority's list names."""
    from cryptography import x509

    try:
        return frozenset(e.serial_number for e in x509.load_pem_x509_crl(crl.read_bytes()))
    except OSError as error:
        raise UsageError(f"the file cannot be read: {error.strerror}", place=str(crl)) from error
    except ValueError as error:
        raise UsageError(
            "this is not a PEM file with a list of revoked certificates (X509 CRL)", place=str(crl)
        ) from error


def _loaded(path: Path) -> x509.Certificate:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise UsageError(f"the file cannot be read: {error.strerror}", place=str(path)) from error
    except ValueError as error:
        raise UsageError(f"the certificate cannot be read: {error}", place=str(path)) from error


def _serials(folder: Path, host: str) -> set[int]:
    """Serial numbers of all certificates in the folder that were made for a host."""
    from cryptography.x509.oid import NameOID

    paths = [folder / f"{host}.pem", *(folder / _OLD).glob(f"{host}-*.pem")]
    found = [_loaded(path) for path in paths if path.exists()]
    name = NameOID.COMMON_NAME
    return {
        each.serial_number
        for each in found
        if [attribute.value for attribute in each.subject.get_attributes_for_oid(name)] == [host]
    }


def _put_aside(tls: Tls) -> None:
    """Keeps a certificate, if there is one, so that it can still be revoked; deletes its key."""
    if tls.cert.exists():
        old = tls.cert.parent / _OLD
        old.mkdir(mode=0o700, exist_ok=True)
        tls.cert.rename(old / f"{tls.cert.stem}-{_loaded(tls.cert).serial_number:x}.pem")
    tls.key.unlink(missing_ok=True)


def _write_revoked(path: Path, authority: Authority, serials: Iterable[int]) -> None:
    """Writes the list of revoked certificates, or adds to it."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.serialization import Encoding

    certificate, key = authority
    date = datetime.datetime.now(datetime.timezone.utc) - _BEFORE
    serials = set(serials)
    if path.exists():
        serials |= revoked_serials(path)
        # OpenSSL takes the later of two lists.
        before = x509.load_pem_x509_crl(path.read_bytes()).last_update_utc
        date = max(date, before + datetime.timedelta(seconds=1))
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(certificate.subject)
        .last_update(date)
        # A list that has expired would refuse every host.
        .next_update(certificate.not_valid_after_utc)
        .add_extension(x509.CRLNumber(int(date.timestamp())), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False
        )
    )
    for serial in sorted(serials):
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(date)
        builder = builder.add_revoked_certificate(entry.build())
    write_atomic(path, builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))


def _files(folder: Path, host: str) -> Tls:
    return Tls(
        ca=folder / _CA,
        cert=folder / f"{host}.pem",
        key=folder / f"{host}-key.pem",
        crl=folder / _CRL,
    )


def _authority(folder: Path) -> Authority:
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
    authority: Authority | None,
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
        .not_valid_after(now + datetime.timedelta(days=HOST_DAYS if authority else _AUTHORITY_DAYS))
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
