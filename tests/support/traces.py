"""Traces written by hand, in the form that the worker gives."""

from __future__ import annotations

from collections.abc import Sequence

from etdeploy.profile.calls import DELEGATE_CALL, EXECUTE
from etdeploy.profile.protocol import GraphNode, Trace, TraceEvent

MODEL = ("", "model.Net")


def make_event(name: str, start_ms: float, duration_ms: float, **changes: object) -> TraceEvent:
    """An event of one inference; times are since the inference began at 1 s."""
    values = {
        "name": name,
        "instruction": 0,
        "starts_ns": (1e9 + start_ms * 1e6,),
        "durations_ms": (duration_ms,),
    }
    return TraceEvent.model_validate(values | changes)


def make_node(op: str, *path: str, source: str = "") -> GraphNode:
    """A node in the modules of a path: `layers`, `layers.0`."""
    chain = (MODEL, *((each, f"torch.nn.{each.rpartition('.')[2]}") for each in path))
    return GraphNode(op=op, modules=chain, source=source)


def repeated(event: TraceEvent, durations_ms: Sequence[float]) -> TraceEvent:
    """The event in as many inferences, ten milliseconds apart."""
    starts = tuple(event.starts_ns[0] + i * 1e7 for i in range(len(durations_ms)))
    return event.model_copy(update={"starts_ns": starts, "durations_ms": tuple(durations_ms)})


# An inference of 10 ms: 6 ms in a delegate with two nodes, 1 ms and 2 ms in kernels, 1 ms in none.
TRACE = Trace(
    blocks=(
        (
            make_event("Gemm #1", 0.5, 4.0, inner=True, instruction=0, backend="XnnpackBackend"),
            make_event("Clamp #1", 4.5, 1.0, inner=True, instruction=0, backend="XnnpackBackend"),
            make_event(
                DELEGATE_CALL, 0.0, 6.0, instruction=0, backend="XnnpackBackend", handles=(1, 2)
            ),
            make_event("native_call_mean.out", 6.5, 1.0, instruction=1, handles=(3,)),
            make_event("native_call_permute_copy.out", 8.0, 2.0, instruction=2, handles=(4,)),
            make_event(EXECUTE, 0.0, 10.0),
        ),
    ),
    graph={
        1: (make_node("aten::linear", "layers", "layers.0", source="net.py:7"),),
        2: (make_node("aten::relu", "layers", "layers.1", source="net.py:8"),),
        3: (make_node("aten::mean", "norm", source="net.py:9"),),
        4: (make_node("aten::permute_copy"), make_node("aten::addmm")),
    },
)
