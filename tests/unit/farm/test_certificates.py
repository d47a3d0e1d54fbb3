from __future__ import annotations

import datetime
import ssl
import stat
from pathlib import Path

import pytest
from cryptography import x509

from etdeploy.core.errors import UsageError
from etdeploy.farm import certificates
from etdeploy.farm.certificates import (
    check_certificate,
    make_certificates,
    revoke_certificates,
    revoked_serials,
)
from etdeploy.farm.spec.model import Tls


def test_keys_are_for_their_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    [tls] = make_certificates(folder, ["a"])
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for key in (tls.key, folder / "ca-key.pem"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_further_hosts_are_signed_by_the_same_authority(tmp_path: Path) -> None:
    [first] = make_certificates(tmp_path, ["a"])
    authority = first.ca.read_bytes()
    [second] = make_certificates(tmp_path, ["b"])
    assert second.ca.read_bytes() == authority
    assert _handshake(first, second)


def test_certificates_of_hosts_expire_within_a_year(tmp_path: Path) -> None:
    [tls] = make_certificates(tmp_path, ["a"])
    certificate = x509.load_pem_x509_certificate(tls.cert.read_bytes())
    lifetime = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    assert lifetime <= datetime.timedelta(days=365)
    assert check_certificate(tls) is None


def test_a_revoked_certificate_is_refused_and_a_new_one_is_not(tmp_path: Path) -> None:
    server, a, b = make_certificates(tmp_path, ["server", "a", "b"])
    stolen = _copy(a, tmp_path / "stolen")
    crl = revoke_certificates(tmp_path, ["a"])
    assert crl == server.crl == tmp_path / "crl.pem"
    assert not a.cert.exists()
    assert not a.key.exists()
    [new] = make_certificates(tmp_path, ["a"])
    with pytest.raises(ssl.SSLError, match="certificate revoked"):
        _handshake(server, stolen)
    assert _handshake(server, b)
    assert _handshake(server, new)
    # The next one is added.
    revoke_certificates(tmp_path, ["b"])
    assert len(revoked_serials(crl)) == 2


def test_revoking_a_host_includes_certificates_that_were_renewed(tmp_path: Path) -> None:
    server, a, _ = make_certificates(tmp_path, ["server", "a", "a-2"])
    first = _copy(a, tmp_path / "first")
    make_certificates(tmp_path, ["a"], renew=True)
    second = _copy(a, tmp_path / "second")
    assert first.cert.read_bytes() != second.cert.read_bytes()
    assert first.key.read_bytes() != second.key.read_bytes()
    # Until then, both work: there is time to copy the new one.
    assert _handshake(server, first)
    assert _handshake(server, second)
    make_certificates(tmp_path, ["a-2"], renew=True)
    assert len(revoked_serials(revoke_certificates(tmp_path, ["a"]))) == 2
    for each in (first, second):
        with pytest.raises(ssl.SSLError, match="certificate revoked"):
            _handshake(server, each)


def test_only_hosts_that_have_a_certificate_can_be_revoked(tmp_path: Path) -> None:
    [tls] = make_certificates(tmp_path / "tls", ["a"])
    before = (tmp_path / "tls" / "crl.pem").read_bytes()
    with pytest.raises(UsageError, match="no certificate of 'b'"):
        revoke_certificates(tmp_path / "tls", ["a", "b"])
    assert (tmp_path / "tls" / "crl.pem").read_bytes() == before
    assert tls.cert.exists()
    with pytest.raises(UsageError, match="no certificate of 'a'"):
        revoke_certificates(tmp_path / "none", ["a"])
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(("days", "told"), [(20, "expires on"), (-0.5, "expired on")])
def test_a_certificate_that_expires_says_how_to_get_a_new_one(
    days: float, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "HOST_DAYS", days)
    [tls] = make_certificates(tmp_path, ["a"])
    if days < 0:
        with pytest.raises(UsageError, match=told) as caught:
            check_certificate(tls)
        text = f"{caught.value} {caught.value.remedy}"
    else:
        text = str(check_certificate(tls))
        assert told in text
    assert "etdeploy farm certificates FOLDER HOST --renew" in text
    assert str(tls.cert) in text


def test_the_own_certificate_is_not_used_once_it_was_revoked(tmp_path: Path) -> None:
    [a] = make_certificates(tmp_path, ["a"])
    mine = _copy(a, tmp_path / "mine")
    revoke_certificates(tmp_path, ["a"])
    with pytest.raises(UsageError, match="was revoked"):
        check_certificate(mine)
    (tmp_path / "crl.pem").write_text("nothing")
    with pytest.raises(UsageError, match=r"crl\.pem.*list of revoked"):
        check_certificate(mine)


def test_no_certificate_is_replaced(tmp_path: Path) -> None:
    [tls] = make_certificates(tmp_path, ["a"])
    before = tls.cert.read_bytes()
    with pytest.raises(UsageError, match="there is a certificate already"):
        make_certificates(tmp_path, ["b", "a"])
    assert tls.cert.read_bytes() == before
    assert not (tmp_path / "b.pem").exists()


@pytest.mark.parametrize("name", ["../a", "", "ca", "crl", "ca-key", "a/b", ".a", "a b"])
def test_a_name_that_is_no_file_name_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be a host's name"):
        make_certificates(tmp_path / "tls", [name])
    assert not (tmp_path / "tls").exists()


def test_an_authority_that_is_damaged_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    with pytest.raises(UsageError, match="cannot be read"):
        make_certificates(tmp_path, ["a"])


def _copy(tls: Tls, folder: Path) -> Tls:
    """A host's pair in a folder of its own, as on the host or with a thief."""
    folder.mkdir()
    cert, key = (path.rename(folder / path.name) for path in (tls.cert, tls.key))
    tls.cert.write_bytes(cert.read_bytes())
    tls.key.write_bytes(key.read_bytes())
    return tls.model_copy(update={"cert": cert, "key": key})


def _server(tls: Tls) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tls.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    context.load_verify_locations(tls.crl)
    context.load_cert_chain(tls.cert, tls.key)
    return context


def _handshake(server: Tls, client: Tls) -> bool:
    """Whether both sides accept each other, over buffers."""
    accepting = _server(server)
    opening = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=server.ca)
    opening.check_hostname = False
    opening.load_cert_chain(client.cert, client.key)
    for each in (accepting, opening):
        each.verify_flags |= ssl.VERIFY_X509_STRICT
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [opening.wrap_bio(down, up), accepting.wrap_bio(up, down, server_side=True)]
    done: set[int] = set()
    for _ in range(10):
        for number, side in enumerate(sides):
            try:
                side.do_handshake()
                done.add(number)
            except ssl.SSLWantReadError:
                pass
    return done == {0, 1}
