"""How cool a device has to be before sustained work."""

from __future__ import annotations

from etdeploy.devices.base import Capabilities, DeviceState
from etdeploy.recipe.model import Cooldown


def cool_start(
    wanted: Cooldown | None, state: DeviceState, device: Capabilities
) -> Cooldown | None:
    """What to wait for before the pass; None for nothing.

    Where the recipe does not say it, a phone is to begin at 37 °C at most, as for
    react-native-executorch's benchmarks: the passes before may have warmed it. A machine with a fan
    is as cool as it gets after seconds, so it does not wait. Nor does the machine that etdeploy
    runs on: its battery is warm from charging.

    Args:
        wanted: The recipe's `benchmark.cooldown`.
        state: Of the device.
        device: What can be done with it.
    """
    if wanted is not None:
        return wanted
    is_phone = state.battery_celsius is not None and not device.shares_cores
    return Cooldown() if is_phone else None
