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
from etdeploy.profile.model import OperatorTime, Profile
from etdeploy.profile.modules import module_tree
from etdeploy.profile.notes import LONGER, profile_notes
from etdeploy.profile.protocol import Trace
from etdeploy.profile.reasons import Reasons
from etdeploy.profile.shares import shares_of
from etdeploy.profile.timeline import spans_of
from etdeploy.profile.trace import read_trace


def profile_of(run: StoredRun, workspace: Workspace, progress: Progress = silent) -> Profile:
    """Where the time of a run's inferences goes.

    The trace is read by a child process that imports ExecuTorch, in some seconds, and kept in the
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
    trace = read_trace(run, workspace, progress)
    if not executions(trace):
        raise UsageError(
            "the trace has no inference in it; it is damaged, or the profile pass was cut short",
            place=str(run.path("etdump")),
            remedy=f"Measure again: {measure_again(run)}",
        )
    require_same_program(run, trace)
    return profile_from(run.record, trace, Reasons.of(run))


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
        untraced_ms=record.inference.latency_ms.median,
        operators=operators,
        modules=module_tree(calls) if trace.graph is not None else None,
        shares=shares,
        bottleneck=bottleneck_of(operators, shares, _circumstances(record, whole_ms)),
        spans=spans_of(calls, executions(trace)),
        notes=tuple(profile_notes(trace, calls, record)),
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
    untraced_ms = record.inference.latency_ms.median
    found = [backend_of(each) for each in _backends(record)]
    return Circumstances(
        backend=record.program.backend,
        threads=record.runner.threads,
        cores=record.device.facts.cpu_count,
        threaded=any(backend and backend.threaded for backend in found),
        schemes=_schemes(record),
        tracer=1.0 - untraced_ms / traced_ms if traced_ms > LONGER * untraced_ms > 0 else 0.0,
    )


def _schemes(record: RunRecord) -> tuple[str, ...]:
    backend = find_backend(record.program.backend) if record.program.backend else None
    if backend is None or record.program.quantization != "none":
        return ()
    return tuple(each for each in backend.quantizations if each != "none")
