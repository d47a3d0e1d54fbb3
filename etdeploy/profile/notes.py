"""What a reader of a profile has to know: what is missing in it, and what its times are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from etdeploy.bench.records.record import RunRecord
from etdeploy.profile.calls import Call, inference_ms
from etdeploy.profile.protocol import Trace

# By which part a tracer may lengthen an inference before that is worth a sentence.
LONGER = 1.2


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
    traced_ms, untraced_ms = inference_ms(trace), record.inference.latency_ms.median
    if untraced_ms and traced_ms > LONGER * untraced_ms:
        yield (
            f"An inference takes {traced_ms / untraced_ms - 1:.0%} longer with the tracer than "
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
    if record.inference.sizes:
        yield f"The profile pass ran at the size {record.inference.sizes[0].name}."


def _delegates(calls: Sequence[Call], inside: bool) -> set[str]:
    return {call.delegate for call in calls if call.delegate and bool(call.depth) == inside}
