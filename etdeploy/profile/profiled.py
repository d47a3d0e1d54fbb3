"""The profile of a run."""

from __future__ import annotations

from collections.abc import Iterable

from etdeploy.backends.registry import backend_of, find_backend
from etdeploy.bench.records.again import measure_again
from etdeploy.bench.records.record import RunRecord
from etdeploy.bench.records.stored import StoredRun
from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import UsageError
from etdeploy.core.progress import Progress, silent
from etdeploy.profile.bottleneck import Circumstances, bottleneck_of
from etdeploy.profile.calls import (
    Call,
    Names,
    calls_of,
    executions,
    inference_ms,
    inferences,
)
from etdeploy.profile.matching import require_same_program
from etdeploy.profile.model import OperatorTime, Profile, TextProfile
from etdeploy.profile.modules import module_tree
from etdeploy.profile.notes import LONGER, method_trace, profile_notes, untraced_ms
from etdeploy.profile.protocol import Trace
from etdeploy.profile.reasons import Reasons
from etdeploy.profile.shares import outside_delegates, shares_of
from etdeploy.profile.timeline import spans_of
from etdeploy.profile.trace import read_traces
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
    calls: Iterable[Call], whole_ms: float, count: int, reasons: Reasons
) -> tuple[OperatorTime, ...]:
    """Calls of one name at one place together, the most expensive first."""
    found: dict[tuple[str, str, str, str], list[Call]] = {}
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
