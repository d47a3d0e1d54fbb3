"""Where a cache has keys and values: rows, segments of positions, rings of sliding layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

# Later than any position, and exact when one is added: floats hold whole numbers up to 2^24.
NEVER = 2.0**23
# XNNPACK joins no more tensors than this at once.
_MOST = 5
# Backends whose methods have fixed sizes store the weights with each of them.
_MOST_FIXED = 2
_STEP = 4
# With fewer positions, a token takes no less time.
_LEAST = 128
# Elements of a cache of less than 32 bits. With 8, the scale of a row is behind it.
PACKED = {8: torch.int8, 16: torch.float16}
PACKED_BITS = {dtype: bits for bits, dtype in PACKED.items()}
SCALE_BYTES = 4
_MOST_BYTE = 127.0


def packed(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Rows of shape (heads, S, d) as a cache of so many bits has them.

    With 16 bits, halves. With 8, whole numbers up to 127 in magnitude, and behind those of a row
    the four bytes of its scale, as a float. `unpacked` is the inverse.
    """
    if bits == 16:
        most = torch.finfo(torch.float16).max
        return x.clamp(-most, most).to(torch.float16)
    most = x.abs().amax(-1, keepdim=True)
    inverse = torch.where(most > 0, _MOST_BYTE / most, 0.0)
    rounded = (x * inverse).round().clamp(-_MOST_BYTE, _MOST_BYTE)
    scale = most / _MOST_BYTE
    return torch.cat([rounded.to(torch.int8), scale.view(torch.int8)], dim=-1)


def unpacked(rows: torch.Tensor) -> torch.Tensor:
    """Rows of a cache as floats."""
    if rows.dtype != torch.int8:
        return rows.to(torch.float32)
    scale = rows[..., -SCALE_BYTES:].contiguous().view(torch.float32)
    return rows[..., :-SCALE_BYTES].to(torch.float32) * scale


def packed_size(size: int, bits: int) -> int:
    """How many elements a row of so many numbers has in a cache."""
    return size + SCALE_BYTES if bits == 8 else size


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


def bounds_of(context: int, *, fixed: bool) -> tuple[int, ...]:
    """Where the segments of a cache end: each at four times as many positions as the one before.

    The attention's cost follows the number of positions that a method looks at; each more method is
    lowered on its own, with all layers. There are fewer of `fixed` sizes.
    """
    bounds = [context]
    most = _MOST_FIXED if fixed else _MOST
    while bounds[0] // _STEP >= _LEAST and len(bounds) < most:
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


@dataclass(frozen=True)
class TokenWindow:
    """What tokens see in layers whose attention the model leaves whole.

    Attributes:
        size: How many positions a token sees, itself the last.
        sinks: The first positions, which every token sees besides (Xiao et al., Efficient streaming
            language models with attention sinks, 2023).
    """

    size: int
    sinks: int


# The columns of XNNPACK's products are packed in blocks of up to 32; any more, and a block is full.
_BLOCK = 64


@dataclass(frozen=True)
class Ring:
    """The places of a sliding layer, of which a token gets the one of its position modulo `places`.

    A call writes all of its tokens before any of them looks back, so there are more than the window
    has. What is beyond that allows to set the position back. Sinks have places before the ring.

    Attributes:
        places: Their number, with those of sinks.
        window: How many positions a token sees, itself the last.
        sinks: The first positions, which are never overwritten.
    """

    places: int
    window: int
    sinks: int = 0

    @property
    def turn(self) -> int:
        """After how many positions a place is used again."""
        return self.places - self.sinks

    @property
    def rewind(self) -> int:
        """How far the position may be set back from the end of what was written.

        From the end e back to b: the token at b sees from b - window + 1 on, and what is left
        begins at e - turn.
        """
        return self.turn - self.window + 1

    def at(self, positions: torch.Tensor, slots: torch.Tensor, end: int) -> Places:
        """Where tokens go, and what is in each place once they are there.

        In floats, so that XNNPACK computes `held`. With half a place added, a quotient's rounding
        cannot move it across a whole number.
        """
        if end <= self.places:
            return Places((positions,), slots[:end])
        ahead = positions[-1:].to(torch.float32) - slots[self.sinks : self.places]
        rounds = torch.floor((ahead + 0.5) / self.turn)
        held = slots[: self.turn] + rounds * self.turn
        empty = torch.clamp(held, -1.0, 0.0)
        held = held - empty * NEVER
        if not self.sinks:
            return Places((positions % self.turn,), held)
        beyond = positions - self.sinks
        written = beyond.clamp(min=0) % self.turn + beyond.clamp(max=0) + self.sinks
        return Places((written,), torch.cat([slots[: self.sinks], held + self.sinks]))


def ring_of(
    windows: Sequence[int | None], capacity: int, most_tokens: int, sinks: int = 0
) -> Ring | None:
    """The ring of a model's sliding layers."""
    window = windows[0] if len(set(windows)) == 1 else None
    if window is None:
        return None
    needed = window + most_tokens - 1
    places = sinks + -(-needed // _BLOCK) * _BLOCK
    return Ring(places, window, sinks) if places < capacity else None
