"""A run record as the text that is printed at the end of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from etdeploy.bench.outputs.verdict import explain, strain, uncompared_outputs, wrong_outputs
from etdeploy.bench.records.generation import TextGeneration
from etdeploy.bench.records.performance import (
    Energy,
    Latency,
    Memory,
    Sustained,
    SustainedPoint,
    ThreadsRecord,
    WeightsKind,
)
from etdeploy.bench.records.record import RunRecord
from etdeploy.bench.records.stored import StoredRun
from etdeploy.bench.units import duration, long_time, rate, unit_for
from etdeploy.core.console import count, size, table
from etdeploy.core.layout import cut, sparkline
from etdeploy.plan.model import Provider
from etdeploy.program.folder import FORWARD
from etdeploy.program.model import Operator, where_it_runs
from etdeploy.report import formatting as generation
from etdeploy.report.formatting import (
    COLUMNS,
    DEFINITIONS,
    disturbed_lines,
    mark,
    outside,
    point_cells,
    quality_of,
    texts,
    told_text,
    verdict_lines,
)
from etdeploy.report.outside import outside_text
from etdeploy.report.terminal.latencies import (
    LABEL,
    SIMULATED,
    between,
    indented,
    latencies,
    simulated_sizes,
    sizes_table,
    starts,
    wrapped,
)

_MOST_OPERATORS = 6
_MOST_OUTPUTS = 5


def summary(run: StoredRun) -> str:
    """Latencies, verdict on the outputs, what ran where, notes and files; at most 100 columns.

    Only the path of the run's folder may be longer.
    """
    record = run.record
    sections = [
        wrapped("", [_headline(record)], indent=""),
        *map(indented, _tables(record)),
        "\n".join(_facts(record)),
    ]
    notes = "\n".join(wrapped("note", [note]) for note in record.notes)
    return "\n\n".join([*sections, *([notes] if notes else []), _files(run)])


def _headline(record: RunRecord) -> str:
    workload, where = record.workload, f"{record.recipe.name} on {record.device.facts.name}: "
    if record.simulated:
        soc = f" for {record.simulated.soc}" if record.simulated.soc else ""
        return f"{where}{SIMULATED} by {record.simulated.by}{soc}"
    if isinstance(workload, TextGeneration):
        speed = generation.headline(workload)
    else:
        speed = f"{figure(record)}, {_rate(workload.latency_ms)} inferences per second"
    return f"{where}{speed}{f' (disturbed: {mark(record)})' if mark(record) else ''}"


def figure(record: RunRecord) -> str:
    """The one number that a run is known by, with its unit: the median latency or decode rate."""
    workload = record.workload
    if record.simulated:
        return SIMULATED
    if isinstance(workload, TextGeneration):
        return generation.headline(workload).partition(", ")[0]
    at = f" at {workload.sizes[0].name}" if workload.sizes else ""
    return f"{duration(workload.latency_ms.median)} per inference{at}"


def _tables(record: RunRecord) -> Iterator[str]:
    workload = record.workload
    if isinstance(workload, TextGeneration):
        if not record.simulated:
            yield points_table(workload)
        return
    sizes = workload.sizes
    if not record.simulated:
        yield latencies(record)
        if workload.threads:
            yield threads_table(workload.threads)
    if sizes:
        yield (simulated_sizes if record.simulated else sizes_table)(sizes)


def _facts(record: RunRecord) -> Iterator[str]:
    workload = record.workload
    if record.simulated:
        yield wrapped("latency", [f"{SIMULATED}, not measured"])
    else:
        if isinstance(workload, TextGeneration):
            yield from generation_lines(record, workload)
        yield from (wrapped(label, [text]) for label, text in starts(workload))
        if record.runner.threads_reason:
            reason = f"{record.runner.threads}: {record.runner.threads_reason}"
            yield wrapped("threads", [reason])
        disturbed = list(disturbed_lines(record))
        if disturbed:
            yield wrapped("disturbed", disturbed)
    yield wrapped("outputs", list(_verdict(record)))
    if quality := list(quality_of(record)):
        yield wrapped("quality", quality)
    memory = list(memory_lines(record))
    if memory:
        yield wrapped("peak memory", memory)
    if not isinstance(workload, TextGeneration) and workload.sustained:
        yield wrapped("sustained", list(sustained_lines(workload.sustained)))
    yield wrapped("device", [_device(record)])
    yield wrapped("program", [_program(record)])
    yield wrapped("runs on", list(_placement(record)))
    yield wrapped("app" if record.runner.app else "runner", [_runner(record)])


def _verdict(record: RunRecord) -> Iterator[str]:
    if not record.workload.outputs_compared:
        yield f"not checked: there are no expected {_expected(record)}"
        return
    if isinstance(record.workload, TextGeneration):
        yield from verdict_lines(record.workload)
        return
    wrong = wrong_outputs(record)
    for check in uncompared_outputs(record)[:_MOST_OUTPUTS]:
        yield f"NOT COMPARED: {check.name} ({check.dtype}): {check.remark}"
    if not wrong:
        yield from _right(record)
        return
    count = f"{len(wrong)} of {len(record.workload.all_outputs)}"
    yield f"WRONG: {count} outputs are not what the model gives"
    for check in wrong[:_MOST_OUTPUTS]:
        yield f"{check.name} ({check.dtype}): {explain(check)}"
    if len(wrong) > _MOST_OUTPUTS:
        yield f"and {len(wrong) - _MOST_OUTPUTS} more"


def _expected(record: RunRecord) -> str:
    return "token ids" if isinstance(record.workload, TextGeneration) else "outputs"


def _right(record: RunRecord) -> Iterator[str]:
    outputs = record.workload.all_outputs
    right = [check for check in outputs if check.within_tolerance]
    if not right:
        return
    rest = len(right) < len(outputs)
    which = f"the other {len(right)}" if rest else f"all {len(right)}"
    singular = "the other output is" if rest else "the output is"
    what = singular if len(right) == 1 else f"{which} outputs are"
    yield f"correct: {what} within tolerance of the model's"
    closest = max(right, key=strain)
    named = f"{closest.name}, which is nearest to its limits: " if len(right) > 1 else ""
    yield named + explain(closest)


def _device(record: RunRecord) -> str:
    facts, before, after = record.device.facts, record.device.before, record.device.after
    named = (facts.manufacturer, facts.model) if facts.manufacturer else (facts.model,)
    parts = [" ".join(name for name in named if name), facts.soc, facts.os]
    parts += [count(facts.cpu_count, "CPU") if facts.cpu_count else None]
    parts += [size(facts.memory_bytes) if facts.memory_bytes else None]
    if before.battery_celsius is not None:
        end = "" if after.battery_celsius is None else f" to {after.battery_celsius:.0f}"
        parts.append(f"battery {before.battery_celsius:.0f}{end} °C")
    if after.thermal_status:
        parts.append(f"thermal status {after.thermal_status}")
    return ", ".join(part for part in parts if part) or facts.kind


def _program(record: RunRecord) -> str:
    program = record.program
    parts = [program.source, program.backend]
    if program.quantization not in (None, "none"):
        parts.append(program.quantization)
    if program.method != FORWARD and not isinstance(record.workload, TextGeneration):
        parts.append(f"method {program.method}")
    parts.append(size(program.size_bytes))
    return ", ".join(part for part in parts if part)


def _placement(record: RunRecord) -> Iterator[str]:
    program = record.program
    yield from where_it_runs(program.delegates, program.operator_calls)
    outside = None if isinstance(record.workload, TextGeneration) else record.workload.outside
    if outside:
        yield from filter(None, [outside_text(outside, is_delegated=bool(program.delegates))])
        return
    called = [operator for operator in program.operator_calls if operator.calls]
    if called:
        yield _operators(called)


def _operators(operators: Sequence[Operator]) -> str:
    shown = [f"{o.calls} x {o.name}" for o in operators[:_MOST_OPERATORS]]
    more = len(operators) - len(shown)
    return ", ".join(shown) + (f" and {count(more, 'more operator')}" if more else "")


def _runner(record: RunRecord) -> str:
    if app := record.runner.app:
        built = "" if app.build == "given" else f", built by {app.build}"
        release = f" ({', '.join(app.artifacts)})" if app.artifacts else ""
        return (
            f"app {app.id}, {size(record.runner.size_bytes)}{built}; ExecuTorch "
            f"{record.runner.executorch_version}{release}"
        )
    kind = "portable runner" if record.runner.portable else "runner"
    origin = ""
    if record.runner.provider == Provider.SOURCE:
        origin = f" built from source, {size(record.runner.size_bytes)}"
    return (
        f"{kind} for {record.runner.target}, ExecuTorch {record.runner.executorch_version}{origin}"
    )


def _files(run: StoredRun) -> str:
    others = [path for name, path in run.record.files.items() if name != "record"]
    record_line = f"  {'files':<{LABEL}} {run.record_path}"
    return record_line + "\n" + wrapped("", [f"beside it: {', '.join(others)}"])


def _rate(latency: Latency) -> str:
    if latency.median <= 0:
        return "countless"
    rate = 1000 / latency.median
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def threads_table(curve: Sequence[ThreadsRecord]) -> str:
    """The times with each number of threads, in the order of the recipe.

    The speed-up is over the smallest number, the spread that between starts.
    """
    fastest = min(curve, key=lambda each: (each.latency_ms.median, each.threads))
    fewest_ms = min(curve, key=lambda each: each.threads).latency_ms.median
    best_ms = fastest.latency_ms.median
    unit = unit_for(best_ms)
    numbers = ("threads", f"median {unit.name}", "spread", f"first {unit.name}", "speed-up")
    rows = [
        (
            each.threads,
            unit.number(each.latency_ms.median, best_ms),
            between(each.spread),
            unit.number(each.first_inference_ms, best_ms),
            _times(fewest_ms, each.latency_ms.median),
            "fastest" if each is fastest else "",
        )
        for each in curve
    ]
    return table((*numbers, ""), rows, right=numbers)


def _times(before_ms: float, now_ms: float) -> str | None:
    return f"{before_ms / now_ms:.2f} x" if now_ms > 0 else None


_LONGEST_TEXT = 400


def points_table(workload: TextGeneration) -> str:
    """A line for each point, in the recipe's order."""
    return table(COLUMNS, [point_cells(point) for point in workload.points], right=COLUMNS)


def generation_lines(record: RunRecord, workload: TextGeneration) -> Iterator[str]:
    """Lines behind labels: the text, what the numbers are of, and what they mean."""
    text = told_text(workload)
    if text is not None:
        end = "" if workload.first.stopped else " ..."
        yield wrapped("text", [cut(text, _LONGEST_TEXT) + end])
    starts = count(len(workload.runs), "start")
    yield wrapped(
        "medians",
        [
            f"over {texts(workload.points)} generations of each line in {starts}, "
            f"{count(record.runner.threads, 'thread')}; load {duration(record.load_ms)}, first "
            f"token of a new process after {duration(workload.first_ttft_ms)}"
        ],
    )
    if workload.huge_page_bytes:
        yield wrapped("huge pages", [f"{size(workload.huge_page_bytes)} of weights and cache"])
    if workload.methods:
        yield wrapped(
            "delegates", [f"time outside of them: {outside(workload)}; etdeploy profile shows what"]
        )
    for name, meaning in DEFINITIONS.items():
        yield wrapped(name, [meaning])


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
