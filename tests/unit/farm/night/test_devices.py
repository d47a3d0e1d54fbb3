"""The devices of a running night after an attempt to recover one."""

from __future__ import annotations

import pytest

from etdeploy.farm.night.devices import Devices, RecoveryResult
from etdeploy.farm.night.model import Event, EventSink, Rules, UnavailableKind
from tests.support.farm_sim import AtOnce
from tests.support.farm_sim_engine import SimClock, SimEngine, offer_of
from tests.support.farm_sim_ledger import SimDevicePool

PHONE = offer_of(1)
OTHER = offer_of(2)


class _Farm:
    """Two phones without a problem, seen by a night."""

    def __init__(self) -> None:
        clock = SimClock()
        self.events: list[Event] = []
        self.engine = SimEngine(clock, [PHONE, OTHER])
        self.devices = Devices(
            self.engine,
            SimDevicePool(clock),
            clock,
            Rules(),
            AtOnce(),
            EventSink(self.events.append),
        )
        self.devices.look()

    @property
    def unavailable(self) -> dict[str, tuple[UnavailableKind, str]]:
        found = self.devices.find_unavailable([PHONE.identity, OTHER.identity])
        return {identity: (each.kind, each.text) for identity, each in found.items()}

    def new_texts(self) -> list[str]:
        texts = [event.text for event in self.events]
        self.events.clear()
        return texts


@pytest.fixture
def farm() -> _Farm:
    made = _Farm()
    assert made.unavailable == {}
    return made


def test_a_phone_whose_recovery_failed_gets_no_attempt_before_its_host_looks_again(
    farm: _Farm,
) -> None:
    farm.devices.recovering.add(PHONE.identity)
    assert farm.unavailable == {PHONE.identity: (UnavailableKind.RECOVERING, "being recovered")}
    steps = ("reconnect", "reboot")
    farm.devices.recovered(RecoveryResult(PHONE.identity, steps, None, "device offline"))
    # Its host offered it without a problem when it looked last.
    assert farm.unavailable == {
        PHONE.identity: (UnavailableKind.PROBLEM, "not usable: device offline")
    }
    [text] = farm.new_texts()
    assert PHONE.name in text
    assert "still cannot be used after reconnect, reboot: device offline" in text


def test_a_phone_whose_problem_is_gone_at_the_next_look_is_reported_as_usable(
    farm: _Farm,
) -> None:
    result = RecoveryResult(PHONE.identity, ("reconnect",), None, "device offline")
    farm.devices.recovered(result)
    farm.new_texts()
    farm.devices.look()
    assert farm.unavailable == {}
    assert farm.new_texts() == [f"{PHONE.name} can be used again"]
    farm.devices.look()
    assert farm.new_texts() == []


def test_the_problem_that_the_host_reports_is_kept_after_a_failed_recovery(farm: _Farm) -> None:
    farm.engine.plug(PHONE.model_copy(update={"problem": "unauthorized", "remedy": "Unlock it."}))
    farm.devices.look()
    farm.devices.recovered(RecoveryResult(PHONE.identity, ("reconnect",), None, "device offline"))
    assert farm.unavailable == {
        PHONE.identity: (UnavailableKind.PROBLEM, "not usable: unauthorized (Unlock it.)")
    }


def test_a_recovered_phone_can_be_used_at_once(farm: _Farm) -> None:
    farm.engine.plug(PHONE.model_copy(update={"problem": "offline"}))
    farm.devices.look()
    assert farm.unavailable[PHONE.identity][0] is UnavailableKind.PROBLEM
    farm.new_texts()
    farm.devices.recovered(RecoveryResult(PHONE.identity, ("reconnect", "restart"), PHONE))
    assert farm.unavailable == {}
    assert farm.new_texts() == [f"{PHONE.name} can be used again after: restart"]


def test_a_phone_that_is_unplugged_while_it_is_recovered_stays_away(farm: _Farm) -> None:
    farm.engine.unplug(PHONE.identity)
    farm.devices.look()
    farm.devices.recovered(RecoveryResult(PHONE.identity, ("reconnect",), None, "not there"))
    assert farm.unavailable[PHONE.identity][0] is UnavailableKind.AWAY
    assert PHONE.identity not in farm.devices.offers
