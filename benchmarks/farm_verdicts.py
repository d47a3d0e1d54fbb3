"""How often a farm's verdicts are wrong: nights in which nothing changed, and slower ones.

    python benchmarks/farm_verdicts.py [--series 2000] [--earlier 20] [--write docs/history.md]

Simulates series of nights with three repeats each, in which nothing changes for ten nights, and
others that become slower after the first nights. A night's noise is shared by its repeats. All
series of a row are on one device, so their correlation is estimated together.

Bounds, with 20 earlier nights and 5 % allowed: at most one new false shift in a night of 1,000
series (three where nights resemble their neighbours); with 3 % between nights, a slow-down of 10 %
is found by the third night in 60 % and by the tenth in 95 %; with 1 %, one of 5 % by the fifth
night in 80 %; with 5 %, one of 10 % by the tenth night in 60 %. Drift and bursts have no bound.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from etdeploy.farm.verdicts.rule import find_shift, geometric_median, shared_correlation

REPEATS, AFTER, ALLOWED = 3, 10, 5.0
SHOWN = (1, 2, 3, 5, 10)
_SLOWER = math.log(1.1)
Night = list[float]


def _gauss(between: float, within: float) -> Callable[[random.Random, int], list[Night]]:
    def series(draw: random.Random, nights: int) -> list[Night]:
        shared = (draw.gauss(0, between) for _ in range(nights))
        return [[each + draw.gauss(0, within) for _ in range(REPEATS)] for each in shared]

    return series


def _student(draw: random.Random) -> float:
    """Student's distribution with three degrees of freedom."""
    return draw.gauss(0, 1) / math.sqrt(draw.gammavariate(1.5, 2 / 3))


def _heavy(draw: random.Random, nights: int) -> list[Night]:
    shared = (0.02 * _student(draw) for _ in range(nights))
    return [[each + 0.02 * _student(draw) for _ in range(REPEATS)] for each in shared]


def _skewed(draw: random.Random, nights: int) -> list[Night]:
    shared = (0.03 * draw.expovariate(1) for _ in range(nights))
    return [[each + 0.01 * draw.expovariate(1) for _ in range(REPEATS)] for each in shared]


def _odd(of_night: float, of_run: float) -> Callable[[random.Random, int], list[Night]]:
    def series(draw: random.Random, nights: int) -> list[Night]:
        quiet = _gauss(0.01, 0.01)(draw, nights)
        odd = (_SLOWER * (draw.random() < of_night) for _ in range(nights))
        return [
            [run + more + _SLOWER * (draw.random() < of_run) for run in night]
            for night, more in zip(quiet, odd, strict=True)
        ]

    return series


def _alike(correlation: float, between: float) -> Callable[[random.Random, int], list[Night]]:
    def series(draw: random.Random, nights: int) -> list[Night]:
        shared, found = draw.gauss(0, between), []
        for _ in range(nights):
            found.append([shared + draw.gauss(0, 0.01) for _ in range(REPEATS)])
            new = draw.gauss(0, between * math.sqrt(1 - correlation**2))
            shared = correlation * shared + new
        return found

    return series


def _drift(draw: random.Random, nights: int) -> list[Night]:
    quiet = _gauss(0.01, 0.01)(draw, nights)
    return [[run + 0.005 * number for run in night] for number, night in enumerate(quiet)]


def _bursts(draw: random.Random, nights: int) -> list[Night]:
    begins = [draw.random() < 0.04 for _ in range(nights)]
    quiet = _gauss(0.01, 0.01)(draw, nights)
    return [
        [run + _SLOWER * any(begins[max(0, number - 2) : number + 1]) for run in night]
        for number, night in enumerate(quiet)
    ]


NOISES: dict[str, Callable[[random.Random, int], list[Night]]] = {
    "1 % between nights, 1 % within": _gauss(0.01, 0.01),
    "3 % and 1 %": _gauss(0.03, 0.01),
    "5 % and 5 %": _gauss(0.05, 0.05),
    "2 % and 2 %, Student's t with 3 degrees": _heavy,
    "skewed upwards, 3 % and 1 %": _skewed,
    "1 % and 1 %, one night in five +10 %": _odd(0.2, 0.0),
    "1 % and 1 %, 30 % of the runs +10 %": _odd(0.0, 0.3),
    "3 % and 1 %, correlation 0.8": _alike(0.8, 0.03),
    "3 % and 1 %, correlation 0.5": _alike(0.5, 0.03),
    "1 % and 1 %, three nights +10 % now and then": _bursts,
    "1 % and 1 %, drift of 0.5 % a night": _drift,
}
_ALIKE = "3 % and 1 %, correlation 0.8"
_UNBOUND = tuple(list(NOISES)[-2:])


