"""Every call of an inference with its time, its place in the model and who computed it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from pydantic import ValidationError

from etdeploy.backends.registry import backend_of
from etdeploy.bench.records.stored import StoredRun
from etdeploy.profile.protocol import GraphNode, Trace, TraceEvent
from etdeploy.program.folder import Provenance
from etdeploy.runner.etdump import outside_share

EXECUTE = "Method::execute"
DELEGATE_CALL = "DELEGATE_CALL"
KERNEL = "native_call_"
# Path and class of each module that a call is in, the model itself first.
Chain = tuple[tuple[str, str], ...]
# The name of a delegate with an unknown backend.
UNKNOWN = "a delegate"
_RUNNING_NUMBER = re.compile(r" #\d+$")
_NAMED = 3


@dataclass(frozen=True)
class ProfiledCall:
    """A call of a kernel, of a delegate, or a node in a delegate.

    Attributes:
        name: The kernel's full name, `aten::mean.out`; the node's; or the partition's operators.
        total_ms: In one inference, the mean over those traced; `self_ms` without inner calls.
        source: `file:line` of the model's code; empty if unknown, as `modules`.
        delegate: Name of the backend; empty for a kernel.
        depth: 0 for calls of the runtime.
        foreign: Whether its clock is not the runtime's, so that its start is unknown.
        block: Number of its block in the trace.
    """

    name: str
    total_ms: float
    self_ms: float
    modules: Chain
    source: str
    delegate: str
    depth: int
    event: TraceEvent
    foreign: bool
    block: int


@dataclass(frozen=True)
class Names:
    """Full names of the kernels, and names of the backends, that a program calls."""

    operators: tuple[str, ...]
    backends: tuple[str, ...]

    def kernel(self, short: str, namespace: str) -> str:
        """`aten::mean.out` for the trace's `mean.out`."""
        fitting = [name for name in self.operators if name.partition("::")[2] == short]
        own = f"{namespace}::{short}"
        return fitting[0] if len(fitting) == 1 else own if own in fitting or namespace else short


def inferences(trace: Trace) -> int:
    """How many inferences were traced."""
    return sum(len(e.durations_ms) for _, e in _executions(trace))


def inference_ms(trace: Trace) -> float:
    """The mean time of an inference while it was traced."""
    return sum(sum(e.durations_ms) for _, e in _executions(trace)) / inferences(trace)


def executions(trace: Trace) -> dict[int, TraceEvent]:
    """The event that is an inference as a whole, by the number of its block."""
    return dict(_executions(trace))


def _executions(trace: Trace) -> Iterator[tuple[int, TraceEvent]]:
    for number, block in enumerate(trace.blocks):
        yield from ((number, event) for event in block if event.name == EXECUTE)


def calls_of(trace: Trace, names: Names) -> tuple[ProfiledCall, ...]:
    """All calls of the traced inferences, those of a block in order, parts after their whole."""
    graph, count = trace.graph or {}, inferences(trace)
    found: list[ProfiledCall] = []
    for number, execution in _executions(trace):
        part = len(execution.durations_ms) / count
        for each in nested(trace.blocks[number]):
            found += _calls(each, _Resolver(graph, names), number, part)
    return tuple(found)


def _calls(each: Timed, resolver: _Resolver, block: int, part: float) -> Iterator[ProfiledCall]:
    handles = resolver.handles_inside(each)
    whole = _common(resolver.nodes(each, {}))
    for timed in _flat(each):
        nodes = resolver.nodes(timed, handles)
        yield ProfiledCall(
            name=resolver.name(timed, each, nodes),
            total_ms=timed.total_ms * part,
            self_ms=timed.self_ms * part,
            modules=_common(nodes) or whole,
            source=_only({node.source for node in nodes}),
            delegate=resolver.delegate(each),
            depth=timed.depth,
            event=timed.event,
            foreign=timed.foreign,
            block=block,
        )


def _flat(each: Timed) -> Iterator[Timed]:
    yield each
    for child in each.inside:
        yield from _flat(child)


