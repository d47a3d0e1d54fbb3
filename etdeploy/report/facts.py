"""A run as facts, which every report shows: a new field of the record gets its line here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from etdeploy.bench.records.generation import EncodedInput, TextGeneration
from etdeploy.bench.records.outputs import TextCheck, UndelegatedOperator, UndelegatedTime
from etdeploy.bench.records.performance import (
    SLOWING,
    Disturbance,
    DisturbanceKind,
    Energy,
    Memory,
    Start,
    Sustained,
    WeightsKind,
)
from etdeploy.bench.records.record import RunRecord, TaskRecord
from etdeploy.bench.units import long_time, rate
from etdeploy.bench.verdict import explain, strain, uncompared_outputs, wrong_outputs
from etdeploy.core.console import count
from etdeploy.core.layout import cut, sparkline
from etdeploy.plan.model import Provider
from etdeploy.program.folder import FORWARD
from etdeploy.program.model import where_it_runs
from etdeploy.program.quality import loss_lines, quality_lines
from etdeploy.report import formatting
from etdeploy.report.document import BAD, GOOD, QUIET, WARN, Fact, Text
from etdeploy.report.formatting import duration, percent, size

SIMULATED = "simulated"
"""Stands where a latency would."""
OUTPUT_TONES = {"WRONG": BAD, "correct": GOOD}
_MOST_KERNELS, _MOST_OUTPUTS, _MOST_OUTSIDE = 6, 5, 4
# Operators below that share of the time are not worth a look.
_LEAST_SHARE = 0.001
# More medians than that are shown as their range.
_MOST_MEDIANS = 5
_LONGEST_TEXT = 400
# Bars of the curve of sustained work.
_CURVE = 50
_KHZ_PER_GHZ = 1e6


def headline(record: RunRecord) -> str:
    """Return the figures that a run is known by, and what disturbed it."""
    workload = record.workload
    if record.simulated:
        soc = f" for {record.simulated.soc}" if record.simulated.soc else ""
        return f"{SIMULATED} by {record.simulated.by}{soc}"
    if isinstance(workload, TextGeneration):
        decoded, first = workload.first.decode_tokens_per_s, workload.first
        decode = "" if decoded is None else f"{rate(decoded)} tokens per second, "
        speed = f"{decode}first token after {duration(first.ttft_ms)} ({first.label})"
    else:
        speed = f"{main_figure(record)}, {_per_second(workload.latency_ms.median)}"
    disturbed = disturbance_kinds(record)
    return f"{speed}{f' (disturbed: {disturbed})' if disturbed else ''}"


def main_figure(record: RunRecord) -> str:
    """Return the one number that a run is known by, with its unit: median latency or rate."""
    workload = record.workload
    if record.simulated:
        return SIMULATED
    if isinstance(workload, TextGeneration):
        return headline(record).partition(", ")[0]
    at = f" at {workload.sizes[0].name}" if workload.sizes else ""
    return f"{duration(workload.latency_ms.median)} per inference{at}"


def disturbance_kinds(record: RunRecord) -> str:
    """Return the kinds of disturbances of the run as a whole, `throttled, busy`."""
    kinds = (each.kind for each in record.disturbances if each.kind in SLOWING)
    return ", ".join(map(formatting.kind, kinds))


def run_facts(record: RunRecord) -> Iterator[Fact]:
    """Return what is known of a run, the figures that it is about first."""
    workload = record.workload
    yield from _simulated(record) if record.simulated else _times(record)
    yield _outputs(record)
    if not isinstance(workload, TextGeneration) and workload.task:
        yield _result(workload.task, workload.latency_ms.median)
    yield from _fact("quality", quality(record))
    if not record.simulated:
        yield from _memory(record)
    if not isinstance(workload, TextGeneration) and workload.sustained:
        yield Fact("sustained", tuple(_sustained(workload.sustained)))
    yield _device(record)
    yield Fact("program", (_program(record),))
    yield from _fact("runs on", _placement(record))
    yield Fact("app" if record.runner.app else "runner", (_runner(record),))


def record_notes(record: RunRecord) -> Iterator[Text]:
    """Return what a reader of the numbers has to know."""
    return (Text(note, "info", "Note:") for note in record.notes)


def _fact(label: str, lines: Iterator[str]) -> Iterator[Fact]:
    if found := tuple(lines):
        yield Fact(label, found)


def _simulated(record: RunRecord) -> Iterator[Fact]:
    by = headline(record).removeprefix(f"{SIMULATED} ")
    yield Fact("latency", (f"{by}, which gives no times of a device",), SIMULATED, QUIET)


def _times(record: RunRecord) -> Iterator[Fact]:
    workload, starts = record.workload, record.workload.runs
    threads = count(record.runner.threads, "thread")
    in_starts = f"in {count(len(starts), 'start')}, {threads}"
    if isinstance(workload, TextGeneration):
        yield from _encoder(workload.encoder, in_starts) if workload.encoder else ()
        yield from _rates(workload, in_starts)
    else:
        median = workload.latency_ms.median
        samples = count(len(workload.latency_ms.samples), "inference")
        lines = (_per_second(median), f"median of {samples} {in_starts}")
        yield Fact("latency", lines, duration(median))
    yield _spread(record)
    yield Fact("warm-up", (_warmup(starts, "generation" if workload.metric != "latency_ms" else
                                   "inference"),))  # fmt: skip
    load = f"program and {'all methods' if isinstance(workload, TextGeneration) else 'method'}"
    checked = "with a thorough check of the file"
    if record.verify_ms is not None:
        checked = f"after {duration(record.verify_ms)} for checking the file"
    yield Fact("load", (f"{load}, {checked}",), duration(record.load_ms))
    first = formatting.first_call_name(workload)
    yield Fact(first, ("of a new process, before any warm-up",), duration(workload.first_ms))
    if record.runner.threads_reason:
        yield Fact("threads", (f"{record.runner.threads}: {record.runner.threads_reason}",))
    if isinstance(workload, TextGeneration):
        yield from _generated(workload)


def _encoder(encoder: EncodedInput, in_starts: str) -> Iterator[Fact]:
    """The encoder's time, and the speed of recognition."""
    samples = count(len(encoder.encode_ms.samples), "call")
    host = f"processor, on the host: {duration(encoder.preprocess_ms)} before it"
    lines = (f"median of {samples} {in_starts}", host)
    yield Fact("encoder", lines, duration(encoder.encode_ms.median))
    if encoder.audio_s and encoder.real_time_factor is not None:
        took = duration(1000 * encoder.audio_s * encoder.real_time_factor)
        text = f"{took} for {encoder.audio_s:.3g} s of speech, from the encoder to the last token"
        yield Fact("real time", (text,), f"{encoder.real_time_factor:.3g} x")


