"""Where the keys and values of a layer are: a few segments of the cache, each with its own buffer.

A method looks at the first segments only, whole. Of one large buffer it would look at a slice, and
XNNPACK copies slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

# Later than any position, and exact when one is added: floats hold whole numbers up to 2^24.
NEVER = 2.0**23
# XNNPACK joins no more tensors than this at once.
_MOST = 5
_STEP = 4
# With fewer positions, a token takes no less time.
_LEAST = 128


@dataclass(frozen=True)
class Places:
    """The places of a layer in one call of a method.

    Attributes:
        written: For each buffer, those that the call's tokens get, int64 of shape (S,).
        held: The position that is in each place that the attention looks at, float of shape (N,),
            the buffers one after the other. Where there is none, it is later than any token's.
    """

    written: tuple[torch.Tensor, ...]
    held: torch.Tensor


def bounds_of(context: int) -> tuple[int, ...]:
    """Where the segments of a cache end: each at four times as many positions as the one before.

    The attention's cost follows the number of positions that a method looks at; each more method is
    lowered on its own, with all layers.
    """
    bounds = [context]
    while bounds[0] // _STEP >= _LEAST and len(bounds) < _MOST:
        bounds.insert(0, bounds[0] // _STEP)
    return tuple(bounds)


class Segments:
    """The segments of a cache.

    Where there are several, each has one place more than positions: calls write all of their tokens
    to every segment, and those of other segments go there. ExecuTorch shares a buffer between
    methods only if all of them write to it.
    """

    def __init__(self, bounds: Sequence[int]) -> None:
        self.bounds = tuple(bounds)
        self.spare = 1 if len(self.bounds) > 1 else 0
        self.ranges = tuple(pairwise((0, *self.bounds)))

    @property
    def places(self) -> tuple[int, ...]:
        """Of each segment, the length of its buffers."""
        return tuple(end - start + self.spare for start, end in self.ranges)

    def held(self) -> torch.Tensor:
        """The position in each place of all segments, float."""
        spare = torch.full((self.spare,), NEVER)
        each = (torch.arange(a, b, dtype=torch.float32) for a, b in self.ranges)
        return torch.cat([torch.cat([positions, spare]) for positions in each])

    def tables(self) -> tuple[torch.Tensor, ...]:
        """For each segment, the place of each position, int64; none where there is one segment.

        ExecuTorch's remainder of a negative number is negative, so a place is looked up.
        """
        positions = torch.arange(self.bounds[-1])
        tables = []
        for start, end in self.ranges if self.spare else ():
            inside = (start <= positions) & (positions < end)
            tables.append(torch.where(inside, positions - start, end - start))
        return tuple(tables)

    def up_to(self, end: int) -> int:
        """How many segments have the positions before `end`."""
        return 1 + sum(bound < end for bound in self.bounds)
