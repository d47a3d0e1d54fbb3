"""Generated text, as every report shows it: the grid of points, and what its numbers mean."""

from __future__ import annotations

from collections.abc import Sequence

from etdeploy.bench.records.generation import GenerationPoint, TextGeneration
from etdeploy.bench.units import rate
from etdeploy.report import shown
from etdeploy.report.shown import one_line

COLUMNS = (
    "prompt", "new", "depth", "first token", "prefill tok/s", "decode tok/s", "per token", "p90",
)  # fmt: skip
# Those that say what was measured.
DEFINITIONS = {
    "first token": "from the prompt's token ids in hand until the first new token is chosen; "
    "without loading, tokenising and filling the cache to `depth`",
    "prefill": "tokens of the prompt by the time to the first token",
    "decode": "tokens after the first by the time that they took, call and choice",
}


def point_cells(point: GenerationPoint) -> tuple[str, ...]:
    """A point's values, in the order of the columns; medians over its generations."""
    tokens = point.token_ms
    return (
        f"{point.prompt_tokens:,}",
        f"{point.new_tokens:,}",
        f"{point.depth:,}",
        shown.duration(point.ttft_ms),
        rate(point.prefill_tokens_per_s),
        shown.NOTHING if point.decode_tokens_per_s is None else rate(point.decode_tokens_per_s),
        shown.duration(tokens.median) if tokens else shown.NOTHING,
        shown.duration(tokens.p90) if tokens else shown.NOTHING,
    )


def headline(workload: TextGeneration) -> str:
    """The first point's figures in a clause."""
    first = workload.first
    decoded = first.decode_tokens_per_s
    decode = "" if decoded is None else f"{rate(decoded)} tokens per second, "
    return f"{decode}first token after {shown.duration(first.ttft_ms)} ({first.label})"


def outside(workload: TextGeneration) -> str:
    """The share of each method's time that is in no delegate: `decode 4.5 %, prefill 3.1 %`."""
    shares = ((m.method, shown.percent(100 * m.outside_delegates)) for m in workload.methods)
    return ", ".join(f"{method} {share}" for method, share in shares)


def told_text(workload: TextGeneration) -> str | None:
    """The first point's text, as one line; None for random prompts, after which it says nothing."""
    text = workload.first.text
    if workload.prompt is None or text is None:
        return None
    return one_line(text)


def texts(points: Sequence[GenerationPoint]) -> str:
    """How many generations there were, for the line below a table."""
    least = min(point.generations for point in points)
    most = max(point.generations for point in points)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"
