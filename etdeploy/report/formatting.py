"""Values as a report shows them; whatever is not a number is a dash."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from etdeploy.bench.outputs.verdict import uncompared_outputs, wrong_outputs
from etdeploy.bench.records.conditions import SLOWING, Disturbance, DisturbanceKind
from etdeploy.bench.records.generation import GenerationPoint, TextGeneration
from etdeploy.bench.records.outputs import TextCheck
from etdeploy.bench.records.performance import Start
from etdeploy.bench.records.record import RunRecord, Workload
from etdeploy.bench.units import TimeUnit, rate, unit_for
from etdeploy.bench.units import duration as _duration
from etdeploy.compare.model import Comparison
from etdeploy.core.console import count
from etdeploy.core.console import size as _size
from etdeploy.program.quality import loss_lines, quality_lines

NOTHING = "–"


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


def first_of(workload: Workload) -> str:
    """What a process does before its warm-up."""
    is_text = isinstance(workload, TextGeneration)
    return "first token of a new process" if is_text else "first inference"


def loaded(workload: Workload) -> str:
    """What is loaded with the program."""
    return "all methods" if isinstance(workload, TextGeneration) else "method"


def is_number(value: float | None) -> bool:
    """Whether there is a value, and it is finite."""
    return value is not None and math.isfinite(value)


def duration(value_ms: float | None) -> str:
    """A time with its unit."""
    return _duration(value_ms) if value_ms is not None and is_number(value_ms) else NOTHING


def unit_of(value_ms: float | None) -> TimeUnit:
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


def moment(iso: str) -> str:
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


def disturbance(found: Disturbance) -> str:
    """What disturbed a run, in a word or two."""
    return str(found.kind).replace("_", " ")


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


def mark(record: RunRecord) -> str:
    """The kinds of what disturbed the run as a whole, `throttled, busy`; empty for nothing."""
    kinds = [each.kind for each in record.disturbances if each.kind in SLOWING]
    return ", ".join(kind.value.replace("_", " ") for kind in kinds)


def disturbed_lines(record: RunRecord) -> Iterator[str]:
    """A line for each kind: the starts that it disturbed, and the sentence of the first."""
    starts = record.workload.runs
    for kind in DisturbanceKind:
        told = [(n, d) for n, start in enumerate(starts, 1) for d in _of(start, kind)]
        whole = [each for each in record.disturbances if each.kind == kind]
        if told or whole:
            text = told[0][1].text if told else whole[0].text
            yield f"{kind.value.replace('_', ' ')}{_where([n for n, _ in told], starts)}: {text}"


def _of(start: Start, kind: DisturbanceKind) -> Iterator[Disturbance]:
    return (each for each in start.disturbances if each.kind == kind)


def _where(numbers: list[int], starts: tuple[Start, ...]) -> str:
    if len(starts) < 2 or not numbers:
        return ""
    if len(numbers) == len(starts):
        return " in all starts"
    if len(numbers) == 1:
        return f" in start {numbers[0]} of {len(starts)}"
    return f" in {len(numbers)} of {len(starts)} starts"


def verdict_lines(workload: TextGeneration) -> Iterator[str]:
    """The verdict on the texts, and where quantisation changes them; nothing without texts."""
    texts = workload.texts
    wrong = [text for text in texts if not text.within_tolerance]
    right = [text for text in texts if text.within_tolerance]
    if wrong:
        which = f"{len(wrong)} of {count(len(texts), 'text')}"
        yield f"WRONG: {which} {'is' if len(wrong) == 1 else 'are'} not what the model gives"
    elif right:
        yield f"correct: {_equal(right)}"
    for text in (*wrong, *right):
        if text.parting:
            yield f"{text.name}: {text.parting}"
    yield from original_lines(texts)


def quality_of(record: RunRecord) -> Iterator[str]:
    """How good the model is, as far as it was evaluated, and what quantisation costs."""
    workload = record.workload
    if isinstance(workload, TextGeneration):
        yield from quality_lines(workload.evaluation) if workload.evaluation else ()
    yield from loss_lines(record.program.quantization_loss)


def _equal(texts: Sequence[TextCheck]) -> str:
    model = "the quantised model's" if texts[0].original_ids is not None else "the model's"
    if not all(text.whole for text in texts):
        compared = count(sum(text.compared_tokens for text in texts), "position")
        error = max(text.max_logit_error for text in texts)
        return f"{model} logits, run eagerly, within {error:.3g} at {compared}"
    *others, last = (text.equal_tokens for text in texts)
    tokens = "".join(f"{number:,} and " for number in others) + count(last, "token")
    return f"token for token {model}, run eagerly ({tokens})"


def original_lines(texts: Sequence[TextCheck]) -> Iterator[str]:
    """What quantisation does to the texts."""
    known = [text for text in texts if text.original_ids is not None]
    other = [text for text in known if text.token_ids != text.original_ids]
    if known and not other:
        yield "the model gives the same before it is quantised"
    for text in other:
        at = (text.original_equal_tokens or 0) + 1
        yield (
            f"before it is quantised, the model gives another text from token {at} of "
            f"{len(text.original_ids or ())} on ({text.name})"
        )


def one_line(text: str | None) -> str:
    """A text without control characters, which a terminal or a page would obey."""
    if text is None:
        return NOTHING
    return "".join(c if c.isprintable() else " " for c in text).strip()


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
        duration(point.ttft_ms),
        rate(point.prefill_tokens_per_s),
        NOTHING if point.decode_tokens_per_s is None else rate(point.decode_tokens_per_s),
        duration(tokens.median) if tokens else NOTHING,
        duration(tokens.p90) if tokens else NOTHING,
    )


def headline(workload: TextGeneration) -> str:
    """The first point's figures in a clause."""
    first = workload.first
    decoded = first.decode_tokens_per_s
    decode = "" if decoded is None else f"{rate(decoded)} tokens per second, "
    return f"{decode}first token after {duration(first.ttft_ms)} ({first.label})"


def outside(workload: TextGeneration) -> str:
    """The share of each method's time that is in no delegate: `decode 4.5 %, prefill 3.1 %`."""
    shares = ((m.method, percent(100 * m.outside_delegates)) for m in workload.methods)
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
