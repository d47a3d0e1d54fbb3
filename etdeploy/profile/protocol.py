"""What the worker that reads a trace is given, and what it gives back."""

from __future__ import annotations

from etdeploy.core.values import Value

REQUEST_FILE = "request.json"
FAILURE_FILE = "failure.json"


def trace_file(number: int) -> str:
    """What is in a trace, by its number in the request from 0 on."""
    return f"trace-{number}.json"


class TraceRequest(Value):
    """The trace of a method.

    Attributes:
        etdump: The trace, absolute.
        etrecord: The model's graph, absolute; null where there is none.
        method: The method that was traced.
    """

    etdump: str
    etrecord: str | None
    method: str


class TraceRequests(Value):
    """The traces of a run. One process reads them all, since its imports take seconds.

    Attributes:
        requests: At least one.
    """

    requests: tuple[TraceRequest, ...]


class GraphNode(Value):
    """A node of the model's graph before it was lowered.

    Attributes:
        op: Its operator without the overload: `aten::linear`.
        modules: Path and class of each module that it is in, the model itself first.
        source: `file:line` of the model's code; empty where it is not known.
    """

    op: str
    modules: tuple[tuple[str, str], ...] = ()
    source: str = ""


class TraceEvent(Value):
    """What ExecuTorch's Inspector calls an event: a call, in every inference that was traced.

    Attributes:
        name: As in the trace: `native_call_mean.out`, `DELEGATE_CALL`, or of a delegate's node.
        instruction: Number of the instruction of the program that it belongs to.
        inner: Whether a delegate reported it.
        backend: The delegate's, as the ETRecord names it; empty for a kernel.
        handles: Of the graph's nodes that it computes, in the order of execution. A node that
            became several stands there as often.
        starts_ns: One for each inference, on the device's clock.
        durations_ms: One for each inference.
    """

    name: str
    instruction: int
    inner: bool = False
    backend: str = ""
    handles: tuple[int, ...] = ()
    starts_ns: tuple[float, ...]
    durations_ms: tuple[float, ...]


class Trace(Value):
    """A trace, with the graph that it is of.

    Attributes:
        blocks: Inferences that went the same way through the program are one block of events.
        graph: The graph's nodes by debug handle; null without an ETRecord.
        loops: Whether the graph has loops: of a call in one, the Inspector keeps the last.
    """

    blocks: tuple[tuple[TraceEvent, ...], ...]
    graph: dict[int, tuple[GraphNode, ...]] | None = None
    loops: bool = False


class TraceFailure(Value):
    """Why the worker could not read the files.

    Attributes:
        file: The one that it is about.
        message: What is wrong with it.
    """

    file: str
    message: str