def _rates(workload: TextGeneration, in_starts: str) -> Iterator[Fact]:
    """Decode and prefill at the first point."""
    first, tokens = workload.first, workload.first.token_ms
    generations = [point.generations for point in workload.points]
    least, most = min(generations), max(generations)
    number = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    medians = f"medians over {number} generations of each point {in_starts}"
    if first.decode_tokens_per_s is not None and tokens:
        times = f"{duration(tokens.median)} per token, p90 {duration(tokens.p90)}; {first.label}"
        yield Fact("decode", (times, medians), f"{rate(first.decode_tokens_per_s)} tokens/s")
        medians = first.label
    if first.speculation:
        draft = workload.draft
        named = (f"draft {draft.name}, {size(draft.size_bytes)}",) if draft else ()
        yield Fact("speculation", (first.speculation.text, *named))
    text = f"first token after {duration(first.ttft_ms)}"
    yield Fact("prefill", (text, medians), f"{rate(first.prefill_tokens_per_s)} tokens/s")


def _generated(workload: TextGeneration) -> Iterator[Fact]:
    if (text := generated_text(workload)) is not None:
        end = "" if workload.first.stopped else " ..."
        yield Fact("text", (cut(text, _LONGEST_TEXT) + end,))
    if workload.huge_page_bytes:
        yield Fact("huge pages", (f"{size(workload.huge_page_bytes)} of weights and cache",))
    if workload.methods:
        shares = (f"{m.method} {percent(100 * m.outside_delegates)}" for m in workload.methods)
        text = f"{', '.join(shares)} of the time; etdeploy profile shows the operators"
        yield Fact("not delegated", (text,))


def generated_text(workload: TextGeneration) -> str | None:
    """Return the first point's text as one line; None for random prompts, where it says nothing."""
    text, encoder = workload.first.text, workload.encoder
    says_something = workload.prompt is not None or (encoder is not None and encoder.is_real)
    return formatting.one_line(text) if says_something and text is not None else None


