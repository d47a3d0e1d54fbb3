"""Memory and sustained work, as lines of a run's summary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from etdeploy.bench.records.memory import Memory, WeightsKind
from etdeploy.bench.records.record import RunRecord
from etdeploy.bench.records.sustained import Energy, Sustained, SustainedPoint
from etdeploy.bench.units import long_time, rate
from etdeploy.core.console import size
from etdeploy.core.text.sparkline import sparkline

_CURVE = 50
_KHZ_PER_GHZ = 1e6


def memory_lines(record: RunRecord) -> Iterator[str]:
    """Peak, plan and weights; nothing where the memory was not measured."""
    memory = record.memory or Memory(peak_rss_bytes=record.peak_rss_bytes)
    if memory.peak_rss_bytes is not None:
        before = memory.before_load_rss_bytes
        runner = f", {size(before)} before the program was loaded" if before else ""
        yield f"{size(memory.peak_rss_bytes)} resident{runner}"
    planned = "" if memory.planned_bytes is None else f"{size(memory.planned_bytes)} planned"
    weights = _weights(memory, record.program.size_bytes)
    if record.memory and (planned or weights):
        yield "; ".join(filter(None, (planned, weights)))


def _weights(memory: Memory, file_bytes: int) -> str:
    resident = memory.program_resident_bytes
    if memory.weights is None or resident is None:
        return ""
    # Its parts are mapped in whole pages, which may overlap.
    of_file = f"{size(min(resident, file_bytes))} of the {size(file_bytes)} file"
    return {
        WeightsKind.LOADED: f"the weights are copied; {of_file} stay in memory beside them",
        WeightsKind.MAPPED: f"the weights are used in the file, {of_file} are in memory",
        WeightsKind.BOTH: f"some weights are copied, others are used in the file: {of_file} "
        "are in memory",
    }[memory.weights]


def sustained_lines(sustained: Sustained) -> Iterator[str]:
    """What remains of the rate and when it dropped, its curve, and the energy."""
    remains = round(sustained.retained_percent)
    what = f"{remains} % of the rate remains" if remains < 100 else "nothing of the rate is lost"
    yield (
        f"{what} after {long_time(sustained.seconds)}: from {rate(sustained.start_per_s)} to "
        f"{rate(sustained.end_per_s)} inferences per second"
    )
    yield _drops(sustained)
    yield _curve(sustained.points)
    if sustained.energy:
        yield _energy(sustained.energy)


def _drops(sustained: Sustained) -> str:
    first, second = sustained.to_minus_10_percent_s, sustained.to_minus_25_percent_s
    if first is None:
        return "never 10 % slower for long"
    more = "never 25 %" if second is None else f"25 % after {long_time(second)}"
    return f"10 % slower after {long_time(first)}, {more}"


def _curve(points: Sequence[SustainedPoint]) -> str:
    """From 0 up, so that a bar half as high is half the rate."""
    rates = [point.inferences_per_s for point in points]
    bars = sparkline(rates, _CURVE, low=0, high=max(rates))
    beside = [
        _range([p.celsius for p in points if p.celsius is not None], "{:.0f}", "°C"),
        _range([p.khz / _KHZ_PER_GHZ for p in points if p.khz is not None], "{:.2f}", "GHz"),
    ]
    return "  ".join(filter(None, (bars, ", ".join(filter(None, beside)))))


def _range(values: Sequence[float], form: str, unit: str) -> str:
    """The first and the last value."""
    return f"{form.format(values[0])} to {form.format(values[-1])} {unit}" if values else ""


def _energy(energy: Energy) -> str:
    idle = "" if energy.idle_watts is None else f", {energy.idle_watts:.2g} W before"
    return (
        f"about {_joules(energy.joules_per_inference)} per inference, estimated from the battery: "
        f"the whole device takes {energy.watts:.2g} W{idle}"
    )


def _joules(joules: float) -> str:
    for unit, per_joule in (("J", 1.0), ("mJ", 1e3)):
        if joules * per_joule >= 0.1:
            return f"{joules * per_joule:.2g} {unit}"
    return f"{joules * 1e6:.2g} µJ"
