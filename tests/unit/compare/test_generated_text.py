"""Two runs that generated text, compared."""

from __future__ import annotations

from typing import Any

from etdeploy.bench.generation_workload import WorkPoint
from etdeploy.bench.records.stored import StoredRun
from etdeploy.compare.model import Comparison, Verdict
from etdeploy.compare.runs import compare_runs
from tests.support.bench_values import FOLDER, make_program, make_run
from tests.support.text_values import (
    make_evaluation,
    make_text_check,
    make_text_record,
    make_text_workload,
    make_work,
)


def _run(name: str, ms: float = 5.0, **changes: Any) -> StoredRun:
    return StoredRun(FOLDER, make_text_record(ms, run_id=name, **changes))


def _compared(b: StoredRun) -> Comparison:
    return compare_runs(_run("a"), b)


def test_the_time_per_token_is_compared() -> None:
    # Another method may give the tokens.
    found = _compared(_run("b", 6.0, program=make_program(method="decode_64")))
    assert (found.metric, found.verdict) == ("token_ms", Verdict.SLOWER)
    assert found.ratio
    assert round(found.ratio.median, 3) == 1.2
    assert any("same 4 tokens" in remark for remark in found.remarks)
    assert found.outputs == ()


def test_another_text_is_told() -> None:
    workload = make_text_workload()
    point = workload.first.model_copy(update={"token_ids": (10, 11, 99, 13)})
    found = _compared(_run("b", workload=workload.model_copy(update={"points": (point,)})))
    assert any("from new token 3 on" in remark for remark in found.remarks)


def test_other_points_and_workloads_are_not_comparable() -> None:
    other = make_text_workload(work=make_work(WorkPoint(tuple(range(8)), 4, 64, 1, 2)))
    found = _compared(_run("b", workload=other))
    assert found.verdict == Verdict.NOT_COMPARABLE
    assert "prompt 8, new 4 in A" in found.reason
    assert "new 4, depth 64 in B" in found.reason
    prompted = make_text_workload().model_copy(update={"prompt": "Once"})
    assert _compared(_run("b", workload=prompted)).reason == "another prompt"
    inferred = _compared(make_run(run_id="b"))
    assert "generation in A, " in inferred.reason
    assert "inference in B" in inferred.reason
    assert inferred.ratio is None


def test_of_several_points_the_first_is_compared() -> None:
    work = make_work(WorkPoint(tuple(range(8)), 4, 0, 1, 2), WorkPoint((1,), 1, 0, 0, 1))
    a, b = (_run(name, workload=make_text_workload(work=work)) for name in "ab")
    remarks = compare_runs(a, b).remarks
    assert any("point: prompt 8, new 4." in remark for remark in remarks)


def _evaluated(name: str, quantized: float | None, **changes: Any) -> StoredRun:
    update = {"evaluation": make_evaluation(quantized, **changes)}
    return _run(name, workload=make_text_workload().model_copy(update=update))


def test_perplexities_are_compared_on_the_same_text() -> None:
    found = compare_runs(_evaluated("a", None), _evaluated("b", 14.7))
    [remark] = [remark for remark in found.remarks if "text.txt" in remark]
    assert "(+5 %)" in remark.replace("  ", " ")
    other = compare_runs(_evaluated("a", None), _evaluated("b", 14.7, sha256="cd" * 32))
    assert any("different texts" in remark for remark in other.remarks)
    assert not any("Perplexity" in remark for remark in _compared(_evaluated("b", 14.7)).remarks)


def test_a_run_with_a_wrong_text_is_not_compared() -> None:
    wrong = make_text_check(within_tolerance=False)
    workload = make_text_workload().model_copy(update={"texts": (wrong,)})
    found = _compared(_run("b", workload=workload))
    assert found.verdict == Verdict.NOT_COMPARABLE
    assert {"B", "text_0"} <= set(found.reason.split())
