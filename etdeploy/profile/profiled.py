"""The profile of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from etdeploy.backends.registry import backend_of, find_backend
from etdeploy.bench.records.generation import MethodTrace, TextGeneration
from etdeploy.bench.records.record import RunRecord
from etdeploy.bench.records.stored import StoredRun, measure_again
from etdeploy.cache.workspace import Workspace
from etdeploy.core.commands import quoted
from etdeploy.core.errors import UsageError
from etdeploy.core.values import Progress, silent
from etdeploy.profile.bottleneck import Circumstances, bottleneck_of
from etdeploy.profile.calls import (
    DELEGATE_CALL,
    KERNEL,
    Chain,
    Names,
    ProfiledCall,
    Reasons,
    calls_of,
    executions,
    inference_ms,
    inferences,
    outside_delegates,
    shares_of,
)
from etdeploy.profile.model import ModuleTime, OperatorTime, Profile, Span, TextProfile
from etdeploy.profile.protocol import Trace, TraceEvent
from etdeploy.profile.traces import read_traces
from etdeploy.program.model import Program


def profile_of(run: StoredRun, workspace: Workspace, progress: Progress = silent) -> Profile:
    """The profile of a run's inferences, or of the method that represents a generated text."""
    found = profiles_of(run, workspace, progress)
    return found.methods[found.method]


def profiles_of(run: StoredRun, workspace: Workspace, progress: Progress = silent) -> TextProfile:
    """The profile of each traced method of a run.

    A child process with ExecuTorch reads the traces in some seconds; then the cache has them.

    Raises:
        UsageError: The run has no trace, or a file is damaged or belongs to another run.
        ExportError: ExecuTorch's Inspector is not installed.
        RunError: The Inspector crashed.
    """
    traces = read_traces(run, workspace, progress)
    own = run.record.program.method
    order = sorted(traces, key=lambda method: method != own)
    profiles = {method: _profile(run, method, traces[method]) for method in order}
    return TextProfile(run_id=run.record.run_id, method=order[0], methods=profiles)


def _profile(run: StoredRun, method: str, trace: Trace) -> Profile:
    if not executions(trace):
        raise UsageError(
            "the trace has no inference in it; it is damaged, or the profile pass was cut short",
            place=str(run.path(run.record.traces[method])),
            remedy=f"Measure again: {measure_again(run)}",
        )
    require_same_program(run, trace)
    return profile_from(_about(run, method), trace, Reasons.of(run, method))


def _about(run: StoredRun, method: str) -> RunRecord:
    """The run's record, its program's method being this one."""
    record, path = run.record, run.path("program_info")
    if method == record.program.method:
        return record
    program = Program.load_or_none(path) if path else None
    found = next((m for m in program.methods if m.name == method), None) if program else None
    known = {
        "method": method,
        "operator_calls": found.operators if found else (),
        "delegates": found.delegates if found else (),
    }
    changed = record.program.model_copy(update=known)
    return record.model_copy(update={"program": changed})


def profile_from(record: RunRecord, trace: Trace, reasons: Reasons) -> Profile:
    """The profile of a trace with at least one inference."""
    program = record.program
    names = Names(tuple(each.name for each in program.operator_calls), _backends(record))
    calls, whole_ms = calls_of(trace, names), inference_ms(trace)
    operators = _operators(calls, whole_ms, inferences(trace), reasons)
    shares = shares_of(calls, whole_ms)
    return Profile(
        run_id=record.run_id,
        inferences=inferences(trace),
        inference_ms=whole_ms,
        untraced_ms=untraced_ms(record),
        operators=operators,
        modules=module_tree(calls) if trace.graph is not None else None,
        shares=shares,
        outside_delegates=outside_delegates(calls, whole_ms),
        bottleneck=bottleneck_of(operators, shares, _circumstances(record, whole_ms)),
        spans=spans_of(calls, executions(trace)),
        notes=tuple(profile_notes(trace, calls, record)),
        method=record.program.method,
        text=method_trace(record),
    )


def _backends(record: RunRecord) -> tuple[str, ...]:
    """The backends of the measured method, or of the program for another method."""
    own = {each.backend_id for each in record.program.delegates}
    return tuple(sorted(own or record.program.backends))


