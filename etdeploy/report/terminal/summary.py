"""A run record as the text that is printed at the end of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from etdeploy.bench.outputs.verdict import explain, strain, uncompared_outputs, wrong_outputs
from etdeploy.bench.records.generation import TextGeneration
from etdeploy.bench.records.latency import Latency
from etdeploy.bench.records.record import RunRecord
from etdeploy.bench.records.stored import StoredRun
from etdeploy.bench.units import duration
from etdeploy.core.console import count, size
from etdeploy.plan.model import Provider
from etdeploy.program.delegation import where_it_runs
from etdeploy.program.folder import FORWARD
from etdeploy.program.model import Operator
from etdeploy.report import generation
from etdeploy.report.disturbed import disturbed_lines, mark
from etdeploy.report.outside import outside_text
from etdeploy.report.terminal.generation import generation_lines, points_table
from etdeploy.report.terminal.latencies import latencies, starts
from etdeploy.report.terminal.layout import LABEL, indented, wrapped
from etdeploy.report.terminal.resources import memory_lines, sustained_lines
from etdeploy.report.terminal.sizes import SIMULATED, simulated_sizes, sizes_table
from etdeploy.report.terminal.threads import threads_table
from etdeploy.report.texts import quality_of, verdict_lines

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
