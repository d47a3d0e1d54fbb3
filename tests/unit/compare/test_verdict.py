"""Verdicts on ratios, and their reasons."""

from __future__ import annotations

import pytest

from etdeploy.compare.model import Ratio, Verdict, explain_verdict, judge


def _ratio(median: float, low: float | None = None, high: float | None = None) -> Ratio:
    return Ratio(median=median, low=low, high=high)


@pytest.mark.parametrize(
    ("ratio", "verdict", "reason"),
    [
        (_ratio(1.05, 1.03, 1.08), Verdict.SLOWER, "is between 1.030 and 1.080 with 95 %"),
        (_ratio(0.9, 0.88, 0.95), Verdict.FASTER, "is between 0.880 and 0.950"),
        (_ratio(1.05, 0.99, 1.10), Verdict.NO_DIFFERENCE, "and that includes 1"),
        (_ratio(1.005, 1.003, 1.007), Verdict.NO_DIFFERENCE, "a difference below 1 %"),
        (_ratio(0.995, 0.993, 0.997), Verdict.NO_DIFFERENCE, "a difference below 1 %"),
        (_ratio(1.5), Verdict.NO_DIFFERENCE, "10 pairs cannot show the spread"),
    ],
)
def test_a_verdict_has_its_reason(ratio: Ratio, verdict: Verdict, reason: str) -> None:
    assert judge(ratio) == verdict
    assert reason in explain_verdict(ratio, 10)


def test_starts_that_did_not_take_turns_are_said_to_be_that() -> None:
    assert "that did not take turns" in explain_verdict(_ratio(1.5, 1.4, 1.6), 0)
    assert "each side has one start" in explain_verdict(_ratio(1.5), 0)
