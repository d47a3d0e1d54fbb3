"""Curves in a line of text."""

from __future__ import annotations

import math

import pytest

from etdeploy.core.layout import sparkline


@pytest.mark.parametrize(
    ("values", "drawn"),
    [
        ([], ""),
        ([3], "▅"),
        ([1, 1, 1], "▅▅▅"),
        ([0, 1, 2, 3, 4, 5, 6, 7], "▁▂▃▄▅▆▇█"),
        ([0, math.nan, 7], "▁ █"),
        ([math.nan], " "),
    ],
)
def test_values_are_bars(values: list[float], drawn: str) -> None:
    assert sparkline(values, 10) == drawn


def test_many_values_are_averaged() -> None:
    line = sparkline([10.0] * 500 + [0.0] * 500, 20)
    assert line == "█" * 10 + "▁" * 10
    assert len(sparkline(list(range(101)), 30)) == 30


def test_a_given_scale_shows_where_values_are_on_it() -> None:
    assert sparkline([90, 100], 10, low=0, high=100) == "██"
    assert sparkline([50, -5, 200], 10, low=0, high=100) == "▅▁█"
