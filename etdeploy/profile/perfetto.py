"""One traced inference in the Trace Event Format, which ui.perfetto.dev and chrome://tracing open.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU (JSON Object Format)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from etdeploy.profile.model import Profile, Span

_PROCESS = 1
_US_PER_MS = 1000.0


@dataclass
class _Slice:
    """A span with its place in time; those of a thread are either apart or in each other."""

    span: Span
    start_us: float
    end_us: float
    inside: list[_Slice] = field(default_factory=list)


def trace_events(profile: Profile) -> dict[str, Any]:
    """The trace: a thread for the runtime, and one for the nodes of each delegate."""
    threads = ["runtime", *sorted({s.delegate for s in profile.spans if s.depth and s.delegate})]
    numbers = {name: number for number, name in enumerate(threads, start=1)}
    return {
        "traceEvents": [
            _named(
                "process_name",
                0,
                f"{'inference' if profile.text is None else profile.method} of {profile.run_id}",
            ),
            *(_named("thread_name", number, name) for name, number in numbers.items()),
            *(
                _event(each, numbers[each.span.delegate if each.span.depth else "runtime"])
                for whole in _slices(profile)
                for each in _flat(whole)
            ),
        ],
        "displayTimeUnit": "ms",
        "otherData": {
            "run_id": profile.run_id,
            "inference_ms": profile.inference_ms,
            "bottleneck": profile.bottleneck,
        },
    }


def _named(what: str, thread: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": _PROCESS, "tid": thread, "args": {"name": name}}


def _event(each: _Slice, thread: int) -> dict[str, Any]:
    span = each.span
    told = {"module": span.module, "delegate": span.delegate}
    if span.start_ms is None:
        told["start"] = "not known: drawn one after the other"
    return {
        "name": span.name,
        "cat": span.delegate or "kernel",
        "ph": "X",
        "ts": each.start_us,
        "dur": max(0.0, each.end_us - each.start_us),
        "pid": _PROCESS,
        "tid": thread,
        "args": {name: value for name, value in told.items() if value},
    }


def _slices(profile: Profile) -> list[_Slice]:
    """The calls of the runtime, with what is in them; parts come after their whole in `spans`."""
    path: list[_Slice] = []
    roots: list[_Slice] = []
    for span in profile.spans:
        del path[span.depth :]
        siblings = path[-1].inside if path else roots
        start_us = _start_us(span, path[-1] if path else None, siblings)
        each = _Slice(span, start_us, start_us + span.duration_ms * _US_PER_MS)
        siblings.append(each)
        path.append(each)
    _cut(roots, None)
    return roots


def _start_us(span: Span, whole: _Slice | None, siblings: list[_Slice]) -> float:
    if span.start_ms is not None:
        return span.start_ms * _US_PER_MS
    if siblings:
        return siblings[-1].end_us
    return whole.start_us if whole else 0.0


def _cut(siblings: list[_Slice], whole: _Slice | None) -> None:
    """Ends each before the next and inside its whole: a delegate's times are rounded.

    A viewer draws slices that overlap in part wrongly, or leaves them out.
    """
    siblings.sort(key=lambda each: each.start_us)
    for number, each in enumerate(siblings):
        bounds = [each.end_us, *(following.start_us for following in siblings[number + 1 :][:1])]
        if whole:
            each.start_us = min(max(each.start_us, whole.start_us), whole.end_us)
            bounds.append(whole.end_us)
        each.end_us = max(each.start_us, min(bounds))
        _cut(each.inside, each)


def _flat(each: _Slice) -> Iterator[_Slice]:
    yield each
    for child in each.inside:
        yield from _flat(child)