@dataclass(frozen=True)
class _Resolver:
    """Finds the backend, graph nodes and name of an event."""

    graph: Mapping[int, Sequence[GraphNode]]
    names: Names

    def delegate(self, each: Timed) -> str:
        """The backend of a call; a program with one backend has no other."""
        if each.event.name != DELEGATE_CALL:
            return ""
        return each.event.backend or _only(set(self.names.backends)) or UNKNOWN

    def handles_inside(self, call: Timed) -> dict[int, int]:
        """Debug handles of a delegate's nodes that do not report any, by the node's id."""
        backend = backend_of(self.delegate(call)) if call.inside else None
        if backend is None or not backend.traced:
            return {}
        names = [each.event.name for each in call.inside]
        found = joined(names, call.event.handles, self.graph, backend.traced)
        return {id(call.inside[i]): handle for i, handle in found.items()}

    def nodes(self, timed: Timed, inside: Mapping[int, int]) -> list[GraphNode]:
        """The graph's nodes that an event computes; for a kernel, the one that it is called for."""
        handle = inside.get(id(timed))
        handles = timed.event.handles if handle is None else (handle,)
        nodes = [node for each in dict.fromkeys(handles) for node in self.graph.get(each, ())]
        if timed.event.name.startswith(KERNEL):
            base = timed.event.name.removeprefix(KERNEL).partition(".")[0]
            return [n for n in nodes if n.op.partition("::")[2] == base][:1] or nodes[:1]
        return nodes

    def name(self, timed: Timed, call: Timed, nodes: Sequence[GraphNode]) -> str:
        event = timed.event
        if event.name.startswith(KERNEL):
            namespace = nodes[0].op.partition("::")[0] if nodes else ""
            return self.names.kernel(event.name.removeprefix(KERNEL), namespace)
        if timed is call:
            content = _content(nodes)
            return self.delegate(call) + (f": {content}" if content else "")
        # A number is the debug handle of the delegate's own.
        return (event.name.isdigit() and _content(nodes)) or _RUNNING_NUMBER.sub("", event.name)


def _content(nodes: Sequence[GraphNode]) -> str:
    """The operators of a partition, the most frequent first: `linear x 7, mul x 3, add`."""
    counts = Counter(node.op.partition("::")[2] for node in nodes).most_common()
    shown = [name if count == 1 else f"{name} x {count}" for name, count in counts[:_NAMED]]
    return ", ".join(shown) + (" ..." if len(counts) > _NAMED else "")


def _common(nodes: Sequence[GraphNode]) -> Chain:
    """The modules that all nodes are in."""
    chains = [node.modules for node in nodes if node.modules]
    levels = zip(*chains, strict=False) if chains else ()
    same = []
    for level in levels:
        if any(each != level[0] for each in level):
            break
        same.append(level[0])
    return tuple(same)


def _only(values: set[str]) -> str:
    return next(iter(values)) if len(values) == 1 else ""


# The beginnings of a backend's names for its nodes, each with the operators that become them.
Families = Mapping[str, tuple[str, ...]]


def joined(
    names: Sequence[str],
    handles: Sequence[int],
    graph: Mapping[int, Sequence[GraphNode]],
    families: Families,
) -> dict[int, int]:
    """Debug handles by the position in `names`, without those that are ambiguous."""
    found: dict[int, int] = {}
    by_family: dict[tuple[str, ...], list[int]] = {}
    for i, name in enumerate(names):
        if family := _family(name, families):
            by_family.setdefault(family, []).append(i)
    for operators, own in by_family.items():
        wanted = list(_with_operators(handles, graph, operators))
        if len(own) == len(wanted):
            found |= dict(zip(own, wanted, strict=True))
    return found


def _family(name: str, families: Families) -> tuple[str, ...] | None:
    """By the longest beginning, as `Copy (` and `Copy Slice (` may be two."""
    fitting = [start for start in families if name.startswith(start)]
    return families[max(fitting, key=len)] if fitting else None


