from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("distributed", reason="Dask distributed is not installed (the extra farm)")

from etdeploy.core.errors import UsageError
from etdeploy.farm.engine.dask.orders import HostRegistry
from etdeploy.farm.engine.dask.settings import parse_address, require_safe, security_of
from etdeploy.farm.engine.dask.wire import (
    About,
    Announcement,
    Hello,
    Versions,
    mismatch,
    own_versions,
)
from etdeploy.farm.spec.model import Tls
from tests.support.farm_host import offer_of

HERE = Versions(etdeploy="0.5.0", python="3.11", distributed="2026.8.0")
TLS = Tls(ca=Path("ca.pem"), cert=Path("a.pem"), key=Path("a-key.pem"))


def test_equal_versions_fit() -> None:
    assert mismatch(HERE, HERE) is None
    assert mismatch(own_versions(), own_versions()) is None


@pytest.mark.parametrize(
    ("changes", "told", "remedy"),
    [
        ({"etdeploy": "0.4.0"}, "the host has etdeploy 0.4.0 (here 0.5.0)",
         "pip install 'etdeploy==0.5.0'"),
        ({"python": "3.12"}, "the host has Python 3.12 (here 3.11)",
         "set up a virtual environment with Python 3.11 on that host"),
        ({"etdeploy": "0.4.0", "distributed": "2026.9.0"},
         "the host has etdeploy 0.4.0 (here 0.5.0), distributed 2026.9.0 (here 2026.8.0)",
         "pip install 'etdeploy==0.5.0' 'distributed==2026.8.0'"),
    ],
)  # fmt: skip
def test_what_differs_is_named_with_its_remedy(
    changes: dict[str, str], told: str, remedy: str
) -> None:
    assert mismatch(HERE.model_copy(update=changes), HERE) == (told, remedy)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("tls://farm.local:8786", ("tls", "farm.local", 8786)),
        ("tcp://[::1]:80", ("tcp", "[::1]", 80)),
    ],
)
def test_addresses_are_read(text: str, parts: tuple[str, str, int]) -> None:
    assert parse_address(text) == parts


@pytest.mark.parametrize(
    "text", ["farm:8786", "http://farm:1", "tls://farm", "tls://farm:99999", "tls://:1", "tls://a:1/b"]
)  # fmt: skip
def test_other_addresses_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a scheduler address"):
        parse_address(text)


@pytest.mark.parametrize(
    ("address", "tls", "told"),
    [
        ("tls://farm:1", None, "needs certificates"),
        ("tcp://127.0.0.1:1", TLS, "does not use them"),
        ("tcp://10.0.0.1:1", None, "has no TLS"),
        ("tcp://0.0.0.0:1", None, "has no TLS"),
        ("tcp://farm:1", None, "has no TLS"),
    ],
)
def test_what_others_could_reach_needs_tls(address: str, tls: Tls | None, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        require_safe(address, tls)


@pytest.mark.parametrize(
    ("address", "tls"),
    [("tls://farm:1", TLS), ("tcp://127.0.0.1:1", None), ("tcp://localhost:1", None),
     ("tcp://[::1]:1", None)],
)  # fmt: skip
def test_the_rest_is_safe(address: str, tls: Tls | None) -> None:
    require_safe(address, tls)


def test_files_that_are_no_certificates_are_named(tmp_path: Path) -> None:
    wrong = tmp_path / "a.pem"
    wrong.write_text("x")
    with pytest.raises(UsageError, match=r"a\.pem.*no PEM file"):
        security_of(Tls(ca=wrong, cert=wrong, key=wrong))
    with pytest.raises(UsageError, match="cannot be read"):
        security_of(Tls(ca=tmp_path / "none", cert=wrong, key=wrong))


def _connected(hosts: HostRegistry, host: str, session: str, *phones: str) -> None:
    assert not hosts.welcome(Hello(host=host, session=session, versions=HERE)).refused
    hosts.came(About(session=session, host=host), f"tcp://{session}")
    offers = tuple(offer_of(phone, host) for phone in phones)
    hosts.announced(Announcement(session=session, offers=offers))
    for phone in phones:
        about = About(session=session, host=host, identity=phone)
        hosts.came(about, f"tcp://{session}-{phone}")


def test_a_phone_on_two_hosts_is_offered_twice() -> None:
    hosts = HostRegistry()
    _connected(hosts, "a", "1", "p")
    _connected(hosts, "b", "2", "p")
    assert [(o.identity, o.host) for o in hosts.offers()] == [("p", "a"), ("p", "b")]


def test_a_name_belongs_to_one_process_as_long_as_it_is_connected() -> None:
    hosts = HostRegistry()
    _connected(hosts, "a", "1", "p")
    other = Hello(host="a", session="2", versions=HERE)
    refused = hosts.welcome(other)
    assert "another host is connected as 'a'" in refused.refused
    assert not refused.final
    assert not hosts.is_welcome(About(session="2", host="a"))
    hosts.went(About(session="1", host="a"), "tcp://1")
    assert list(hosts.offers()) == []
    assert not hosts.welcome(other).refused
    assert hosts.is_welcome(About(session="2", host="a"))


def test_an_old_worker_that_goes_takes_nothing_of_a_new_one_along() -> None:
    hosts = HostRegistry()
    _connected(hosts, "a", "1", "p")
    about = About(session="1", host="a", identity="p")
    hosts.came(about, "tcp://new")
    hosts.went(about, "tcp://1-p")
    assert hosts.phone("a", "p") == "tcp://new"
    hosts.went(About(session="0", host="a"), "tcp://0")
    assert hosts.session("a") == "1"


def test_a_phone_with_a_problem_is_offered_without_a_worker() -> None:
    hosts = HostRegistry()
    _connected(hosts, "a", "1")
    broken = offer_of("p", "a").model_copy(update={"problem": "unauthorized"})
    hosts.announced(Announcement(session="1", offers=(broken, offer_of("q", "a"))))
    assert [offer.identity for offer in hosts.offers()] == ["p"]
