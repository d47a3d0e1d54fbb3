from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from etdeploy.profile.calls import Reasons
from etdeploy.profile.model import Profile, Span
from etdeploy.profile.profiled import profile_from
from etdeploy.profile.viewers import trace_events
from tests.support.bench_values import make_record
from tests.support.traces import TRACE

_PROFILE = profile_from(make_record([10.0]), TRACE, Reasons(None, None))


def _events(profile: Profile = _PROFILE) -> list[dict[str, Any]]:
    written: list[dict[str, Any]] = json.loads(json.dumps(trace_events(profile)))["traceEvents"]
    return written


def _with(*spans: Span) -> Profile:
    return _PROFILE.model_copy(update={"spans": spans})


def _slices(events: list[dict[str, Any]]) -> list[tuple[str, float, float, int]]:
    return [(e["name"], e["ts"], e["ts"] + e["dur"], e["tid"]) for e in events if e["ph"] == "X"]


def test_times_are_microseconds_since_the_inference_began() -> None:
    found = {name: (start, end, thread) for name, start, end, thread in _slices(_events())}
    assert found["XnnpackBackend: linear, relu"] == (0.0, 6000.0, 1)
    assert found["Gemm"] == (500.0, 4500.0, 2)
    assert found["aten::mean.out"] == (6500.0, 7500.0, 1)


def test_slices_of_a_thread_are_apart_or_in_each_other() -> None:
    def inner(name: str, start_ms: float | None, duration_ms: float, depth: int = 1) -> Span:
        return Span(
            name=name, start_ms=start_ms, duration_ms=duration_ms, depth=depth, delegate="Npu"
        )

    profile = _with(
        inner("call", 0.0, 2.0, 0),
        inner("a", 0.5, 1.2),
        inner("b", 1.0, 3.0),
        inner("call", 2.0, 3.0, 0),
        inner("unknown start", None, 2.0),
        inner("after it", None, 2.0),
    )
    slices = _slices(_events(profile))
    for thread in (1, 2):
        ends = sorted((start, end) for _, start, end, each in slices if each == thread)
        assert all(end <= start for (_, end), (start, _) in pairwise(ends))
    found = {name: (start, end) for name, start, end, _ in slices}
    assert found["a"] == (500.0, 1000.0)
    assert found["b"] == (1000.0, 2000.0)
    assert found["unknown start"] == (2000.0, 4000.0)
    assert found["after it"] == (4000.0, 5000.0)