def _with_operators(
    handles: Sequence[int], graph: Mapping[int, Sequence[GraphNode]], operators: Sequence[str]
) -> Iterator[int]:
    """The handle of each node of a family, in order of execution.

    A node of the model may become several: a matrix product also has changes of layout before it.
    So the last places of a handle are those of the operator.
    """
    left = Counter(handles)
    for handle in handles:
        of_family = sum(node.op in operators for node in graph.get(handle, ()))
        if left[handle] <= of_family:
            yield handle
        left[handle] -= 1


COPY, INDEX_PUT, VIEWS, REST, RUNTIME = "copy_", "index_put", "views", "rest", "runtime"
# Work that only moves values.
MOVING = (COPY, INDEX_PUT, VIEWS)
# Changes of the layout that are not called `..._copy`; an in-place `copy_` writes to a buffer.
_VIEWS = frozenset({"clone", "_clone_dim_order", "et_view", "contiguous"})
_NO_VIEWS = frozenset({"_to_copy"})  # changes the data type


def kind_of(name: str) -> str:
    """The kind of a kernel by its name in full: `copy_`, `index_put`, `views` or `rest`."""
    base = name.rpartition("::")[2].partition(".")[0]
    if base in ("copy", "copy_"):
        return COPY
    if base in ("index_put", "index_put_"):
        return INDEX_PUT
    is_view = base in _VIEWS or (base.endswith("_copy") and base not in _NO_VIEWS)
    return VIEWS if is_view else REST


def outside_delegates(calls: Iterable[ProfiledCall], inference_ms: float) -> float:
    """Share of an inference that is in no delegate, from 0 to 1, as records have it."""
    delegated = (call.total_ms for call in calls if call.depth == 0 and call.delegate)
    return outside_share(inference_ms, sum(delegated))


def shares_of(calls: Iterable[ProfiledCall], inference_ms: float) -> dict[str, float]:
    """Shares of an inference from 0 to 1, as `Profile.shares` has them; their sum is 1."""
    times: dict[str, float] = {}
    for call in calls:
        if call.depth == 0:
            kind = call.delegate or kind_of(call.name)
            times[kind] = times.get(kind, 0.0) + call.total_ms
    # Rounding of the clock can make the parts longer than the whole.
    whole_ms = max(inference_ms, sum(times.values()))
    delegates = sorted(times.keys() - {COPY, INDEX_PUT, VIEWS, REST})
    named = [*delegates, COPY, INDEX_PUT, VIEWS, REST]
    shares = {name: times.get(name, 0.0) / whole_ms if whole_ms else 0.0 for name in named}
    return {**shares, RUNTIME: max(0.0, 1.0 - sum(shares.values())) if whole_ms else 0.0}


_ADDED = "ExecuTorch added it after the backend had chosen"
# What delegates nothing, by its name in a recipe.
_NO_BACKEND = "portable"


class Reasons:
    """Why a backend left operators to the CPU: `details.delegation.outside` of `export.json`."""

    def __init__(self, outside: Sequence[dict[str, Any]] | None, backend: str | None) -> None:
        self._outside = outside
        self._backend = backend

    @classmethod
    def of(cls, run: StoredRun, method: str) -> Reasons:
        """The reasons for a method of a run's program; unknown for a finished program."""
        backend = run.record.program.backend
        try:
            path = run.path("export")
            provenance = Provenance.load_or_none(path) if path else None
            known = provenance.of(method) if provenance else None
        except (ValueError, KeyError, ValidationError):
            known = None
        delegation = known.details.get("delegation", {}) if known else {}
        return cls(delegation.get("outside"), backend)

    def for_call(self, call: ProfiledCall) -> str:
        """The reason as a clause; empty for a delegated call, or if unknown."""
        if call.delegate or self._outside is None or self._backend in (None, _NO_BACKEND):
            return ""
        operator = call.name.partition(".")[0]
        same = [each for each in self._outside if each["operator"] == operator]
        if not same:
            return _ADDED
        here = [each for each in same if _reason_place(each) == call.source] or same
        reasons = {each["reason"] for each in here}
        return str(reasons.pop() or "") if len(reasons) == 1 else ""


def _reason_place(outside: dict[str, Any]) -> str:
    file = outside["file"]
    return f"{PurePath(file).name}:{outside['line']}" if file else ""


