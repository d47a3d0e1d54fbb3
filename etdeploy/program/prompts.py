"""Prompts of random tokens."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence


def random_ids(
    lengths: Sequence[int],
    *,
    vocabulary: int,
    bos_id: int | None,
    stop_ids: Collection[int],
    seed: int,
) -> tuple[tuple[int, ...], ...]:
    """A prompt of each length; the shorter ones begin like the longer ones.

    Args:
        lengths: How many tokens each has.
        vocabulary: Number of tokens.
        bos_id: What each begins with; None for nothing.
        stop_ids: Tokens that end texts, which none has: after them, some models give nothing
            sensible.
        seed: The same prompts for the same seed and vocabulary, on every machine.
    """
    draw = random.Random(seed)  # noqa: S311 - no secret
    stop = set(stop_ids)
    ids = [] if bos_id is None else [bos_id]
    usable = [token for token in range(vocabulary) if token not in stop]
    while len(ids) < max(lengths):
        ids.append(usable[int(draw.random() * len(usable))])
    return tuple(tuple(ids[:length]) for length in lengths)