@dataclass(frozen=True)
class Row:
    """A noise.

    Attributes:
        false: New false shifts in a night of 1,000 series.
        found: Percent of series that are 10 % slower and found by night 1, 2, 3, 5, 10.
        found_small: The same of 5 %.
    """

    noise: str
    false: float
    found: tuple[float, ...]
    found_small: tuple[float, ...]


def simulate(noise: str, series: int, earlier: int, slower: float) -> list[int]:
    """How many series have shifted by each night."""
    draw = random.Random(f"{noise} {slower}")
    made = [NOISES[noise](draw, earlier + AFTER) for _ in range(series)]
    levels = [
        [
            geometric_median(
                [math.exp(run + (slower if number >= earlier else 0)) for run in night]
            )
            for number, night in enumerate(nights)
        ]
        for nights in made
    ]
    correlated = shared_correlation([each[:earlier] for each in levels])
    first = [_first(each, earlier, correlated) for each in levels]
    return [sum(each is not None and each <= night for each in first) for night in SHOWN]


def _first(levels: Sequence[float], earlier: int, correlated: float) -> int | None:
    for night in range(1, AFTER + 1):
        if find_shift(levels[: earlier + night], ALLOWED, correlated=correlated):
            return night
    return None


def rows(series: int, earlier: int) -> Iterator[Row]:
    for noise in NOISES:
        print(noise, file=sys.stderr)
        false = simulate(noise, series, earlier, 0.0)[-1]
        found, small = (
            tuple(100 * each / (series // 4) for each in simulate(noise, series // 4, earlier, by))
            for by in (_SLOWER, math.log(1.05))
        )
        yield Row(noise, 1000 * false / series / AFTER, found, small)


def table(found: Sequence[Row], earlier: int) -> Iterator[str]:
    by = f"by night {' / '.join(map(str, SHOWN))}"
    yield f"| {earlier} earlier nights | false in a night of 1,000 | +10 % {by} | +5 % |"
    yield "| --- | ---: | --- | --- |"
    for row in found:
        shares = (" / ".join(f"{share:.0f}" for share in each) + " %"
                  for each in (row.found, row.found_small))  # fmt: skip
        yield f"| {row.noise} | {row.false:.2f} | {' | '.join(shares)} |"


def missed(found: Sequence[Row], series: int) -> Iterator[str]:
    """Bounds that are not kept, up to chance."""
    by = {row.noise: row for row in found}
    at = {night: place for place, night in enumerate(SHOWN)}
    for noise, row in by.items():
        most = 3.0 if noise == _ALIKE else 1.0
        chance = 2 * math.sqrt(most * 1000 * AFTER / series) * 1000 / (1000 * AFTER)
        if noise not in _UNBOUND and row.false > most + chance:
            yield f"{noise}: {row.false:.2f} false in a night, bound {most}"
    chance = 200 * math.sqrt(0.25 / (series // 4))
    for noise, values, night, least in (
        ("3 % and 1 %", "found", 3, 60), ("3 % and 1 %", "found", 10, 95),
        ("1 % between nights, 1 % within", "found_small", 5, 80), ("5 % and 5 %", "found", 10, 60),
    ):  # fmt: skip
        share = getattr(by[noise], values)[at[night]]
        if share < least - chance:
            yield f"{noise}: {share:.0f} % found by night {night}, bound {least} %"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--series", type=int, default=2000)
    parser.add_argument("--earlier", type=int, nargs="+", default=[20], metavar="NIGHTS")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", type=Path, help="a Markdown file whose tables are replaced")
    options = parser.parse_args()
    made = {earlier: list(rows(options.series, earlier)) for earlier in options.earlier}
    if options.json:
        shown = {earlier: [asdict(row) for row in found] for earlier, found in made.items()}
        print(json.dumps(shown, indent=2))
    for earlier, found in made.items():
        text = "\n".join(table(found, earlier)) + "\n"
        if options.write:
            from models import replaced

            page = options.write.read_text()
            name = f"farm_verdicts.py: {earlier} nights"
            options.write.write_text(replaced(page, text, name))
        elif not options.json:
            print(text)
    problems = [text for earlier in made if earlier >= 20
                for text in missed(made[earlier], options.series)]  # fmt: skip
    print("\n".join(problems), file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
