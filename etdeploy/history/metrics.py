"""The numbers of a record that are followed over time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from etdeploy.bench.units import duration
from etdeploy.core import console

if TYPE_CHECKING:
    from etdeploy.bench.records.generation import TextGeneration
    from etdeploy.bench.records.record import RunRecord

LATENCY = "latency_ms"
TOKEN, FIRST_TOKEN = "token_ms", "ttft_ms"
PERPLEXITY = "perplexity"
NOISE = "quantization_noise"
# What a record is compared by: the spread between its starts is that of these times.
HEADLINES = (LATENCY, TOKEN)
# By name: what it is called in a sentence. Less is better in all of them.
TITLES = {
    LATENCY: "latency",
    TOKEN: "time per token",
    FIRST_TOKEN: "time to first token",
    "first_inference_ms": "first inference",
    "load_ms": "load",
    "peak_rss_bytes": "peak memory",
    "program_bytes": "size of the program",
    PERPLEXITY: "perplexity",
    NOISE: "quantisation noise",
}
# Between a metric and the name of one of the recipe's sizes, the key of a point, a text, or an
# output.
_AT = "@"
# Of a text's digest.
_DIGITS = 8


def metrics_of(record: RunRecord) -> dict[str, float]:
    """The numbers of one record, by metric; of a simulated one none, for they are the simulator's.

    Numbers that are infinite or NaN are left out. Where the recipe names sizes, the first one's is
    `latency_ms`, and `latency_ms@NAME` is each other's. Of generated text, the first point's are
    `token_ms` and `ttft_ms`, and `token_ms@p128-n64-d1024` is that of another. A model
    that was evaluated has `perplexity@FILE-DIGEST`, and a quantised one `quantization_noise@OUTPUT`
    for each output: the root mean square of what quantisation changes by that of the output.
    """
    if record.simulated:
        return {}
    return {name: value for name, value in _metrics(record) if math.isfinite(value)}


def _metrics(record: RunRecord) -> Iterator[tuple[str, float]]:
    from etdeploy.bench.records.generation import TextGeneration

    workload = record.workload
    if isinstance(workload, TextGeneration):
        yield from _of_text(workload)
    else:
        yield LATENCY, workload.latency_ms.median
        for size in workload.sizes[1:]:
            yield f"{LATENCY}{_AT}{size.name}", size.latency_ms.median
        yield "first_inference_ms", workload.first_inference_ms
    yield "load_ms", record.load_ms
    if record.peak_rss_bytes is not None:
        yield "peak_rss_bytes", float(record.peak_rss_bytes)
    yield "program_bytes", float(record.program.size_bytes)
    for loss in record.program.quantization_loss:
        if loss.noise is not None:
            yield f"{NOISE}{_AT}{loss.name}", loss.noise


def _of_text(workload: TextGeneration) -> Iterator[tuple[str, float]]:
    for index, point in enumerate(workload.points):
        at = f"{_AT}{point.key}" if index else ""
        if point.token_ms:
            yield f"{TOKEN}{at}", point.token_ms.median
        yield f"{FIRST_TOKEN}{at}", point.ttft_ms
    evaluation = workload.evaluation
    if evaluation and evaluation.exported_perplexity is not None:
        # Of another text, it is another number.
        text = f"{evaluation.file}-{evaluation.sha256[:_DIGITS]}"
        yield f"{PERPLEXITY}{_AT}{text}", evaluation.exported_perplexity


def base_of(metric: str) -> str:
    """A metric's name without that of a size."""
    return metric.partition(_AT)[0]


def title(metric: str) -> str:
    """What a metric is called in a sentence."""
    name, _, size = metric.partition(_AT)
    return TITLES.get(name, name) + (f" at {size}" if size else "")


def shown(metric: str, value: float) -> str:
    """A value with its unit."""
    if base_of(metric) == PERPLEXITY:
        return f"{value:.4g}"
    if base_of(metric) == NOISE:
        return f"{100 * value:.3g} % of the signal"
    return console.size(round(value)) if "bytes" in metric else duration(value)
