"""What sustained work waits for."""

from __future__ import annotations

from etdeploy.bench.measure import cool_start
from etdeploy.devices.base import Capabilities, DeviceState
from etdeploy.recipe.model import Cooldown

_PHONE = DeviceState(battery_celsius=41.0)
_ELSEWHERE = Capabilities()


def test_the_recipe_decides() -> None:
    wanted = Cooldown(max_celsius=30)
    assert cool_start(wanted, DeviceState(), _ELSEWHERE) == wanted


def test_a_phone_waits_without_being_told() -> None:
    assert cool_start(None, _PHONE, _ELSEWHERE) == Cooldown(max_celsius=37, timeout_s=300)


def test_a_machine_with_a_fan_does_not_wait() -> None:
    board = DeviceState(temperatures_celsius={"cpu-thermal": 60.0})
    assert cool_start(None, board, _ELSEWHERE) is None
    assert cool_start(None, _PHONE, Capabilities(shares_cores=True)) is None