def _per_second(median_ms: float) -> str:
    if not formatting.is_number(median_ms) or median_ms <= 0:
        return "countless inferences per second"
    return f"{rate(1000 / median_ms)} inferences per second"


def _spread(record: RunRecord) -> Fact:
    spread, starts = record.workload.spread, record.workload.runs
    within = f"{percent(spread.within_percent)} within a start"
    if spread.between_percent is None:
        lines = ("one start cannot show the spread between starts, --runs 5 does", within)
        return Fact("spread", lines, "unknown", QUIET)
    medians = [start.median_ms for start in starts]
    unit = formatting.time_unit(min(medians))
    ends = medians if len(medians) <= _MOST_MEDIANS else (min(medians), max(medians))
    numbers = [formatting.in_unit(unit, ms, min(medians)) for ms in ends]
    shown = ", ".join(numbers) if ends is medians else f"from {' to '.join(numbers)}"
    between = f"between {len(starts)} starts, medians {shown} {unit.name}"
    return Fact("spread", (between, within), percent(spread.between_percent))


def _warmup(starts: Sequence[Start], sample: str) -> str:
    least, most = min(run.warmup for run in starts), max(run.warmup for run in starts)
    number = count(most, sample) if least == most else f"{least:,} to {most:,} {sample}s"
    if all(run.steady is None for run in starts):
        return number
    if all(run.steady for run in starts):
        return f"{number}, until the times had stopped falling"
    return f"{number}; the times were STILL FALLING"


def _outputs(record: RunRecord) -> Fact:
    verdict = formatting.outputs(record)
    lines = tuple(_output_lines(record))
    return Fact("outputs", lines, verdict, OUTPUT_TONES.get(verdict, WARN))


def _result(task: TaskRecord, latency_ms: float) -> Fact:
    """What the outputs mean, and what the host's part of it takes."""
    lines = [*task.result.lines()]
    if task.agrees is False and task.expected:
        lines.append("NOT the model's own result: " + "; ".join(task.expected.lines()))
    whole_ms = task.preprocess_ms + latency_ms + task.result.took_ms
    lines.append(
        f"processor, on the host: {duration(task.preprocess_ms)} before the model and "
        f"{duration(task.result.took_ms)} after it, {100 * (1 - latency_ms / whole_ms):.0f} % of "
        "the whole time"
    )
    verdict = "differs" if task.agrees is False else "as the model"
    return Fact("result", tuple(lines), verdict, WARN if task.agrees is False else GOOD)


def _output_lines(record: RunRecord) -> Iterator[str]:
    workload = record.workload
    if isinstance(workload, TextGeneration):
        if workload.texts:
            yield from text_lines(workload)
        else:
            yield "there are no expected token ids"
        return
    if not workload.outputs_compared:
        yield "there are no expected outputs"
        return
    outputs, wrong = workload.all_outputs, wrong_outputs(record)
    uncompared = uncompared_outputs(record)
    if wrong:
        yield f"{len(wrong)} of {len(outputs)} outputs are not what the model gives"
    yield from (f"{c.name} ({c.dtype}): {explain(c)}" for c in wrong[:_MOST_OUTPUTS])
    if len(wrong) > _MOST_OUTPUTS:
        yield f"and {len(wrong) - _MOST_OUTPUTS} more"
    for check in uncompared[:_MOST_OUTPUTS]:
        yield f"{check.name} ({check.dtype}) is not compared: {check.remark}"
    right = [check for check in outputs if check.within_tolerance]
    if right and not wrong:
        which = f"{len(right)} of {len(outputs)}" if len(right) < len(outputs) else "all"
        yield f"{f'{which} ' if len(outputs) > 1 else ''}within tolerance of the model's"
        closest = max(right, key=strain)
        named = f"{closest.name}, which is nearest to its limits: " if len(right) > 1 else ""
        yield named + explain(closest)


def text_lines(workload: TextGeneration) -> Iterator[str]:
    """Return why the texts are right or wrong, and where quantization changes them."""
    texts = workload.texts
    wrong = [text for text in texts if not text.within_tolerance]
    right = [text for text in texts if text.within_tolerance]
    if wrong:
        which = f"{len(wrong)} of {count(len(texts), 'text')}"
        yield f"{which} {'is' if len(wrong) == 1 else 'are'} not what the model gives"
    elif right:
        yield _equal(right)
    for text in (*wrong, *right):
        if text.parting:
            yield f"{text.name}: {text.parting}"
    yield from original_lines(texts)


