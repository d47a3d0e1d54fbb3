"""The ring in which layers with a sliding window keep their keys and values.

A layer with a sliding window never looks back further than that, so a ring of a few more places is
all that it needs, however long the text is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from etdeploy.export.worker.generation.segments import NEVER, Places

# The columns of XNNPACK's products are packed in blocks of up to 32; any more, and a block is full.
_BLOCK = 64


@dataclass(frozen=True)
class Ring:
    """The places of a sliding layer, of which a token gets the one of its position modulo `places`.

    A call writes all of its tokens before any of them looks back, so there are more than the window
    has. What is beyond that allows to set the position back.

    Attributes:
        places: Their number.
        window: How many positions a token sees, itself the last.
    """

    places: int
    window: int

    @property
    def rewind(self) -> int:
        """How far the position may be set back from the end of what was written.

        From the end e back to b: the token at b sees from b - window + 1 on, and what is left
        begins at e - places.
        """
        return self.places - self.window + 1

    def at(self, positions: torch.Tensor, slots: torch.Tensor, end: int) -> Places:
        """Where tokens go, and what is in each place once they are there.

        In floats, so that XNNPACK computes `held`. With half a place added, a quotient's rounding
        cannot move it across a whole number.

        Args:
            positions: Of the tokens, int64 of shape (S,); one follows the other.
            slots: 0, 1, 2 and so on, float; at least as many as there are places.
            end: Positions that the method looks at, from 0 on: if they fit in, nothing goes around.
        """
        if end <= self.places:
            return Places((positions,), slots[:end])
        ahead = positions[-1:].to(torch.float32) - slots[: self.places]
        rounds = torch.floor((ahead + 0.5) / self.places)
        held = slots[: self.places] + rounds * self.places
        empty = torch.clamp(held, -1.0, 0.0)
        return Places((positions % self.places,), held - empty * NEVER)


def ring_of(windows: Sequence[int | None], capacity: int, most_tokens: int) -> Ring | None:
    """The ring of a model's sliding layers.

    Args:
        windows: Of each sliding layer.
        capacity: Positions of the cache.
        most_tokens: That a call takes.

    Returns:
        None where there are none, where all positions would fit into a ring, and where windows
        have several lengths: transformers makes one mask for all layers.
    """
    window = windows[0] if len(set(windows)) == 1 else None
    if window is None:
        return None
    needed = window + most_tokens - 1
    places = -(-needed // _BLOCK) * _BLOCK
    return Ring(places, window) if places < capacity else None
