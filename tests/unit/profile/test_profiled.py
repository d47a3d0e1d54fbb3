from __future__ import annotations

import pytest

from etdeploy.profile.calls import DELEGATE_CALL, EXECUTE, Reasons
from etdeploy.profile.model import Profile
from etdeploy.profile.profiled import profile_from
from etdeploy.profile.protocol import Trace
from etdeploy.program.model import Operator
from etdeploy.runner.etdump import read_summary
from tests.support.bench_values import make_program, make_record
from tests.support.etdumps import make_etdump
from tests.support.text_values import TRACED, make_text_record, make_text_workload
from tests.support.traces import TRACE, make_event, repeated

_UNKNOWN = Reasons(None, None)
_OPERATORS = (Operator(name="aten::mean.out", calls=1),)


def _profile(trace: Trace = TRACE, reasons: Reasons = _UNKNOWN) -> Profile:
    return profile_from(
        make_record([10.0], program=make_program(operator_calls=_OPERATORS)), trace, reasons
    )


def test_inferences_of_two_ways_through_the_program_are_one_mean() -> None:
    short = (make_event("native_call_mean.out", 0.0, 1.0), make_event(EXECUTE, 0.0, 2.0))
    long_ = (make_event("native_call_mean.out", 0.0, 4.0), make_event(EXECUTE, 0.0, 8.0))
    twice = tuple(repeated(each, each.durations_ms * 2) for each in short)
    profile = _profile(Trace(blocks=(twice, long_)))
    assert (profile.inferences, profile.inference_ms) == (3, 4.0)
    [mean] = profile.operators
    assert (mean.calls, mean.total_ms, mean.share) == (1, 2.0, 0.5)


def test_the_timeline_is_the_inference_with_the_median_time() -> None:
    block = (make_event("native_call_mean.out", 0.5, 1.0), make_event(EXECUTE, 0.0, 2.0))
    times = ((1.0, 3.0, 1.2), (2.0, 9.0, 2.2))
    trace = Trace(blocks=(tuple(map(repeated, block, times)),))
    [span] = _profile(trace).spans
    assert (span.start_ms, span.duration_ms) == pytest.approx((0.5, 1.2))


def test_a_reason_stands_with_the_operator_that_was_left_to_the_cpu() -> None:
    def outside(line: int, reason: str) -> dict[str, object]:
        return {"operator": "aten::mean", "file": "/a/net.py", "line": line, "reason": reason}

    reasons = Reasons([outside(9, "its axis is dynamic"), outside(5, "too large")], "xnnpack")
    found = {each.name: each.not_delegated for each in _profile(reasons=reasons).operators}
    assert found["aten::mean.out"] == "its axis is dynamic"
    assert "ExecuTorch added it" in found["aten::permute_copy.out"]
    assert found["Gemm"] == ""


@pytest.mark.parametrize(
    ("trace", "note"),
    [
        (TRACE, "joined to modules by their order"),
        (
            Trace(blocks=((make_event(DELEGATE_CALL, 0, 1), make_event(EXECUTE, 0, 1)),)),
            "XnnpackBackend reports no times of its own nodes",
        ),
    ],
)
def test_what_is_missing_is_said(trace: Trace, note: str) -> None:
    assert any(note in each for each in _profile(trace).notes)


def test_a_tracer_that_costs_much_is_said() -> None:
    profile = profile_from(make_record([5.0]), TRACE, _UNKNOWN)
    assert "100% longer" in profile.notes[0]


def test_the_share_outside_of_delegates_is_the_records() -> None:
    profile = _profile()
    call = [("DELEGATE_CALL", 0, 6_000_000), ("Method::execute", 0, 10_000_000)]
    assert profile.outside_delegates == pytest.approx(0.4)
    assert profile.outside_delegates == pytest.approx(read_summary(make_etdump(call)).outside)


@pytest.mark.parametrize(("method", "untraced_ms"), [("decode", 5.055), ("prefill", 5.005)])
def test_calls_of_a_method_are_compared_with_the_same_work_untraced(
    method: str, untraced_ms: float
) -> None:
    record = make_text_record(
        workload=make_text_workload(methods=TRACED), program=make_program(method=method)
    )
    profile = profile_from(record, TRACE, _UNKNOWN)
    assert profile.untraced_ms == pytest.approx(untraced_ms, abs=1e-3)
    assert (profile.method, profile.unit) == (method, f"call of {method}")
    assert f"of a call of {method} is" in profile.bottleneck
    assert any(f"A call of {method} takes" in note for note in profile.notes)