def _operators(
    calls: Iterable[ProfiledCall], whole_ms: float, count: int, reasons: Reasons
) -> tuple[OperatorTime, ...]:
    """Calls of one name at one place together, the most expensive first."""
    found: dict[tuple[str, str, str, str], list[ProfiledCall]] = {}
    for call in calls:
        module = call.modules[-1][0] if call.modules else ""
        found.setdefault((call.name, module, call.source, call.delegate), []).append(call)
    rows = [
        OperatorTime(
            name=name,
            calls=max(1, round(sum(len(each.event.durations_ms) for each in same) / count)),
            total_ms=sum(each.total_ms for each in same),
            self_ms=(self_ms := sum(each.self_ms for each in same)),
            share=self_ms / whole_ms if whole_ms else 0.0,
            module=module,
            source=source,
            delegate=delegate,
            not_delegated=reasons.for_call(same[0]),
        )
        for (name, module, source, delegate), same in found.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.self_ms))


def _circumstances(record: RunRecord, traced_ms: float) -> Circumstances:
    without_ms = untraced_ms(record) or traced_ms
    found = [backend_of(each) for each in _backends(record)]
    return Circumstances(
        backend=record.program.backend,
        threads=record.runner.threads,
        cores=record.device.facts.cpu_count,
        threaded=any(backend and backend.threaded for backend in found),
        schemes=_schemes(record),
        tracer=1.0 - without_ms / traced_ms if traced_ms > LONGER * without_ms > 0 else 0.0,
        whole=f"a call of {record.program.method}" if method_trace(record) else "an inference",
    )


def _schemes(record: RunRecord) -> tuple[str, ...]:
    backend = find_backend(record.program.backend) if record.program.backend else None
    if backend is None or record.program.quantization != "none":
        return ()
    return tuple(each for each in backend.quantizations if each != "none")


