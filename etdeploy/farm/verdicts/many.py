"""What holds among many pairs: of hundreds that are judged, some are worse by chance."""

from __future__ import annotations

from collections.abc import Sequence

FALSE_SHARE = 0.025
"""Of the pairs that are called regressed at once, so many are expected to be false at most; and the
same of those that are called so for two nights."""


def discoveries(chances: Sequence[float], false_share: float = FALSE_SHARE) -> list[bool]:
    """Which of many are no chance, by the step-up procedure of Benjamini and Hochberg (1995).

    It controls the false discovery rate where the numbers are independent or positively
    dependent, as pairs are that share a recipe or a device. A single one needs a chance of at most
    `false_share`; of 200, one that is alone needs 1/200 of that, and each of ten that are worse
    together 10/200: a commit that slows down a recipe everywhere is found as easily as on one.

    Args:
        chances: That an unchanged pair is as far away, from 0 to 1.
        false_share: The expected share of false ones among those found.
    """
    ordered = sorted(chances)
    found = [x for i, x in enumerate(ordered, 1) if x <= i * false_share / len(ordered)]
    bound = found[-1] if found else -1.0
    return [x <= bound for x in chances]


def sure(at_once: Sequence[float], twice: Sequence[float]) -> list[bool]:
    """Which of many pairs have regressed, by this night alone or by the last two.

    Args:
        at_once: The chance that an unchanged pair's night is as bad as this one.
        twice: The chance that the mean of two unchanged nights is as bad as that of the last two.
    """
    found = zip(discoveries(at_once), discoveries(twice), strict=True)
    return [one or two for one, two in found]
