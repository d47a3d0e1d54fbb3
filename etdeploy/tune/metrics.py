"""What a search minimizes and limits: numbers by the names that a user types, with their units."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from etdeploy.bench.units import duration
from etdeploy.core import console
from etdeploy.core.errors import UsageError
from etdeploy.core.values import Value

if TYPE_CHECKING:
    from etdeploy.bench.records.stored import StoredRun
    from etdeploy.program.folder import Provenance
    from etdeploy.program.model import Program

LATENCY, TTFT, LOAD = "latency", "ttft", "load"
PEAK_MEMORY, SIZE, ENERGY = "peak_memory", "size", "energy"
ERROR, PERPLEXITY = "error", "perplexity"
# Beside the figures of a program: what `perplexity` is relative to.
UNQUANTIZED_PERPLEXITY = "unquantized_perplexity"

# Of a quantized model whose logits are NaN: JSON has no infinite numbers.
NO_PERPLEXITY = 1e12

Figures = Mapping[str, float]
"""Numbers of a combination by metric: milliseconds, bytes, joules, or without a unit."""

_TIME = {"us": 0.001, "µs": 0.001, "ms": 1.0, "s": 1000.0, "": 1.0}
_BYTES = {
    "B": 1.0, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30,
}  # fmt: skip
_JOULES = {"mJ": 0.001, "J": 1.0, "": 1.0}
_PLAIN = {"": 1.0}
_SHARE = {"": 1.0, "%": 0.01}
# A smaller share is shown as a power of ten.
_SMALL_SHARE = 1e-4


@dataclass(frozen=True)
class Metric:
    """A number that can be minimized or limited.

    Attributes:
        name: As a user types it.
        title: In a sentence.
        units: Factors to the unit of `Figures`, by the unit that a user types.
        of_text: True for programs that generate text only, False for all others only.
        minimized: Whether it can be the objective.
        example: A limit, for messages.
    """

    name: str
    title: str
    units: Mapping[str, float]
    example: str
    of_text: bool | None = None
    minimized: bool = True

    def applies(self, *, is_text: bool) -> bool:
        """Whether this kind of program has it."""
        return self.of_text in (None, is_text)

    def show(self, value: float) -> str:
        """The value with its unit."""
        if self.units is _TIME:
            return duration(value)
        if self.units is _BYTES:
            return console.size(round(value))
        if self.units is _JOULES:
            return f"{1000 * value:.3g} mJ"
        if self.units is _SHARE:
            return f"{100 * value:.3g} %" if value >= _SMALL_SHARE else f"{value:.1e}"
        return f"{value:.4g}"


METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(LATENCY, "latency", _TIME, "latency=20ms"),
        Metric(TTFT, "time to first token", _TIME, "ttft=200ms", of_text=True),
        Metric(LOAD, "load", _TIME, "load=100ms"),
        Metric(PEAK_MEMORY, "peak memory", _BYTES, "peak_memory=300MB"),
        Metric(SIZE, "size of the program", _BYTES, "size=50MB"),
        Metric(ENERGY, "energy", _JOULES, "energy=20mJ", of_text=False),
        Metric(ERROR, "error", _SHARE, "error=1e-2", of_text=False, minimized=False),
        Metric(PERPLEXITY, "perplexity", _PLAIN, "perplexity=+2%", of_text=True, minimized=False),
    )
}


class Limit(Value):
    """The largest value that a result may have.

    Attributes:
        metric: Its name.
        bound: In the unit of `Figures`; where it is relative, the share that is added: 0.02.
        relative: Whether it is relative: to the unquantized model for `perplexity`, for others to
            the recipe as it is.
        text: As the user wrote it.
    """

    metric: str
    bound: float
    relative: bool
    text: str

    def bound_for(self, base: Figures) -> float | None:
        """The bound as a value; None while what it is relative to is not known."""
        if not self.relative:
            return self.bound
        name = UNQUANTIZED_PERPLEXITY if self.metric == PERPLEXITY else self.metric
        return None if name not in base else base[name] * (1 + self.bound)


_LIMIT = re.compile(r"(?P<sign>[+-]?)(?P<number>[0-9.]+(?:[eE][+-]?[0-9]+)?)\s*(?P<unit>\D*)")


def parse_limit(text: str, *, is_text: bool) -> Limit:
    """The limit that a user writes as `NAME=VALUE`.

    Raises:
        UsageError: The metric does not exist, this kind of model does not have it, or the value is
            not a positive number with a unit of the metric.
    """
    name, equals, value = text.partition("=")
    metric = require_metric(name.strip(), is_text=is_text, option="--limit")
    found = _LIMIT.fullmatch(value.strip())
    if not equals or not found:
        raise _not_a_limit(text, metric)
    sign, unit = found["sign"], found["unit"].strip()
    try:
        number = float(found["number"])
    except ValueError:
        raise _not_a_limit(text, metric) from None
    if sign and unit == "%":
        share = number / 100 * (-1 if sign == "-" else 1)
        if share <= -1 or metric.name == ERROR:
            raise _not_a_limit(text, metric)
        return Limit(metric=metric.name, bound=share, relative=True, text=text)
    if sign or unit not in metric.units or not 0 < number < math.inf:
        raise _not_a_limit(text, metric)
    bound = number * metric.units[unit]
    return Limit(metric=metric.name, bound=bound, relative=False, text=text)


def _not_a_limit(text: str, metric: Metric) -> UsageError:
    units = ", ".join(unit for unit in metric.units if unit)
    relative = "" if metric.name == ERROR else ", or a change like +2% or -10%"
    return UsageError(
        f"{text!r} is not a limit",
        place="--limit",
        remedy=f"Write it as {metric.example}: a positive number"
        f"{f' with one of the units {units}' if units else ''}{relative}.",
    )


def require_metric(name: str, *, is_text: bool, option: str) -> Metric:
    """The metric of a name.

    Raises:
        UsageError: There is none, or the model does not have it; lists those that it has.
    """
    minimized = option == "--minimize"
    offered = [
        metric.name
        for metric in METRICS.values()
        if metric.applies(is_text=is_text) and (metric.minimized or not minimized)
    ]
    if name in offered:
        return METRICS[name]
    kind = "a language model" if is_text else "a model that does not generate text"
    near = get_close_matches(name, offered, n=1)
    if name in METRICS and METRICS[name].applies(is_text=is_text):
        message = f"{name} can be limited, but not minimized"
    elif name in METRICS:
        message = f"{kind} has no {METRICS[name].title}"
    else:
        message = f"there is no metric {name!r}" + (f": did you mean {near[0]}?" if near else "")
    raise UsageError(message, place=option, remedy=f"For {kind}: {', '.join(offered)}.")


def parse_limits(texts: Sequence[str], *, is_text: bool) -> tuple[Limit, ...]:
    """All limits; raises UsageError as `parse_limit`, and for a metric that is limited twice."""
    found = tuple(parse_limit(text, is_text=is_text) for text in texts)
    names = [limit.metric for limit in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(
            f"{twice} is limited {names.count(twice)} times",
            place="--limit",
            remedy="Leave out all but the strictest.",
        )
    return found


@dataclass(frozen=True)
class Breach:
    """A limit that a combination breaks.

    Attributes:
        limit: The limit.
        value: Of the combination.
        bound: The largest value that is allowed.
    """

    limit: Limit
    value: float
    bound: float

    @property
    def excess(self) -> float:
        """By which share the value is above the bound."""
        return self.value / self.bound - 1 if self.bound > 0 else math.inf

    def __str__(self) -> str:
        metric = METRICS[self.limit.metric]
        return (
            f"{metric.title} {metric.show(self.value)}, {100 * self.excess:.3g} % above "
            f"{metric.show(self.bound)}"
        )


def breaches(limits: Sequence[Limit], figures: Figures, base: Figures) -> tuple[Breach, ...]:
    """The limits that the known figures break; what is not known yet breaks none."""
    found = []
    for limit in limits:
        value, bound = figures.get(limit.metric), limit.bound_for({**base, **_reference(figures)})
        if value is not None and bound is not None and value > bound * (1 + 1e-9):
            found.append(Breach(limit, value, bound))
    return tuple(found)


def _reference(figures: Figures) -> Figures:
    known = figures.get(UNQUANTIZED_PERPLEXITY)
    return {} if known is None else {UNQUANTIZED_PERPLEXITY: known}


def program_figures(program: Program, made: Provenance) -> dict[str, float]:
    """What is known of a program after its export, before it runs anywhere."""
    found = {SIZE: float(program.size_bytes)}
    losses = [loss for each in made.quantization_losses.values() for loss in each]
    noises = [loss.noise for loss in losses if loss.noise is not None]
    if losses:
        found[ERROR] = max(noises, default=0.0)
    evaluation = made.generation.evaluation if made.generation else None
    if evaluation and evaluation.perplexity is not None:
        found[UNQUANTIZED_PERPLEXITY] = evaluation.perplexity
        if evaluation.exported_perplexity is not None:
            found[PERPLEXITY] = evaluation.exported_perplexity
        else:
            found[PERPLEXITY] = NO_PERPLEXITY
    return found


def has_high_loss(made: Provenance) -> bool:
    """Whether etdeploy warns of what quantization costs this program."""
    evaluation = made.generation.evaluation if made.generation else None
    losses = [loss for each in made.quantization_losses.values() for loss in each]
    return any(loss.is_high for loss in losses) or bool(evaluation and evaluation.has_large_loss)


def record_figures(run: StoredRun, program_folder: Path) -> dict[str, float]:
    """The numbers of a run; without those that it did not measure."""
    from etdeploy.bench.records.generation import TextGeneration

    record, workload = run.record, run.record.workload
    found = {LATENCY: workload.timed.median, LOAD: record.load_ms}
    found[SIZE] = float(record.program.size_bytes)
    if record.peak_rss_bytes is not None:
        found[PEAK_MEMORY] = float(record.peak_rss_bytes)
    if isinstance(workload, TextGeneration):
        found[TTFT] = workload.first.ttft_ms
        return found
    if workload.sustained and workload.sustained.energy:
        found[ENERGY] = workload.sustained.energy.joules_per_inference
    on_device = _device_error(run, program_folder)
    if on_device is not None:
        noises = [each.noise or 0.0 for each in record.program.quantization_loss]
        # The triangle inequality: no further from the unquantized model than both together.
        found[ERROR] = on_device + max(noises, default=0.0)
    return found


def record_series(run: StoredRun) -> dict[str, tuple[float, ...]]:
    """What stands for each start, by metric."""
    from etdeploy.bench.records.generation import TextGeneration

    workload = run.record.workload
    found = {LATENCY: tuple(start.median_ms for start in workload.runs)}
    if isinstance(workload, TextGeneration):
        found[TTFT] = workload.first.first_token_ms.samples
    return found


def _device_error(run: StoredRun, folder: Path) -> float | None:
    """The largest relative error of a float output against what the eager model gave.

    Root mean square of the differences by that of the expected values; None without any.
    """
    import numpy as np

    from etdeploy.bench.tolerance import UnreadableTensorError, read_tensor
    from etdeploy.program.folder import TensorFile, load_provenance

    made = load_provenance(folder).of(run.record.program.method)
    expected = [v for v in next(iter(made.measured.values())).expected if isinstance(v, TensorFile)]
    checks = [c for c in run.record.inference.outputs if c.rms_error is not None]
    if len(expected) != len(checks):
        return None
    found = []
    for value, check in zip(expected, checks, strict=True):
        try:
            tensor = np.asarray(read_tensor(folder / value.path, value.dtype, value.shape))
        except UnreadableTensorError:
            return None
        values = tensor.astype(np.float64)
        scale = (
            float(np.sqrt(np.mean(np.square(values[np.isfinite(values)])))) if values.size else 0
        )
        if "float" in value.dtype and scale > 0:
            found.append((check.rms_error or 0.0) / scale)
    return max(found, default=None)
