"""What `programs.py` has measured, as text: a block for each row, and a table of all."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from programs_sides import ONNX_SIDES, Agreement

# What stands for a round's inferences.
BY = ("median", "least", "processor")


@dataclass
class Measured:
    """A side of a row; either it failed, or it has a time for each round.

    Attributes:
        failed: Why it was not measured.
        median_ms, min_ms: Of the inferences of each round's start.
        processor_ms: Processor time of an inference in each round.
        iterations: Of a start.
        outside: Share of the time outside of delegates, from 0 to 1.
        agreement: With what the module itself computes.
    """

    failed: str | None = None
    median_ms: list[float] = field(default_factory=list)
    min_ms: list[float] = field(default_factory=list)
    processor_ms: list[float] = field(default_factory=list)
    iterations: int = 0
    outside: float | None = None
    agreement: Agreement | None = None

    def times(self, by: str) -> list[float]:
        """Milliseconds of each round, as a word of `BY` says."""
        times = (self.median_ms, self.min_ms, self.processor_ms)
        return dict(zip(BY, times, strict=True))[by]


@dataclass
class Row:
    """A model with a scheme, on a number of threads."""

    model: str
    scheme: str
    threads: int
    sides: dict[str, Measured]
    load_average: float = 0.0


Ratio = tuple[float, float, float]


def ratio(over: Measured | None, under: Measured | None, by: str = "median") -> Ratio | None:
    """Median, least and largest of the rounds' ratios; None where one of both failed.

    Args:
        over, under: The sides.
        by: What stands for a round: a word of `BY`.
    """
    if not over or not under or over.failed or under.failed:
        return None
    found = [a / b for a, b in zip(over.times(by), under.times(by), strict=True)]
    return statistics.median(found), min(found), max(found)


def better_of(row: Row, names: Sequence[str], by: str) -> Measured | None:
    """Of sides that were measured, the one that takes less time; None if there is none."""
    found = [s for name in names if (s := row.sides.get(name)) and not s.failed]
    return min(found, key=lambda side: statistics.median(side.times(by)), default=None)


def block(row: Row) -> Iterator[str]:
    """The lines of a row, one for each side."""
    threads = "1 thread" if row.threads == 1 else f"{row.threads} threads"
    yield f"\n{row.model} {row.scheme}, {threads}, load average {row.load_average:.1f}"
    ratios = "".join(f"{by:22}" for by in BY)
    yield f"  {'':12} {'least':>9} {'median':>9} {'processor':>9}   outside  error    cosine"
    for name, side in row.sides.items():
        if side.failed:
            yield f"  {name:12} failed: {side.failed}"
            continue
        far = side.agreement
        assert far is not None
        outside = "" if side.outside is None else f"{100 * side.outside:.1f} %"
        yield (
            f"  {name:12} {min(side.min_ms):9.3f} {statistics.median(side.median_ms):9.3f} "
            f"{min(side.processor_ms):9.3f}   {outside:>7}  {far.max_abs_error:.1e}  "
            f"{far.cosine:.6f}"
        )
    official = row.sides.get("official")
    yield f"  {'official / it':14}{ratios}"
    for name, side in row.sides.items():
        if official and side is not official and not official.failed and not side.failed:
            told = "".join(f"{_told(ratio(official, side, by)):22}" for by in BY)
            yield f"  {name:14}{told}"


def _told(found: Ratio | None) -> str:
    return "" if found is None else "{:.2f} ({:.2f} to {:.2f})".format(*found)


def table(rows: Sequence[Row], names: Sequence[str], by: str) -> Iterator[str]:
    """All rows in Markdown: times in ms, ratios, shares, and means of the ratios.

    Args:
        rows: All of them.
        names: Of the sides, in the order of columns.
        by: What times and ratios are of: a word of `BY`. Times are the least of all rounds but
            for `median`, where they are the median of the rounds'.
    """
    ours = [name for name in names if name not in ("official", *ONNX_SIDES)]
    heads = ["model, scheme, threads", *(f"{name} [ms]" for name in names)]
    heads += [f"official / {name}" for name in ours]
    heads += [f"{name} / better of onnxruntime and OpenVINO" for name in ours]
    heads += [f"outside, {name}" for name in names if name not in ONNX_SIDES]
    heads += ["least cosine"]
    yield f"| {' | '.join(heads)} |"
    yield f"|{' --- |' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(_cells(row, names, ours, by))} |"
    yield from _means(rows, ours, by)
    yield from _failures(rows)


def _cells(row: Row, names: Sequence[str], ours: Sequence[str], by: str) -> Iterator[str]:
    def side(name: str) -> Measured | None:
        found = row.sides.get(name)
        return None if found is None or found.failed else found

    yield f"{row.model} {row.scheme}, {row.threads}"
    for name in names:
        found = side(name)
        failed = "failed" if name in row.sides else ""
        yield f"{_time_ms(found, by):.2f}" if found else failed
    yield from (_told(ratio(side("official"), side(name), by)) for name in ours)
    better = better_of(row, ONNX_SIDES, by)
    yield from (_told(ratio(side(name), better, by)) for name in ours)
    for name in (name for name in names if name not in ONNX_SIDES):
        found = side(name)
        known = found is not None and found.outside is not None
        yield f"{100 * found.outside:.1f} %" if known else ""
    cosines = [s.agreement.cosine for s in row.sides.values() if not s.failed and s.agreement]
    yield f"{min(cosines):.5f}" if cosines else ""


def _time_ms(side: Measured, by: str) -> float:
    times_ms = side.times(by)
    return statistics.median(times_ms) if by == "median" else min(times_ms)


def _means(rows: Sequence[Row], ours: Sequence[str], by: str) -> Iterator[str]:
    yield ""
    for scheme, threads in dict.fromkeys((row.scheme, row.threads) for row in rows):
        for name in ours:
            found = [
                each[0]
                for row in rows
                if (row.scheme, row.threads) == (scheme, threads)
                and (each := ratio(row.sides.get("official"), row.sides.get(name), by))
            ]
            if found:
                mean = math.exp(statistics.mean(map(math.log, found)))
                yield (
                    f"{scheme}, threads {threads}: official / {name}: geometric mean {mean:.3f}, "
                    f"least {min(found):.3f} ({len(found)} models)"
                )


def _failures(rows: Sequence[Row]) -> Iterator[str]:
    reasons = {
        (row.model, row.scheme, name): side.failed
        for row in rows
        for name, side in row.sides.items()
        if side.failed
    }
    for (model, scheme, name), reason in reasons.items():
        yield f"{model} {scheme}, {name} failed: {reason}"
