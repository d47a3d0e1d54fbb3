"""The profile of a run."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from etdeploy.backends.registry import backend_of, find_backend
from etdeploy.backends.schemes import OTHER_BACKEND
from etdeploy.bench.records.find import measure_again
from etdeploy.bench.records.generation import MethodTrace, TextGeneration
from etdeploy.bench.records.record import RunRecord
from etdeploy.bench.records.stored import StoredRun
from etdeploy.cache.folder import CacheKind
from etdeploy.cache.workspace import Workspace
from etdeploy.core.commands import pip_command, quoted
from etdeploy.core.errors import ExportError, RunError, UsageError
from etdeploy.core.files.basic import write_atomic
from etdeploy.core.hashing import digest_json, sha256_bytes
from etdeploy.core.processes import process
from etdeploy.core.values import Progress, silent
from etdeploy.export.needs import installed_version
from etdeploy.profile.calls import (
    COPY,
    INDEX_PUT,
    MOVING,
    REST,
    RUNTIME,
    VIEWS,
    Chain,
    Names,
    ProfiledCall,
    Reasons,
    calls_of,
    executions,
    inference_ms,
    inferences,
    kind_of,
    outside_delegates,
    shares_of,
)
from etdeploy.profile.model import ModuleTime, OperatorTime, Profile, Span, TextProfile
from etdeploy.profile.nesting import DELEGATE_CALL, KERNEL
from etdeploy.profile.protocol import (
    FAILURE_FILE,
    REQUEST_FILE,
    Trace,
    TraceEvent,
    TraceFailure,
    TraceRequest,
    TraceRequests,
    trace_file,
)
from etdeploy.program.model import Program


def profile_of(run: StoredRun, workspace: Workspace, progress: Progress = silent) -> Profile:
    """Where the time of a run's inferences goes; of text, that of the method that stands for it.

    Raises:
        EtdeployError: As for `profiles_of`.
    """
    found = profiles_of(run, workspace, progress)
    return found.methods[found.method]


def profiles_of(run: StoredRun, workspace: Workspace, progress: Progress = silent) -> TextProfile:
    """Where the time of a run goes, for each method that was traced.

    The traces are read by a child process that imports ExecuTorch, in some seconds, and kept in the
    cache: the next time it takes milliseconds.

    Args:
        run: The run, with its files.
        workspace: The cache.
        progress: Called while the trace is read.

    Raises:
        UsageError: The run has no trace, or one of its files is damaged or another run's.
        ExportError: ExecuTorch's Inspector is not installed.
        RunError: The Inspector crashed.
        Interrupted: The run was asked to stop.
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
    """Those of the method that ran; a record of version 1 knows only the program's."""
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


_HERE = Path(__file__).resolve().parent
_WORKER = (sys.executable, str(_HERE / "worker" / "start.py"))
# What decides what a trace means; etdeploy's own code, as with programs and plans.
_CODE = ("protocol.py", "worker/inspect.py", "worker/record.py")


def read_traces(
    run: StoredRun, workspace: Workspace, progress: Progress = silent
) -> dict[str, Trace]:
    """The traces of a run's profile pass, by method."""
    requests = requests_of(run)
    entry = workspace.entry(CacheKind.TRACES, _key(requests, run))
    if not entry.is_sound():
        _require_inspector()
        one = len(requests) == 1
        progress(f"reading the {'trace' if one else 'traces'} with ExecuTorch's Inspector")
        workspace.obtain(entry, lambda folder: _inspect(requests, run, folder), progress)
    return {
        each.method: Trace.load(entry.path / trace_file(number))
        for number, each in enumerate(requests)
    }


def _key(requests: Sequence[TraceRequest], run: StoredRun) -> str:
    etrecord = requests[0].etrecord
    return digest_json(
        {
            "etdumps": [
                [each.method, sha256_bytes(Path(each.etdump).read_bytes())] for each in requests
            ],
            "etrecord": checksums(Path(etrecord), run) if etrecord else None,
            "executorch": installed_version("executorch"),
            "code": [sha256_bytes((_HERE / name).read_bytes()) for name in _CODE],
        }
    )


