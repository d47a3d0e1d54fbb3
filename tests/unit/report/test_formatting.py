"""Values as text, also those that are no numbers."""

from __future__ import annotations

import math

import pytest

from etdeploy.report import formatting
from etdeploy.report.document import NOTHING


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_a_dash(value: float | None) -> None:
    unit = formatting.time_unit(value)
    texts = (formatting.duration(value), formatting.percent(value), formatting.number(value))
    assert set(texts) == {NOTHING}
    assert formatting.in_unit(unit, value) == NOTHING
