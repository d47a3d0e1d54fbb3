"""The rate of back-to-back work: at the start, at the end, and when it dropped."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from etdeploy.bench.statistics import percentile

# With fewer stretches, start and end are a few inferences, and a drop cannot be told from noise.
FEWEST = 10
# The rate at the start is the median of so many stretches: one may be disturbed.
_FIRST = 3
# The rate at the end is that of this part of the time. Phones that throttle often change between
# two frequencies within seconds, and an application gets their average.
_LAST = 0.1
# A running mean over this part of the time shows whether the rate stays low; see `drop_s`.
_SMOOTHING = 0.1


@dataclass(frozen=True)
class Stretch:
    """A part of the work; times are seconds since the work began."""

    begin_s: float
    end_s: float
    inferences: int

    @property
    def per_s(self) -> float:
        """Inferences per second."""
        return rate((self,))


def stretches_of(ends: Sequence[tuple[float, int]]) -> tuple[Stretch, ...]:
    """Stretches, each from the end of the one before."""
    begins = itertools.chain((0.0,), (end for end, _ in ends))
    return tuple(Stretch(begin, end, n) for begin, (end, n) in zip(begins, ends, strict=False))


def rate(stretches: Sequence[Stretch]) -> float:
    """Inferences per second over stretches that follow each other; 0 where no time passed."""
    seconds = stretches[-1].end_s - stretches[0].begin_s
    return sum(stretch.inferences for stretch in stretches) / seconds if seconds > 0 else 0.0


def start_rate(stretches: Sequence[Stretch]) -> float:
    """Rate at the start: the median of the first three stretches, of fewer than nine a third."""
    first = stretches[: min(_FIRST, math.ceil(len(stretches) / 3))]
    return percentile([stretch.per_s for stretch in first], 50)


def end_rate(stretches: Sequence[Stretch]) -> float:
    """Rate at the end: the mean of the last tenth."""
    return rate(stretches[-math.ceil(_LAST * len(stretches)) :])


def drop_s(stretches: Sequence[Stretch], share: float) -> float | None:
    """When the rate fell below that at the start by a share, and stayed there.

    It stays there when the running mean over a tenth of the time remains below until the end, so
    neither a short recovery nor a governor that swings around its mean counts. The mean blurs the
    moment of the drop; that is given by the first stretch in its window that is below by itself.
    """
    if len(stretches) < FEWEST:
        return None
    limit = start_rate(stretches) * (1 - share)
    reach = max(1, int(_SMOOTHING * len(stretches) / 2))
    # Only whole windows: the shorter ones at the end would follow every swing.
    middles = range(reach, len(stretches) - reach)
    above = [i for i in middles if rate(stretches[i - reach : i + reach + 1]) > limit]
    stays_from = above[-1] + 1 if above else reach
    if stays_from + reach >= middles.stop:
        return None  # it fell at the very end, if at all
    return next(s.end_s for s in stretches[stays_from - reach :] if s.per_s <= limit)