def _require_inspector() -> None:
    missing = [name for name in ("torch", "executorch") if installed_version(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise ExportError(
            "reading a trace needs ExecuTorch's Inspector; "
            f"{' and '.join(missing)} {verb} not installed for {sys.executable}",
            remedy=pip_command("etdeploy[export]"),
        )


def _inspect(requests: Sequence[TraceRequest], run: StoredRun, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        TraceRequests(requests=tuple(requests)).save(work / REQUEST_FILE)
        outcome = process.run(
            process.Request(argv=(*_WORKER, str(work)), env={"PYTHONFAULTHANDLER": "1"})
        )
        if not outcome.ok:
            failure = TraceFailure.load_or_none(work / FAILURE_FILE)
            raise _failure(failure, requests, run) if failure else _crash(outcome)
        for number in range(len(requests)):
            write_atomic(folder / trace_file(number), (work / trace_file(number)).read_bytes())


def _failure(failure: TraceFailure, requests: Sequence[TraceRequest], run: StoredRun) -> UsageError:
    is_record = failure.file in {each.etrecord for each in requests}
    remedy = without(Path(failure.file), run) if is_record else again(run)
    return UsageError(failure.message, place=failure.file, remedy=remedy)


def _crash(outcome: process.Outcome) -> RunError:
    end = outcome.signal_name or f"exit code {outcome.exit_code}"
    last = [line for line in (outcome.stderr or outcome.stdout).splitlines() if line.strip()]
    return RunError(
        f"ExecuTorch's Inspector ended early ({end})" + (f": {last[-1].strip()}" if last else ""),
        place=outcome.argv[-1].rstrip(os.sep),
        remedy="Try it again; if memory ran out, close other programs first.",
    )


# A FlatBuffer with its size before it; the identifier follows the root's offset.
_IDENTIFIER, _PREFIX_BYTES = b"ED00", 4


def requests_of(run: StoredRun) -> tuple[TraceRequest, ...]:
    """What the worker is to read: the trace of each method."""
    if run.record.simulated:
        raise UsageError(
            "a simulated run has no profile: its times are the simulator's",
            place=str(run.folder),
            remedy="Run the recipe on a device.",
        )
    traces = run.record.traces
    if not traces:
        raise UsageError(
            "this run has no profile pass",
            place=str(run.folder),
            remedy=f"{again(run)} --set benchmark.profile=true",
        )
    etrecord = _present(run, "etrecord")
    return tuple(
        TraceRequest(
            etdump=str(_whole(run, role)),
            etrecord=str(etrecord) if etrecord else None,
            method=method,
        )
        for method, role in traces.items()
    )


def again(run: StoredRun) -> str:
    """The sentence that says how to measure again."""
    return f"Measure again: {measure_again(run)}"


def without(etrecord: Path, run: StoredRun) -> str:
    """What to do about an ETRecord that cannot be read."""
    away = f"mv {quoted(etrecord)} {quoted(f'{etrecord}.bad')}"
    return f"Move it away to see operators without modules: {away}\n{again(run)}"


def checksums(etrecord: Path, run: StoredRun) -> list[list[object]]:
    """The checksums that the archive itself has: to read it all would take seconds for weights."""
    try:
        with ZipFile(etrecord) as archive:
            return [[each.filename, each.file_size, each.CRC] for each in archive.infolist()]
    except (BadZipFile, OSError) as error:
        raise UsageError(
            f"the ETRecord is damaged: {error}",
            place=str(etrecord),
            remedy=without(etrecord, run),
        ) from error


def _present(run: StoredRun, role: str) -> Path | None:
    try:
        path = run.path(role)
    except ValueError as error:
        raise UsageError(
            f"the file {run.record.files[role]} is a link out of the run's folder",
            place=str(run.folder),
            remedy="Copy the file to its place.",
        ) from error
    return path if path and path.is_file() else None


def _whole(run: StoredRun, role: str) -> Path:
    """A trace's file, complete."""
    path = _present(run, role)
    if path is None:
        raise UsageError(
            f"the trace {run.record.files[role]} is not in the run's folder",
            place=str(run.folder),
            remedy=f"Copy the whole folder, not the record alone. {again(run)}",
        )
    data = path.read_bytes()
    told = _PREFIX_BYTES + int.from_bytes(data[:_PREFIX_BYTES], "little")
    if len(data) < 2 * _PREFIX_BYTES + len(_IDENTIFIER) or len(data) < told:
        size = "is empty" if not data else f"is truncated: it has {len(data)} of {told} bytes"
        raise UsageError(f"the trace {size}", place=str(path), remedy=again(run))
    start = 2 * _PREFIX_BYTES
    if data[start : start + len(_IDENTIFIER)] != _IDENTIFIER:
        raise UsageError("this is not an ETDump", place=str(path), remedy=again(run))
    return path


# Below this share something is not worth a sentence of its own.
_MUCH = 0.25
# The runtime's own work for each call; above it, calls are what is expensive.
_MANY_CALLS = 10
_MOVED = {
    COPY: "copies into the model's state",
    INDEX_PUT: "writing into parts of tensors (index_put)",
    VIEWS: "copies that only change the layout of tensors",
}


@dataclass(frozen=True)
class Circumstances:
    """What remedies depend on.

    Attributes:
        backend: What the program was exported for; None for a finished one.
        threads: Of the runner.
        cores: Of the device; None where it is not known.
        threaded: Whether one of the backends uses the runner's threads.
        whole: What was traced, as words in a sentence.
        tracer: Share of the traced inference, from 0 to 1, that it takes longer than without the
            tracer. Most of that is between operators, and no cost of the model's.
        schemes: Schemes with fewer bits than the program has that its backend can run.
    """

    backend: str | None
    threads: int
    cores: int | None
    threaded: bool
    schemes: tuple[str, ...]
    tracer: float = 0.0
    whole: str = "an inference"


@dataclass(frozen=True)
class _Group:
    """Operators of one name."""

    name: str
    delegate: str
    share: float
    calls: int
    places: tuple[str, ...]
    reasons: tuple[str, ...]

    @property
    def where(self) -> str:
        """`in layers.0.norm`, or `in 9 modules`."""
        known = [place for place in self.places if place]
        if not known:
            return ""
        return f" in {known[0]}" if len(known) == 1 else f" in {len(known)} modules"

    @property
    def times(self) -> str:
        return "one call" if self.calls == 1 else f"{self.calls} calls"


def bottleneck_of(
    operators: Iterable[OperatorTime], shares: Mapping[str, float], about: Circumstances
) -> str:
    """The sentence."""
    tracer = min(about.tracer, shares[RUNTIME])
    groups = _groups(operators, 1.0 - tracer)
    if not groups:
        return "The trace has no operators."
    shares = {**shares, RUNTIME: shares[RUNTIME] - tracer}
    shares = {kind: share / (1.0 - tracer) for kind, share in shares.items()}
    sentence = _sentence(groups, shares, about)
    return f"Without the tracer's own work, {sentence}" if tracer else sentence


def _sentence(groups: list[_Group], shares: Mapping[str, float], about: Circumstances) -> str:
    moved = sum(shares.get(kind, 0.0) for kind in MOVING)
    if shares[RUNTIME] >= max(_MUCH, moved, shares[REST]):
        return _runtime(shares[RUNTIME], groups, about)
    if moved >= max(_MUCH, shares[REST]):
        return _moving(moved, shares, groups, about)
    if shares[REST] >= _MUCH:
        return _kernel(shares[REST], groups, about)
    return _delegate(groups, shares, about)


def _runtime(share: float, groups: list[_Group], about: Circumstances) -> str:
    calls = sum(group.calls for group in groups)
    text = f"{_percent(share)} of {about.whole} is in no operator: the runtime calls {calls}"
    if calls < _MANY_CALLS:
        return f"{text}, and the model is small for a measurement of its parts."
    return f"{text}, and each call costs time of its own. Larger partitions have fewer calls."


def _moving(
    share: float, shares: Mapping[str, float], groups: list[_Group], about: Circumstances
) -> str:
    kind = max(MOVING, key=lambda each: shares.get(each, 0.0))
    most = next(g for g in groups if not g.delegate and kind_of(g.name) == kind)
    text = (
        f"{_percent(share)} of {about.whole} moves values without computing: mostly "
        f"{_MOVED[kind]}, {most.name} ({most.times}{most.where})"
    )
    if about.backend == "portable":
        return f"{text}. {OTHER_BACKEND}"
    if kind == VIEWS:
        return f"{text}. {_outside(most)}Keep one layout in the model's code, where that is yours."
    return (
        f"{text}. {_outside(most)}Write less of the state in each inference: a shorter cache, or "
        "an operator of your own that writes in place (export.custom_ops)."
    )


def _kernel(share: float, groups: list[_Group], about: Circumstances) -> str:
    most = next(g for g in groups if not g.delegate and kind_of(g.name) == REST)
    text = (
        f"{_percent(most.share)} of {about.whole} is {most.name} on the CPU's kernels "
        f"({most.times}{most.where}); all kernels that compute there have {_percent(share)}"
    )
    if about.backend == "portable":
        return f"{text}. {OTHER_BACKEND}"
    return f"{text}. {_outside(most)}".rstrip()


def _delegate(groups: list[_Group], shares: Mapping[str, float], about: Circumstances) -> str:
    delegates = [g for g in groups if g.delegate]
    if not delegates:
        most = groups[0]
        return f"No kind of work stands out: {most.name} has {_percent(most.share)}."
    backend = max({g.delegate for g in delegates}, key=lambda each: shares.get(each, 0.0))
    most = next(g for g in delegates if g.delegate == backend)
    text = f"{_percent(shares[backend])} of {about.whole} is in {backend}"
    calls = [g for g in delegates if g.delegate == backend and g.name.startswith(backend)]
    around = sum(g.share for g in calls)
    if around >= _MUCH and len(calls) < len([g for g in delegates if g.delegate == backend]):
        count = sum(g.calls for g in calls)
        return (
            f"{text}, {_percent(around)} around its nodes: tensors go into and out of "
            f"{count} partitions. What separates them runs on the CPU's kernels."
        )
    if not most.name.startswith(backend):
        text += f", {_percent(most.share)} in {most.name} ({most.times}{most.where})"
    return f"{text}. {_faster(about)}".rstrip()


def _faster(about: Circumstances) -> str:
    if about.threaded and about.threads == 1 and (about.cores or 1) > 1:
        return f"One of {about.cores} cores works: --set runtime.threads=auto"
    if about.schemes:
        return f"Fewer bits may make it faster: export.quantization ({', '.join(about.schemes)})."
    return ""


def _outside(group: _Group) -> str:
    """Why the backend did not take it, if the export says so."""
    return f"No backend took it: {group.reasons[0]}. " if len(group.reasons) == 1 else ""


def _groups(operators: Iterable[OperatorTime], whole: float) -> list[_Group]:
    """By name and delegate, the most expensive first; shares are of `whole` of the inference."""
    found: dict[tuple[str, str], list[OperatorTime]] = {}
    for each in operators:
        found.setdefault((each.name, each.delegate), []).append(each)
    groups = [
        _Group(
            name=name,
            delegate=delegate,
            share=sum(each.share for each in same) / whole,
            calls=sum(each.calls for each in same),
            places=tuple(dict.fromkeys(each.module for each in same)),
            reasons=tuple({each.not_delegated: 0 for each in same if each.not_delegated}),
        )
        for (name, delegate), same in found.items()
    ]
    return sorted(groups, key=lambda group: -group.share)


def _percent(share: float) -> str:
    return f"{share:.0%}"
