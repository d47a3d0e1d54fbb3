"""Which devices may be used, and on which host."""

from __future__ import annotations

from datetime import datetime, timezone

from etdeploy.farm.night.model import UnavailableKind
from etdeploy.farm.night.scheduler import choose_hosts, find_unavailable
from tests.support.farm_sim_engine import offer_of
from tests.support.farm_sim_ledger import quarantined, reserved

AT = datetime(2026, 11, 23, 2, 13, tzinfo=timezone.utc)
PHONE = offer_of(1, host="one")
SAME = offer_of(1, host="two")


def test_of_two_hosts_the_first_keeps_a_device() -> None:
    first = choose_hosts([PHONE, SAME], {})
    assert first.held["phone-001"].host == "one"
    assert first.doubles == {"phone-001": ("two",)}
    assert choose_hosts([SAME, PHONE], {"phone-001": "one"}).held["phone-001"].host == "one"
    assert choose_hosts([SAME], {"phone-001": "one"}).held["phone-001"].host == "two"
    broken = offer_of(1, host="one", problem="offline")
    assert choose_hosts([broken, SAME], {"phone-001": "one"}).held["phone-001"].host == "two"


def test_why_a_device_cannot_be_used() -> None:
    broken = offer_of(2, problem="phone is offline", remedy="plug it\nin again")
    phones = [offer_of(number) for number in range(5)]
    seen = {offer.identity: (offer, AT) for offer in phones}
    offers = {offer.identity: offer for offer in (phones[0], broken, phones[3], phones[4])}
    claims = [reserved("phone-003", "anna", AT)]
    aside = [quarantined("phone-004", "too warm")]
    found = find_unavailable(offers, seen, claims, aside, {"phone-000": "it ran hot"})
    assert {each: why.kind for each, why in found.items()} == {
        "phone-000": UnavailableKind.QUARANTINED,
        "phone-001": UnavailableKind.AWAY,
        "phone-002": UnavailableKind.PROBLEM,
        "phone-003": UnavailableKind.RESERVED,
        "phone-004": UnavailableKind.QUARANTINED,
    }
    assert "it ran hot" in found["phone-000"].text
    assert "2026-11-23" in found["phone-001"].text
    assert found["phone-002"].text.endswith("(plug it in again)")
    assert {"anna", "2026-11-23"} <= set(found["phone-003"].text.split())
    assert found["phone-003"].until == AT
    assert "too warm" in found["phone-004"].text