def _equal(texts: Sequence[TextCheck]) -> str:
    model = "the quantized model's" if texts[0].original_ids is not None else "the model's"
    if not all(text.whole for text in texts):
        compared = count(sum(text.compared_tokens for text in texts), "position")
        error = max(text.max_logit_error for text in texts)
        return f"{model} logits, run eagerly, within {error:.3g} at {compared}"
    *others, last = (text.equal_tokens for text in texts)
    tokens = "".join(f"{number:,} and " for number in others) + count(last, "token")
    return f"token for token {model}, run eagerly ({tokens})"


def original_lines(texts: Sequence[TextCheck]) -> Iterator[str]:
    """Return what quantization does to the texts."""
    known = [text for text in texts if text.original_ids is not None]
    other = [text for text in known if text.token_ids != text.original_ids]
    if known and not other:
        yield "the model gives the same before it is quantized"
    for text in other:
        at = (text.original_equal_tokens or 0) + 1
        yield (
            f"before it is quantized, the model gives another text from token {at} of "
            f"{len(text.original_ids or ())} on ({text.name})"
        )


def quality(record: RunRecord) -> Iterator[str]:
    """Return how good the model is, as far as it was evaluated, and what quantization costs."""
    workload = record.workload
    if isinstance(workload, TextGeneration) and workload.evaluation:
        yield from quality_lines(workload.evaluation)
    yield from loss_lines(record.program.quantization_loss)


def _memory(record: RunRecord) -> Iterator[Fact]:
    memory = record.memory or Memory(peak_rss_bytes=record.peak_rss_bytes)
    parts = ["resident, program and runner"]
    if memory.before_load_rss_bytes:
        parts.append(f"{size(memory.before_load_rss_bytes)} before the program was loaded")
    if memory.peak_pss_bytes is not None:
        parts.append(f"PSS {size(memory.peak_pss_bytes)}")
    planned = "" if memory.planned_bytes is None else f"{size(memory.planned_bytes)} planned"
    more = "; ".join(filter(None, (planned, _weights(memory, record.program.size_bytes))))
    known = memory.peak_rss_bytes is not None
    lines = (*([", ".join(parts)] if known else []), *([more] if more else []))
    if lines:
        yield Fact("peak memory", lines, size(memory.peak_rss_bytes) if known else "")


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


def _sustained(sustained: Sustained) -> Iterator[str]:
    """The share of the rate that remains, when it dropped, its curve, and the energy."""
    remains = round(sustained.retained_percent)
    share = f"{remains} % of the rate remains" if remains < 100 else "nothing of the rate is lost"
    yield (
        f"{share} after {long_time(sustained.seconds)}: from {rate(sustained.start_per_s)} to "
        f"{rate(sustained.end_per_s)} inferences per second, {sustained.inferences:,} in all"
    )
    first, second = sustained.to_minus_10_percent_s, sustained.to_minus_25_percent_s
    if first is None:
        yield "never 10 % slower for long"
    else:
        more = "never 25 %" if second is None else f"25 % after {long_time(second)}"
        yield f"10 % slower after {long_time(first)}, {more}"
    points = sustained.points
    rates = [point.inferences_per_s for point in points]
    # From 0 up, so that a bar half as high is half the rate.
    bars = sparkline(rates, _CURVE, low=0, high=max(rates))
    states = [
        _range([p.celsius for p in points if p.celsius is not None], "{:.0f}", "°C"),
        _range([p.khz / _KHZ_PER_GHZ for p in points if p.khz is not None], "{:.2f}", "GHz"),
    ]
    yield "  ".join(filter(None, (bars, ", ".join(filter(None, states)))))
    if sustained.energy:
        yield _energy(sustained.energy)


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


def _device(record: RunRecord) -> Fact:
    facts, before, after = record.device.facts, record.device.before, record.device.after
    named = formatting.device(record)
    parts = [facts.name if facts.name != named else None, facts.soc, facts.os]
    parts += [count(facts.cpu_count, "CPU") if facts.cpu_count else None]
    parts += [size(facts.memory_bytes) if facts.memory_bytes else None]
    if before.battery_celsius is not None:
        end = "" if after.battery_celsius is None else f" to {after.battery_celsius:.0f}"
        parts.append(f"battery {before.battery_celsius:.0f}{end} °C")
    if after.thermal_status:
        parts.append(f"thermal status {after.thermal_status}")
    line = ", ".join(part for part in parts if part)
    return Fact("device", (line,), named)


