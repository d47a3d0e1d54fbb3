"""What a reader of a profile has to know: what is missing in it, and what its times are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from etdeploy.bench.records.generation import MethodTrace, TextGeneration
from etdeploy.bench.records.record import RunRecord
from etdeploy.profile.calls import Call, inference_ms
from etdeploy.profile.protocol import Trace

# By which part a tracer may lengthen an inference before that is worth a sentence.
LONGER = 1.2


def method_trace(record: RunRecord) -> MethodTrace | None:
    """Which calls were traced, of a program that generates text."""
    if not isinstance(record.workload, TextGeneration):
        return None
    return next((m for m in record.workload.methods if m.method == record.program.method), None)


def untraced_ms(record: RunRecord) -> float | None:
    """Median time of what was traced in the timing pass; None where that has none of the same.

    Args:
        record: Whose program's method is the one that was traced.
    """
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


def profile_notes(trace: Trace, calls: Sequence[Call], record: RunRecord) -> Iterator[str]:
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


def _delegates(calls: Sequence[Call], inside: bool) -> set[str]:
    return {call.delegate for call in calls if call.delegate and bool(call.depth) == inside}
