from __future__ import annotations

import ssl
import stat
from pathlib import Path

import pytest

from etdeploy.core.errors import UsageError
from etdeploy.farm.engine.certificates import make_certificates


def test_each_host_has_a_certificate_that_strict_checks_accept(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    found = make_certificates(folder, ["coordinator", "shelf-1"])
    assert [tls.cert.name for tls in found] == ["coordinator.pem", "shelf-1.pem"]
    for tls in found:
        assert _handshake(found[0].cert, found[0].key, tls.cert, tls.key, tls.ca)


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
    assert _handshake(first.cert, first.key, second.cert, second.key, first.ca)


def test_no_certificate_is_replaced(tmp_path: Path) -> None:
    [tls] = make_certificates(tmp_path, ["a"])
    before = tls.cert.read_bytes()
    with pytest.raises(UsageError, match="there is a certificate already"):
        make_certificates(tmp_path, ["b", "a"])
    assert tls.cert.read_bytes() == before
    assert not (tmp_path / "b.pem").exists()


@pytest.mark.parametrize("name", ["../a", "", "ca", "a/b", ".a", "a b"])
def test_a_name_that_is_no_file_name_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be a host's name"):
        make_certificates(tmp_path / "tls", [name])
    assert not (tmp_path / "tls").exists()


def test_an_authority_that_is_damaged_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    with pytest.raises(UsageError, match="cannot be read"):
        make_certificates(tmp_path, ["a"])


def _handshake(cert: Path, key: Path, other: Path, other_key: Path, authority: Path) -> bool:
    """Whether both sides accept each other, over buffers."""
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority)
    client = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=authority)
    server.verify_mode, client.check_hostname = ssl.CERT_REQUIRED, False
    for context in (server, client):
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    server.load_cert_chain(cert, key)
    client.load_cert_chain(other, other_key)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [client.wrap_bio(down, up), server.wrap_bio(up, down, server_side=True)]
    done: set[int] = set()
    for _ in range(10):
        for number, side in enumerate(sides):
            try:
                side.do_handshake()
                done.add(number)
            except ssl.SSLWantReadError:
                pass
    return done == {0, 1}