def spans_of(
    calls: Iterable[ProfiledCall], executions: Mapping[int, TraceEvent]
) -> tuple[Span, ...]:
    """The inference with the median time, so that neither a first nor a disturbed one is shown."""
    times = sorted(
        (time_ms, block, index)
        for block, event in executions.items()
        for index, time_ms in enumerate(event.durations_ms)
    )
    _, block, index = times[len(times) // 2]
    began_ns = executions[block].starts_ns[index]
    spans = [
        _span(call, index, began_ns)
        for call in calls
        if call.block == block and index < len(call.event.durations_ms)
    ]
    # Parts come after their whole, and one without a start after what it is a part of.
    return tuple(spans)


def _span(call: ProfiledCall, index: int, began_ns: float) -> Span:
    start_ms = (call.event.starts_ns[index] - began_ns) / 1e6
    return Span(
        name=call.name,
        start_ms=None if call.foreign else max(0.0, start_ms),
        duration_ms=call.total_ms if call.foreign else call.event.durations_ms[index],
        depth=call.depth,
        module=call.modules[-1][0] if call.modules else "",
        delegate=call.delegate,
    )


def require_same_program(run: StoredRun, trace: Trace) -> None:
    """Refuses to name a trace's operators after another program's modules."""
    found = list(_agreements(trace))
    if found and sum(found) * 2 < len(found):
        etrecord = str(run.path("etrecord"))
        raise UsageError(
            f"the ETRecord is of another program than the trace: {len(found) - sum(found)} of "
            f"{len(found)} calls do not agree with it",
            place=etrecord,
            remedy="Put the program's own ETRecord there, or move this one away to see operators "
            f"without modules: mv {quoted(etrecord)} {quoted(etrecord + '.other')}",
        )


def _agreements(trace: Trace) -> Iterator[bool]:
    """For each call whether the graph has such an operator, or such a delegate, at its place.

    After the export ExecuTorch replaces some operators, so a few calls never agree. Those that it
    adds then, such as what writes a cache in place, name no operator of the graph and say nothing.
    """
    if trace.graph is None:
        return
    for event in (event for block in trace.blocks for event in block):
        if event.name == DELEGATE_CALL:
            yield bool(event.backend)
        elif event.name.startswith(KERNEL) and event.handles:
            base = event.name.removeprefix(KERNEL).partition(".")[0]
            nodes = [node for each in event.handles for node in trace.graph.get(each, ())]
            yield not event.backend and any(n.op.partition("::")[2] == base for n in nodes)


@dataclass
class _Growing:
    path: str
    kind: str
    self_ms: float = 0.0
    delegates: dict[str, float] = field(default_factory=dict)
    children: dict[str, _Growing] = field(default_factory=dict)

    def finished(self) -> ModuleTime:
        children = [child.finished() for child in self.children.values()]
        delegates = dict(self.delegates)
        for child in children:
            for name, time_ms in child.delegates.items():
                delegates[name] = delegates.get(name, 0.0) + time_ms
        return ModuleTime(
            path=self.path,
            kind=self.kind,
            total_ms=self.self_ms + sum(child.total_ms for child in children),
            self_ms=self.self_ms,
            delegates=delegates,
            children=tuple(children),
        )


def module_tree(calls: Iterable[ProfiledCall]) -> ModuleTime:
    """The modules in the order in which they are called first.

    The time of a partition whose nodes have no times of their own belongs to the module that all
    of them are in.
    """
    root = _Growing("", "")
    for call in calls:
        place = _place(root, call.modules)
        place.self_ms += call.self_ms
        place.delegates[call.delegate] = place.delegates.get(call.delegate, 0.0) + call.self_ms
    return root.finished()


def _place(root: _Growing, modules: Chain) -> _Growing:
    place = root
    for path, kind in modules:
        if not path:
            root.kind = root.kind or kind
        else:
            place = place.children.setdefault(path, _Growing(path, kind))
    return place


# By which part a tracer may lengthen an inference before that is worth a sentence.
LONGER = 1.2


def method_trace(record: RunRecord) -> MethodTrace | None:
    """Which calls were traced, of a program that generates text."""
    if not isinstance(record.workload, TextGeneration):
        return None
    return next((m for m in record.workload.methods if m.method == record.program.method), None)


def untraced_ms(record: RunRecord) -> float | None:
    """Median time of what was traced in the timing pass; None where that has none of the same."""
    if not isinstance(record.workload, TextGeneration):
        return record.workload.latency_ms.median
    point, traced = record.workload.first, method_trace(record)
    if traced is None:
        return None
    begin, last = point.depth + point.prompt_tokens, traced.position + traced.tokens
    if (traced.position, last) == (point.depth, begin):
        return point.first_token_ms.median / traced.calls
    single = traced.calls == traced.tokens and traced.position >= begin
    within = last <= begin + point.new_tokens - 1
    return point.token_ms.median if single and within and point.token_ms else None


def profile_notes(trace: Trace, calls: Sequence[ProfiledCall], record: RunRecord) -> Iterator[str]:
    """Sentences about a trace and the calls in it."""
    yield from _about_the_trace(trace, record)
    for backend in sorted(_delegates(calls, inside=False) - _delegates(calls, inside=True)):
        yield f"{backend} reports no times of its own nodes: its calls are whole partitions."
    for backend in sorted({call.delegate for call in calls if call.foreign}):
        yield (
            f"Nodes of {backend} come with durations in its own clock: their times are parts of "
            "its calls, without starts."
        )
    if trace.graph is not None and any(c.depth and not c.event.handles for c in calls):
        yield (
            "Nodes in a delegate that names no debug handles are joined to modules by their order "
            "of execution; those without a counterpart belong to what their whole partition is in."
        )


def _about_the_trace(trace: Trace, record: RunRecord) -> Iterator[str]:
    traced_ms, without_ms = inference_ms(trace), untraced_ms(record)
    is_text = isinstance(record.workload, TextGeneration)
    if without_ms and traced_ms > LONGER * without_ms:
        what = f"A call of {record.program.method}" if is_text else "An inference"
        yield (
            f"{what} takes {traced_ms / without_ms - 1:.0%} longer with the tracer than "
            "without. That is the tracer's own work, most of it between operators, so the share of "
            "the runtime is too high."
        )
    if emulator := record.device.facts.emulator:
        yield f"Traced under {emulator}: neither times nor shares are those of a real processor."
    yield from (disturbance.text for disturbance in record.disturbances)
    if trace.graph is None:
        yield "There is no ETRecord beside the trace, so modules and lines of code are not known."
    if trace.loops:
        yield (
            "The model has loops: of an operator in one, the Inspector keeps the last call of an "
            "inference, so the time of the others counts as the runtime's."
        )
    sizes = () if isinstance(record.workload, TextGeneration) else record.workload.sizes
    if sizes:
        yield f"The profile pass ran at the size {sizes[0].name}."


def _delegates(calls: Sequence[ProfiledCall], inside: bool) -> set[str]:
    return {call.delegate for call in calls if call.delegate and bool(call.depth) == inside}