@dataclass
class Timed:
    """An event of a block with its mean time in one inference, and the events in it.

    `call` is the delegate's call that it belongs to; None for a kernel and for the call itself.
    """

    event: TraceEvent
    total_ms: float
    inside: list[Timed]
    depth: int = 0
    foreign: bool = False
    call: Timed | None = None

    @property
    def self_ms(self) -> float:
        """Without what is inside; a sum of rounded times may exceed the whole."""
        return max(0.0, self.total_ms - sum(each.total_ms for each in self.inside))


def nested(block: Sequence[TraceEvent]) -> list[Timed]:
    """The kernels and delegates' calls of a block in order, with what is inside of them."""
    inner: dict[int, list[Timed]] = {}
    for event in block:
        if event.inner:
            inner.setdefault(event.instruction, []).append(_timed(event))
    found = []
    for event in block:
        if event.inner or not event.name.startswith((KERNEL, DELEGATE_CALL)):
            continue
        each = _timed(event)
        if event.name == DELEGATE_CALL:
            _fill(each, inner.get(event.instruction, []))
        found.append(each)
    return sorted(found, key=lambda each: each.event.starts_ns[0])


def _timed(event: TraceEvent) -> Timed:
    return Timed(event, sum(event.durations_ms) / len(event.durations_ms), [])


def _fill(call: Timed, inner: list[Timed]) -> None:
    """Puts what a delegate reported into its call."""
    start_ns, end_ns = _interval(call)
    own: list[Timed] = []
    foreign: list[Timed] = []
    for each in inner:
        is_own = start_ns <= each.event.starts_ns[0] <= end_ns
        (own if is_own else foreign).append(each)
    _fill_by_time(call, own)
    _fill_foreign(call, foreign)
    _settle(call, call)


def _fill_by_time(call: Timed, own: list[Timed]) -> None:
    open_: list[Timed] = [call]
    for each in sorted(own, key=lambda e: (e.event.starts_ns[0], -e.event.durations_ms[0])):
        while len(open_) > 1 and not _contains(open_[-1], each):
            open_.pop()
        open_[-1].inside.append(each)
        open_.append(each)


def _fill_foreign(call: Timed, foreign: list[Timed]) -> None:
    """Puts events of another clock into the longest phase, in which the delegate waits for them.

    Events that name nodes of the graph share its time, whatever their unit is. Others count only
    if their sum, in nanoseconds, fits.
    """
    nodes = [each for each in foreign if each.event.handles] or foreign
    total_ms = sum(each.total_ms for each in nodes)
    phases = [each for each in _leaves(call) if each is not call]
    place = max(phases, key=lambda each: each.total_ms, default=call)
    fits = total_ms <= place.total_ms
    if not total_ms or not (fits or nodes[0].event.handles):
        return
    scale = 1.0 if fits and not _counts(nodes) else place.total_ms / total_ms
    for each in nodes:
        each.total_ms *= scale
        each.foreign = True
        place.inside.append(each)


def _counts(events: list[Timed]) -> bool:
    """Whether the events are durations alone: then their unit is unknown."""
    return all(start == 0 for each in events for start in each.event.starts_ns)


def _leaves(of: Timed) -> list[Timed]:
    return [leaf for each in of.inside for leaf in _leaves(each)] if of.inside else [of]


def _settle(call: Timed, each: Timed) -> None:
    for child in each.inside:
        child.depth, child.call = each.depth + 1, call
        _settle(call, child)


def _interval(each: Timed) -> tuple[float, float]:
    start_ns = each.event.starts_ns[0]
    return start_ns, start_ns + each.event.durations_ms[0] * 1e6


def _contains(outer: Timed, inner: Timed) -> bool:
    """Whether `inner` is in `outer`; one without a measurable length is nobody's part."""
    start_ns, end_ns = _interval(outer)
    inner_start_ns, inner_end_ns = _interval(inner)
    is_long = inner_end_ns > inner_start_ns
    return is_long and start_ns <= inner_start_ns and inner_end_ns <= end_ns
