"""The recovery ladder and its bounds."""

from __future__ import annotations

from etdeploy.core.errors import DeviceError
from etdeploy.devices.base import Capabilities
from etdeploy.farm.model import AvailableDevice
from etdeploy.farm.night.devices import recovery_steps, run_recovery, steps_for_problem
from tests.support.farm_sim_engine import SimClock, SimEngine, offer_of

PHONE = offer_of(1)


def steps(failures: int, quarantine_after: int, **taken: int) -> tuple[str, ...]:
    return recovery_steps(PHONE, failures, quarantine_after, taken, host_is_busy=False)


def test_the_last_chance_before_quarantine_is_a_reboot() -> None:
    assert steps(1, 3) == ("reconnect", "restart", "reboot")
    assert steps(2, 3) == ("reboot",)
    assert steps(3, 3) == ()
    assert [steps(failures, 4)[0] for failures in (1, 2, 3)] == ["reconnect", "restart", "reboot"]
    assert steps(1, 1) == ()
    # Each step is taken so often only.
    assert steps(1, 3, reconnect=4) == ("restart", "reboot")
    assert steps(2, 3, reboot=1) == ()


def test_nothing_restarts_adb_while_its_host_measures() -> None:
    assert "restart" not in recovery_steps(PHONE, 1, 3, {}, host_is_busy=True)
    assert steps_for_problem({}, host_is_busy=True) == ("reconnect",)


def test_a_computer_of_the_farm_is_never_rebooted() -> None:
    for own in (Capabilities(is_here=True), Capabilities(shares_cores=True)):
        host = offer_of(1, capabilities=own)
        assert recovery_steps(host, 1, 3, {}, host_is_busy=False) == ()


class _Stubborn(SimEngine):
    """Its first steps fail."""

    def recover(self, offer: AvailableDevice, step: str) -> AvailableDevice:
        self.recovered.append((offer.identity, step))
        if step == "reconnect":
            raise DeviceError("the host does not answer")
        return offer.model_copy(update={"problem": "" if step == "reboot" else "offline"})


def test_climbing_ends_with_the_first_step_that_helps() -> None:
    engine = _Stubborn(SimClock(), [PHONE])
    done = run_recovery(engine, PHONE, ("reconnect", "restart", "reboot"))
    assert done.steps == ("reconnect", "restart", "reboot")
    assert done.offer is not None
    failed = run_recovery(engine, PHONE, ("reconnect",))
    assert (failed.offer, failed.problem) == (None, "the host does not answer")
