"""What each event of a trace contains, so that no time is counted twice.

A delegate reports what it does in one of two ways: with starts on the clock of the runtime, or in a
clock or unit of its own (shader times of a GPU, cycles of a processor).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from etdeploy.profile.protocol import TraceEvent

EXECUTE = "Method::execute"
DELEGATE_CALL = "DELEGATE_CALL"
KERNEL = "native_call_"


@dataclass
class Timed:
    """An event of a block with its time in one inference, the mean over the block.

    Attributes:
        event: As it was traced.
        total_ms: With what is inside.
        inside: What it contains, in order.
        depth: 0 for what the runtime calls.
        foreign: Whether its clock is not the runtime's: then it has no start.
        call: The delegate's call that it belongs to; None for a kernel and for the call itself.
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
    """Puts events of another clock into the longest phase, where the delegate waits for them.

    Those that name nodes of the graph are its parts: they share its time, whatever their unit is.
    Others count only if they fit, as in nanoseconds; of sums in a unit of their own nothing is
    known.
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
