"""One traced inference in time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from etdeploy.profile.calls import Call
from etdeploy.profile.model import Span
from etdeploy.profile.protocol import TraceEvent


def spans_of(calls: Iterable[Call], executions: Mapping[int, TraceEvent]) -> tuple[Span, ...]:
    """The inference with the median time, so that neither a first nor a disturbed one is shown.

    Args:
        calls: All of the trace.
        executions: The inferences as a whole, by the number of their block.
    """
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


def _span(call: Call, index: int, began_ns: float) -> Span:
    start_ms = (call.event.starts_ns[index] - began_ns) / 1e6
    return Span(
        name=call.name,
        start_ms=None if call.foreign else max(0.0, start_ms),
        duration_ms=call.total_ms if call.foreign else call.event.durations_ms[index],
        depth=call.depth,
        module=call.modules[-1][0] if call.modules else "",
        delegate=call.delegate,
    )
