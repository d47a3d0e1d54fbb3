"""A battery's current and voltage, whose units and signs differ between makers; all pure."""

from __future__ import annotations

# What a phone or laptop draws at least while it runs, in mA.
_LEAST_MA = 20


def milliamps(raw: int | None, charging: bool | None) -> float | None:
    """The current out of a battery in mA, from its `current_now`; None where it cannot be told.

    Linux says µA, negative while the battery is discharged
    (https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-class-power). Samsung's kernels say
    mA, and Qualcomm's old ones and Huawei's have the other sign. So the sign follows from the
    battery's status. The unit follows from the size: less than 20,000 µA would be less than a
    device draws while it runs, and 20,000 mA is more than a charger gives.

    Args:
        raw: As the device reports it.
        charging: Whether its status is charging, or discharging; None for neither, as when it is
            full. Then the current may be anything, so a small one has no unit.
    """
    if raw is None or abs(raw) >= 2**31 - 1:  # what Android's service says for "unknown"
        return None
    is_micro = abs(raw) >= 1000 * _LEAST_MA
    if charging is None:
        return -raw / 1000 if is_micro else None
    size = abs(raw) / 1000 if is_micro else float(abs(raw))
    if not is_micro and size < _LEAST_MA and not charging:
        return None  # such as 0, which some report for "unknown"
    return -size if charging else size


def volts(raw: int | None) -> float | None:
    """A battery's voltage in V, which is reported in µV, mV or V; None for no possible one."""
    for scale in (1_000_000, 1000, 1):
        if raw is not None and 2 <= raw / scale <= 100:
            return raw / scale
    return None
