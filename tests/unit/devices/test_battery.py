"""Units and signs of what batteries report."""

from __future__ import annotations

import pytest

from etdeploy.devices.sysfs import milliamps, volts


@pytest.mark.parametrize(
    ("raw", "charging", "expected"),
    [
        # Linux' own units and signs, as on Pixels.
        (-612_000, False, 612.0),
        (458_000, True, -458.0),
        # The other sign: Qualcomm's older kernels, and Huawei while it charges.
        (612_000, False, 612.0),
        (-427_943, True, -427.943),
        # Samsung's mA.
        (-412, False, 412.0),
        (321, True, -321.0),
        # Full: what flows may go either way, and a small number has no unit.
        (-30_000, None, 30.0),
        (300, None, None),
        # Unknown.
        (None, False, None),
        (0, False, None),
        (-2_147_483_648, False, None),
    ],
)
def test_currents(raw: int | None, charging: bool | None, expected: float | None) -> None:
    assert milliamps(raw, charging) == expected


@pytest.mark.parametrize(
    ("raw", "expected"),
    [(3_912_000, 3.912), (4231, 4.231), (13, 13.0), (0, None), (-1, None), (None, None)],
)
def test_voltages(raw: int | None, expected: float | None) -> None:
    assert volts(raw) == expected
