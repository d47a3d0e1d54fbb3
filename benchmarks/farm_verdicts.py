"""How often a night's verdict is wrong: nights in which nothing changed, and slower ones.

    python benchmarks/farm_verdicts.py [--series 1000] [--json]

Simulates nights with the spreads that devices have, between nights and between repeats of one.
Bound: of single pairs in which nothing changed, at most 5 % are called regressed, up to chance,
whatever the slow-down that is allowed (but for odd nights, of which five nights may have none); of
200 such pairs together, at most 5 % of the nights have one that is. Then the share of slow-downs of
5 % (2 % allowed) and 10 % (5 % allowed) that are found: of one pair alone, and of one and of ten
among 200 in the first and in the second night.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from etdeploy.farm.verdicts.night import find_regressed
from etdeploy.farm.verdicts.pair import p_value_of_two
from etdeploy.farm.verdicts.rule import Deviation, measure_deviation

METRIC = "latency_ms"
PAIRS = 200


@dataclass(frozen=True)
class Noise:
    """Standard deviations of the logarithm, in percent, and how many of 100 nights are odd."""

    name: str
    between: float
    within: float
    odd: float = 0.0

    def night(self, draw: random.Random, repeats: int, slower: float = 0.0) -> list[float]:
        shared = draw.gauss(slower, self.between / 100)
        if draw.random() * 100 < self.odd:
            shared += abs(draw.gauss(0.2, 0.1))
        return [math.exp(shared + draw.gauss(0, self.within / 100)) for _ in range(repeats)]


NOISES = (
    Noise("1 % between nights, 1 % within", 1, 1),
    Noise("3 % between nights, 1 % within", 3, 1),
    Noise("1 % between nights, 3 % within", 1, 3),
    Noise("3 % between nights, 3 % within", 3, 3),
    Noise("2 % and 2 %, one night in ten 20 % slower", 2, 2, odd=10),
    Noise("41 % within (phones of a cloud)", 5, 41),
)


def single(noise: Noise, nights: int, repeats: int, slower: float, allowed: float, series: int,
           seed: int = 1) -> float:  # fmt: skip
    """The share of single pairs that are called worse, in percent."""
    draw, found = random.Random(seed), 0
    for _ in range(series):
        before = [noise.night(draw, repeats) for _ in range(nights)]
        away = measure_deviation(noise.night(draw, repeats, math.log1p(slower)), before)
        found += away is not None and not away.count_not_better and away.is_worse(METRIC, allowed)
    return 100 * found / series


@dataclass(frozen=True)
class FarmRow:
    """Of nights with 200 pairs.

    Attributes:
        false_nights: Percent of second nights in which an unchanged pair is called regressed.
        suspected: Unchanged pairs that are suspected in a night, on average.
        first, second: Percent of the slower pairs that are found in the first, second night.
    """

    name: str
    slower_pairs: int
    slower_percent: float
    allowed_percent: float
    false_nights: float
    suspected: float
    first: float
    second: float


def farm(noise: Noise, bad: int, slower: float, allowed: float, rounds: int) -> FarmRow:
    """Two nights that follow 20 others, of 200 pairs of which some become slower."""
    draw = random.Random(2)
    false = suspected = first = second = 0
    for _ in range(rounds):
        pairs = [_pair(noise, draw, math.log1p(slower) if i < bad else 0.0) for i in range(PAIRS)]
        worse = [[_worse(p[k], allowed) for p in pairs] for k in range(2)]
        p_two_nights = [p_value_of_two(p[2], p[3], METRIC, allowed) for p in pairs]
        # The night before the first one is not simulated: the first has no second look.
        told = [find_regressed([_chance(p[0]) for p in pairs], [1.0] * PAIRS),
                find_regressed([_chance(p[1]) for p in pairs], p_two_nights)]  # fmt: skip
        called = [[w and s for w, s in zip(worse[k], told[k], strict=True)] for k in range(2)]
        false += any(called[1][bad:])
        suspected += sum(worse[0][bad:])
        first += sum(called[0][:bad])
        second += sum(a or b for a, b in zip(called[0][:bad], called[1][:bad], strict=True))
    share = 100 / (rounds * bad) if bad else 0.0
    return FarmRow(noise.name, bad, 100 * slower, allowed, 100 * false / rounds,
                   suspected / rounds, share * first, share * second)  # fmt: skip


def _pair(noise: Noise, draw: random.Random, slower: float) -> tuple[Deviation | None, ...]:
    """Two nights by those before each, and then both by the nights before both."""
    before = [noise.night(draw, 3) for _ in range(20)]
    one, two = (noise.night(draw, 3, slower) for _ in range(2))
    return (
        measure_deviation(one, before),
        measure_deviation(two, [*before[1:], one]),
        measure_deviation(one, before),
        measure_deviation(two, before),
    )


def _worse(away: Deviation | None, allowed: float) -> bool:
    return away is not None and away.is_worse(METRIC, allowed)


def _chance(away: Deviation | None) -> float:
    return 1.0 if away is None or away.count_not_better else away.p_value


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--series", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=100, help="nights of 200 pairs")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    n = options.series
    rows = [
        {
            "noise": noise.name, "nights": nights, "repeats": repeats,
            "unchanged, 0 % allowed": single(noise, nights, repeats, 0, 0, n),
            "unchanged, 5 % allowed": single(noise, nights, repeats, 0, 5, n),
            "5 % slower, 2 % allowed": single(noise, nights, repeats, 0.05, 2, n),
            "10 % slower, 5 % allowed": single(noise, nights, repeats, 0.10, 5, n),
        }
        for noise in NOISES for nights, repeats in ((5, 3), (20, 3), (20, 1))
    ]  # fmt: skip
    rounds = options.rounds
    farms = [
        farm(noise, bad, slower, allowed, rounds)
        for noise in NOISES[:2]
        for bad, slower, allowed in ((0, 0.0, 0.0), (1, 0.1, 5.0), (10, 0.1, 5.0), (10, 0.05, 2.0))
    ]
    if options.json:
        print(json.dumps({"pairs": rows, "farms": [asdict(f) for f in farms]}, indent=2))
    else:
        for row in rows:
            print(" | ".join(v if isinstance(v, str) else f"{v:g}" for v in row.values()))
        for each in farms:
            print(" | ".join(f"{v:g}" if not isinstance(v, str) else v
                             for v in asdict(each).values()))  # fmt: skip
    # Three standard deviations of a share of 5 % in so many series.
    bound = 5 + 300 * math.sqrt(0.05 * 0.95 / n)
    quiet = [f.false_nights for f in farms if f.slower_pairs == 0]
    # Five nights seldom have an odd one, so nothing shows that this is usual.
    odd = {noise.name for noise in NOISES if noise.odd}
    wrong = [
        row
        for row in rows
        if row["unchanged, 0 % allowed"] > bound
        and not (row["noise"] in odd and row["nights"] == 5)
    ]
    limit = 5 + 300 * math.sqrt(0.05 * 0.95 / rounds)
    return 1 if wrong or any(share > limit for share in quiet) else 0


if __name__ == "__main__":
    sys.exit(main())
