"""A profile for other viewers: a timeline for Perfetto, a graph for Model Explorer.

The timeline is the JSON Object Format of Chrome's trace events, which ui.perfetto.dev opens:
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. The graph is a
collection of `input_graph.ts`: https://ai.google.dev/edge/model-explorer
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from etdeploy.profile.model import ModuleTime, OperatorTime, Profile, Span

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


# The colours of the least and of the most expensive call, each as red, green, blue.
_LEAST, _MOST = (255, 255, 255), (240, 90, 60)


def graph_collection(profile: Profile) -> dict[str, Any]:
    """A graph with a node for each call of one inference.

    Edges are the order of execution. Colours and the times in the attributes of a node are those of
    its operator in its module, the means over the traced inferences.
    """
    known = {(each.name, each.module, each.delegate): each for each in profile.operators}
    most = max((each.share for each in profile.operators), default=0.0) or 1.0
    nodes = [
        _node(number, span, known.get((span.name, span.module, span.delegate)), most)
        for number, span in enumerate(profile.spans)
    ]
    groups = dict(_groups(profile.modules, profile.inference_ms)) if profile.modules else {}
    overall = {"bottleneck": profile.bottleneck, "ms": f"{profile.inference_ms:.4g}"}
    graph = {"id": "profile", "nodes": nodes, "groupNodeAttributes": {**groups, "": overall}}
    return {"label": profile.run_id, "graphs": [graph]}


def _node(number: int, span: Span, known: OperatorTime | None, most: float) -> dict[str, Any]:
    told = {"ms in this inference": f"{span.duration_ms:.4g}", "delegate": span.delegate}
    if known:
        told |= {
            "ms": f"{known.self_ms:.4g}",
            "calls in the module": str(known.calls),
            "share": f"{known.share:.1%}",
            "source": known.source,
            "not delegated": known.not_delegated,
        }
    return {
        "id": str(number),
        "label": span.name,
        "namespace": _namespace(span.module),
        "attrs": [{"key": key, "value": value} for key, value in told.items() if value],
        "incomingEdges": [
            {"sourceNodeId": str(number - 1), "sourceNodeOutputId": "0", "targetNodeInputId": "0"}
        ]
        if number
        else [],
        "style": {"backgroundColor": _colour((known.share if known else 0.0) / most)},
    }


def _groups(module: ModuleTime, whole_ms: float) -> Iterator[tuple[str, dict[str, str]]]:
    share = module.total_ms / whole_ms if whole_ms else 0.0
    told = {"class": module.kind, "ms": f"{module.total_ms:.4g}", "share": f"{share:.1%}"}
    yield _namespace(module.path), told
    for child in module.children:
        yield from _groups(child, whole_ms)


def _namespace(module: str) -> str:
    return module.replace(".", "/")


def _colour(part: float) -> str:
    levels = (round(low + (high - low) * part) for low, high in zip(_LEAST, _MOST, strict=True))
    return "#" + "".join(f"{level:02x}" for level in levels)
