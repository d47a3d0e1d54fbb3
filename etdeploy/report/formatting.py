"""Values as a report shows them; whatever is not a number is a dash."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from etdeploy.bench.records.generation import TextGeneration
from etdeploy.bench.records.performance import DisturbanceKind
from etdeploy.bench.records.record import RunRecord, Workload
from etdeploy.bench.units import TimeUnit, unit_for
from etdeploy.bench.units import duration as _duration
from etdeploy.bench.verdict import uncompared_outputs, wrong_outputs
from etdeploy.compare.model import Comparison
from etdeploy.core.console import size as _size
from etdeploy.report.document import NOTHING


@dataclass(frozen=True)
class Sample:
    """What a workload's times are of.

    Attributes:
        one: A sample, in the singular.
        time: What a sample's time is called.
    """

    one: str
    time: str


INFERENCE = Sample("inference", "latency")
_TIMES = {"token_ms": "time per token", "ttft_ms": "time to first token"}


def sample(workload: Workload) -> Sample:
    """What the times are of by which a run is compared."""
    return Sample(workload.sample, _TIMES.get(workload.metric, INFERENCE.time))


def first_call_name(workload: Workload) -> str:
    """Return the name of what a process does before its warm-up."""
    return "first token" if isinstance(workload, TextGeneration) else "first inference"


def is_number(value: float | None) -> bool:
    """Whether there is a value, and it is finite."""
    return value is not None and math.isfinite(value)


def duration(value_ms: float | None) -> str:
    """A time with its unit."""
    return _duration(value_ms) if value_ms is not None and is_number(value_ms) else NOTHING


def time_unit(value_ms: float | None) -> TimeUnit:
    """The unit in which a time is shown."""
    return unit_for(value_ms if value_ms is not None and is_number(value_ms) else 0.0)


def in_unit(unit: TimeUnit, value_ms: float | None, like_ms: float | None = None) -> str:
    """A time in a given unit, without its name; with the decimals of `like_ms`."""
    if value_ms is None or not is_number(value_ms):
        return NOTHING
    return unit.number(value_ms, like_ms if is_number(like_ms) else None)


def size(size_bytes: int | None) -> str:
    """A size with its unit."""
    return NOTHING if size_bytes is None else _size(size_bytes)


def percent(value: float | None) -> str:
    """A percentage with two significant digits below 10."""
    if value is None or not is_number(value):
        return NOTHING
    return f"{value:.0f} %" if abs(value) >= 10 else f"{value:.2g} %"


def number(value: float | None, digits: int = 3) -> str:
    """A number with so many significant digits."""
    return f"{value:,.{digits}g}" if value is not None and is_number(value) else NOTHING


def utc_text(iso: str) -> str:
    """A date and time in UTC as people write it: `2026-11-21 08:44:49 UTC`."""
    return f"{iso[:19].replace('T', ' ')} UTC"


def outputs(record: RunRecord) -> str:
    """The verdict on the outputs, in a word or two."""
    if wrong_outputs(record):
        return "WRONG"
    if not record.workload.outputs_compared:
        return "not checked"
    return "not all compared" if uncompared_outputs(record) else "correct"


def ratio_text(comparison: Comparison) -> str:
    """The ratio with its interval: `0.950 (0.940 to 0.961)`."""
    ratio = comparison.ratio
    if ratio is None or not is_number(ratio.median):
        return NOTHING
    if ratio.low is None or ratio.high is None:
        return f"{ratio.median:.3f}"
    return f"{ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"


def kind(kind: DisturbanceKind) -> str:
    """Return the name of a kind of disturbance in words."""
    return str(kind).replace("_", " ")


def device(record: RunRecord) -> str:
    """The device as people call it."""
    facts = record.device.facts
    known = " ".join(part for part in (facts.manufacturer, facts.model) if part)
    return known or facts.name


def finite(value: Any) -> Any:
    """A JSON value without NaN and infinities, which JSON does not have: null in their place."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return value


def one_line(text: str | None) -> str:
    """A text without control characters, which a terminal or a page would obey."""
    if text is None:
        return NOTHING
    return "".join(c if c.isprintable() else " " for c in text).strip()