def chosen_adapter(record: RunRecord) -> str | None:
    """Return the adapter that generated, of those that the program has apart."""
    generation = record.recipe.content.get("benchmark", {}).get("generation") or {}
    adapter: str | None = generation.get("lora")
    return adapter


def _program(record: RunRecord) -> str:
    program = record.program
    is_text = isinstance(record.workload, TextGeneration)
    adapter = chosen_adapter(record)
    parts = (
        f"{program.source} with the adapter {adapter}" if adapter else program.source,
        program.backend,
        None if program.quantization == "none" else program.quantization,
        None if program.method == FORWARD or is_text else f"method {program.method}",
        size(program.size_bytes),
    )
    return ", ".join(part for part in parts if part)


def _placement(record: RunRecord) -> Iterator[str]:
    program = record.program
    yield from where_it_runs(program.delegates, program.operator_calls)
    outside = None if isinstance(record.workload, TextGeneration) else record.workload.outside
    if outside:
        yield from filter(None, [outside_text(outside, is_delegated=bool(program.delegates))])
    elif called := [f"{o.calls} x {o.name}" for o in program.operator_calls if o.calls]:
        more = len(called) - _MOST_KERNELS
        rest = f" and {count(more, 'more operator')}" if more > 0 else ""
        yield ", ".join(called[:_MOST_KERNELS]) + rest


def outside_text(outside: UndelegatedTime, is_delegated: bool) -> str:
    """Return the share outside of delegates, and the operators that take most of it."""
    operators = [each for each in outside.operators if each.share >= _LEAST_SHARE]
    parts = [_outside_operator(each) for each in operators[:_MOST_OUTSIDE]]
    share = "most of the time"
    if is_delegated:
        share = f"{percent(100 * outside.share)} of the time is outside of delegates"
    if not parts:
        return share if is_delegated else ""
    return f"{share}: {'; '.join(parts)}"


def _outside_operator(operator: UndelegatedOperator) -> str:
    text = f"{percent(100 * operator.share)} in {operator.name}"
    where = [*_one(operator.modules, "module"), *_one(operator.places, "line")]
    text += f" ({', '.join(where)})" if where else ""
    return f"{text}, since {operator.reasons[0]}" if len(operator.reasons) == 1 else text


def _one(names: Sequence[str], noun: str) -> list[str]:
    return [names[0]] if len(names) == 1 else [count(len(names), noun)] if names else []


def _runner(record: RunRecord) -> str:
    runner = record.runner
    executorch = f"ExecuTorch {runner.executorch_version}"
    if app := runner.app:
        built = "" if app.build == "given" else f", built by {app.build}"
        release = f" ({', '.join(app.artifacts)})" if app.artifacts else ""
        return f"app {app.id}, {size(runner.size_bytes)}{built}; {executorch}{release}"
    kind = "portable runner" if runner.portable else "runner"
    from_source = runner.provider == Provider.SOURCE
    origin = f" built from source, {size(runner.size_bytes)}" if from_source else ""
    return f"{kind} for {runner.target}, {executorch}{origin}"


def disturbances(record: RunRecord) -> Iterator[Text]:
    """Return a line for each kind: the starts that it disturbed, and the first one's sentence."""
    starts = record.workload.runs
    for kind in DisturbanceKind:
        in_starts = [(n, d) for n, start in enumerate(starts, 1) for d in _of_kind(start, kind)]
        whole = [each for each in record.disturbances if each.kind == kind]
        if in_starts or whole:
            text = in_starts[0][1].text if in_starts else whole[0].text
            where = _where([n for n, _ in in_starts], len(starts))
            yield Text(f"{formatting.kind(kind)}{where}: {text}", WARN, "Disturbed:")


def _of_kind(start: Start, kind: DisturbanceKind) -> list[Disturbance]:
    return [each for each in start.disturbances if each.kind == kind]


def _where(numbers: list[int], starts: int) -> str:
    if starts < 2 or not numbers:
        return ""
    if len(numbers) == starts:
        return " in all starts"
    if len(numbers) == 1:
        return f" in start {numbers[0]} of {starts}"
    return f" in {len(numbers)} of {starts} starts"
