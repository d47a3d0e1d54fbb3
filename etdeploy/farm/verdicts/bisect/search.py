"""Which candidate is tried next, and what is known at the end; nothing is read here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from etdeploy.farm.verdicts.bisect.model import Candidate, Side, Step

Tried = Mapping[str, Step]


def bounds(candidates: Sequence[Candidate], tried: Tried) -> tuple[int, int]:
    """The places of the last good and the first bad candidate.

    Args:
        candidates: The earliest first; the first is good, and the last bad.
        tried: The steps by the candidate's id. The first bad one counts, and before it the last
            good one.
    """
    sides = [tried[each.id].side if each.id in tried else None for each in candidates]
    bad = next((i for i in range(1, len(sides)) if sides[i] is Side.BAD), len(sides) - 1)
    good = next((i for i in range(bad - 1, 0, -1) if sides[i] is Side.GOOD), 0)
    return good, bad


def next_candidate(candidates: Sequence[Candidate], tried: Tried) -> Candidate | None:
    """The one nearest to the middle that was not tried; None at the end.

    One that was skipped is passed over, as `git bisect skip` does.
    """
    good, bad = bounds(candidates, tried)
    middle = (good + bad) / 2
    left = [i for i in range(good + 1, bad) if candidates[i].id not in tried]
    return candidates[min(left, key=lambda i: (abs(i - middle), i))] if left else None


def suspects(
    candidates: Sequence[Candidate], tried: Tried
) -> tuple[Candidate, tuple[Candidate, ...]]:
    """The last good candidate, and those of which one is the first bad one."""
    good, bad = bounds(candidates, tried)
    return candidates[good], tuple(candidates[good + 1 : bad + 1])


def most_steps(candidates: Sequence[Candidate]) -> int:
    """How many are tried at most if none is skipped."""
    return max(0, (len(candidates) - 2).bit_length())
