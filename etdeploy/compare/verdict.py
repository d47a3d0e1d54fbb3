"""What a ratio means: a verdict with its reason in a sentence."""

from __future__ import annotations

from etdeploy.compare.model import Ratio, Verdict

MIN_DIFFERENCE_PERCENT = 1.0
"""Smaller differences are not called, however sure they are: where a linker puts a function, or the
size of the environment, changes times by as much (Mytkowicz and others, "Producing wrong data
without doing anything obviously wrong!", 2009)."""


def judge(ratio: Ratio, min_difference_percent: float = MIN_DIFFERENCE_PERCENT) -> Verdict:
    """The verdict on B: a difference needs an interval without 1, and has to be large enough."""
    if ratio.low is None or ratio.high is None or ratio.low <= 1 <= ratio.high:
        return Verdict.NO_DIFFERENCE
    if is_small(ratio, min_difference_percent):
        return Verdict.NO_DIFFERENCE
    return Verdict.SLOWER if ratio.median > 1 else Verdict.FASTER


def is_small(ratio: Ratio, min_difference_percent: float) -> bool:
    """Whether the slower one takes less than that much longer than the faster one."""
    return max(ratio.median, 1 / ratio.median) < 1 + min_difference_percent / 100


def why(ratio: Ratio, pairs: int, min_difference_percent: float = MIN_DIFFERENCE_PERCENT) -> str:
    """The reason for the verdict, in a sentence.

    Args:
        ratio: Of the times.
        pairs: Number of pairs; 0 where starts were not paired.
        min_difference_percent: As `judge` got it.
    """
    of = f"{pairs} pairs" if pairs != 1 else "one pair"
    if ratio.low is None or ratio.high is None:
        if pairs:
            return f"{of} cannot show the spread between starts: at least 3 are needed"
        return "each side has one start: the spread between starts is unknown"
    between = f"between {ratio.low:.3f} and {ratio.high:.3f}"
    by = f"of {of}" if pairs else "of starts that did not take turns"
    if ratio.low <= 1 <= ratio.high:
        return f"the ratio {by} is {between} with 95 % confidence, and that includes 1"
    if is_small(ratio, min_difference_percent):
        return (
            f"the ratio {by} is {between} with 95 % confidence, but a difference below "
            f"{min_difference_percent:g} % is not called one"
        )
    return f"the ratio {by} is {between} with 95 % confidence"
