"""Values as text, also those that are no numbers."""

from __future__ import annotations

import json
import math

import pytest

from etdeploy.compare.model import Ratio, Verdict
from etdeploy.report import formatting
from etdeploy.report.document import NOTHING
from tests.support.report_values import make_comparison, make_report_data


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_a_dash(value: float | None) -> None:
    unit = formatting.time_unit(value)
    texts = (formatting.duration(value), formatting.percent(value), formatting.number(value))
    assert set(texts) == {NOTHING}
    assert formatting.in_unit(unit, value) == NOTHING


def test_numbers_have_their_units() -> None:
    assert formatting.duration(0.5) == "0.5000 ms"
    assert (formatting.percent(2.345), formatting.percent(41.2)) == ("2.3 %", "41 %")
    assert (formatting.size(None), formatting.size(1500)) == (NOTHING, "1.5 kB")
    assert formatting.utc_text("2026-11-21T08:44:49+00:00") == "2026-11-21 08:44:49 UTC"


def test_json_has_no_nan() -> None:
    value = {"a": [math.nan, 1.5, (math.inf,)], "b": {"c": -math.inf}, "d": "NaN"}
    assert formatting.finite(value) == {"a": [None, 1.5, [None]], "b": {"c": None}, "d": "NaN"}
    json.dumps(formatting.finite(value), allow_nan=False)


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (Ratio(median=1.0812, low=1.0449, high=1.12), "1.081 (1.045 to 1.120)"),
        (Ratio(median=1.0812, low=None, high=None), "1.081"),
        (Ratio(median=math.nan, low=None, high=None), NOTHING),
        (None, NOTHING),
    ],
)
def test_a_ratio_has_its_interval(ratio: Ratio | None, text: str) -> None:
    comparison = make_comparison(make_report_data(), Verdict.SLOWER, ratio=ratio)
    assert formatting.ratio_text(comparison) == text
