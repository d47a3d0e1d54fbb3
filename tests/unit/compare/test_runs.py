"""Two records judged: pairs, other times, and what cannot be compared."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest

from etdeploy.bench.records.performance import DisturbanceKind
from etdeploy.bench.records.record import SizeRecord
from etdeploy.bench.records.stored import StoredRun
from etdeploy.compare.model import Statistic, Verdict
from etdeploy.compare.runs import compare_runs
from etdeploy.program.folder import EXPORT_INFO, Provenance, TensorFile
from etdeploy.program.model import PlainValue
from tests.support.bench_values import (
    SIMULATED,
    make_check,
    make_device,
    make_loss,
    make_program,
    make_record,
    make_series,
)
from tests.support.compare_values import (
    A_MS,
    RUN_A,
    RUN_B,
    disturbed,
    paired_runs,
    separate_runs,
    slower_by,
    started,
)

_THROTTLED, _BUSY = DisturbanceKind.THROTTLED, DisturbanceKind.BUSY
_SAVING = DisturbanceKind.POWER_SAVING


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [(1.05, Verdict.SLOWER), (0.9, Verdict.FASTER), (1.002, Verdict.NO_DIFFERENCE)],
)
def test_starts_that_took_turns_are_pairs(factor: float, verdict: Verdict) -> None:
    found = compare_runs(*paired_runs(slower_by(factor)))
    assert found.verdict == verdict
    assert found.ratio is not None
    assert found.ratio.median == pytest.approx(factor)
    assert [pair.a_ms for pair in found.pairs] == list(A_MS)
    assert found.a.median_ms == pytest.approx(1.0)
    assert found.a.spread_percent == pytest.approx(1.25, abs=0.1)
    assert compare_runs(*paired_runs(slower_by(factor)), 12).verdict == Verdict.NO_DIFFERENCE


def test_records_of_other_times_have_no_pairs_and_say_so() -> None:
    found = compare_runs(*separate_runs(slower_by(1.05)))
    assert found.verdict == Verdict.NO_DIFFERENCE
    assert found.pairs == ()
    assert "different times" in found.remarks[0]
    assert compare_runs(*separate_runs(slower_by(1.3))).verdict == Verdict.SLOWER


def test_a_record_that_took_turns_with_a_third_is_no_pair() -> None:
    a, b = paired_runs(slower_by(1.05), of_b={"interleaved_with": "another"})
    assert compare_runs(a, b).pairs == ()


@pytest.mark.parametrize(
    ("of_b", "reason"),
    [
        ({"run_id": RUN_A, "interleaved_with": RUN_A}, "both are the same run"),
        ({"simulated": SIMULATED}, "B was simulated by Simulator 1.2.3"),
        ({"device": make_device("qemu")}, "another device: its kind is host in A and qemu in B"),
        ({"device": make_device(model="X")}, "its model is Test CPU in A and X in B"),
        ({"device": make_device(soc="SM1")}, "its SoC is None in A and SM1 in B"),
        ({"device": make_device(os="Linux 2")}, "another system on the device"),
        ({"device": make_device(fingerprint="g/2")}, "another system on the device: its build"),
        ({"device": make_device(serial="12")}, "another unit of the same model"),
        ({"device": make_device(name="ssh:b")}, "nothing shows that host and ssh:b are the same"),
        ({"program": make_program(method="encode")}, "forward in A, encode in B"),
        (
            {"outputs": (make_check(within_tolerance=False),)},
            "B computes something else: output_0 is not what its model gives",
        ),
    ],
)
@pytest.mark.parametrize("pairs", [True, False])
def test_what_must_be_the_same_is(of_b: dict[str, Any], reason: str, pairs: bool) -> None:
    found = compare_runs(*(paired_runs if pairs else separate_runs)(slower_by(1.5), of_b=of_b))
    assert found.verdict == Verdict.NOT_COMPARABLE
    assert reason in found.reason
    assert found.ratio is None
    assert found.pairs == ()
    assert found.outputs == ()


def test_a_phone_is_the_same_over_another_connection() -> None:
    devices = [make_device("android", name=name, serial="S1") for name in ("android:S1", "a:5555")]
    a, b = separate_runs(slower_by(1.5), {"device": devices[0]}, {"device": devices[1]})
    assert compare_runs(a, b).verdict == Verdict.SLOWER


@pytest.mark.parametrize("zero", [0.0, math.nan, math.inf])
def test_times_that_are_none_are_not_compared(zero: float) -> None:
    a, b = paired_runs(slower_by(1.05))
    runs = tuple(start.model_copy(update={"median_ms": zero}) for start in b.record.workload.runs)
    workload = b.record.workload.model_copy(update={"runs": runs})
    b = StoredRun(b.folder, b.record.model_copy(update={"workload": workload}))
    found = compare_runs(a, b)
    assert found.verdict == Verdict.NOT_COMPARABLE
    assert "not a positive time" in found.reason


def test_pairs_that_were_throttled_are_left_out_and_told() -> None:
    a, b = paired_runs((*slower_by(1.0)[:-1], 5.0))
    found = compare_runs(a, disturbed(b, _THROTTLED, 7))
    assert len(found.pairs) == 7
    assert found.verdict == Verdict.NO_DIFFERENCE
    [remark] = [remark for remark in found.remarks if "1 of 8 pairs" in remark]
    assert remark.endswith(": It was throttled.")


@pytest.mark.parametrize("starts", [range(5), range(8), ()])
def test_a_comparison_that_was_throttled_is_none(starts: range) -> None:
    a, b = paired_runs(slower_by(1.05))
    found = compare_runs(disturbed(a, _THROTTLED, *starts), b)
    assert found.verdict == Verdict.NOT_COMPARABLE
    assert found.reason.startswith("throttled: ")


def test_where_other_work_ran_the_fastest_inferences_of_pairs_are_compared() -> None:
    a, b = paired_runs((1.05, 9.0, 1.04, 7.0, 8.0, 1.03, 1.06, 6.0))
    assert compare_runs(a, b).statistic == Statistic.MEDIAN
    workload = b.record.inference
    # Each start has one inference that nothing delayed.
    times = [x for time in A_MS for x in (9.0, 9.0, 0.9 * 1.05 * time)]
    latency = workload.latency_ms.model_copy(update={"samples": tuple(times)})
    workload = workload.model_copy(update={"latency_ms": latency})
    b = StoredRun(b.folder, b.record.model_copy(update={"workload": workload}))
    found = compare_runs(disturbed(a, _BUSY, 0, 1), disturbed(b, _BUSY, 3))
    assert found.statistic == Statistic.FASTEST
    assert found.verdict == Verdict.SLOWER
    assert found.ratio is not None
    assert found.ratio.median == pytest.approx(1.05)
    assert found.pairs[0].a_ms == pytest.approx(0.9)
    assert found.a.median_ms == pytest.approx(1.0)
    assert any("fastest inference" in remark for remark in found.remarks)


def _ten_pairs(
    of_b: float, medians_apart: float, fastest_apart: float
) -> tuple[StoredRun, StoredRun]:
    """Starts whose medians and fastest inferences scatter by so much, differently."""
    draw = random.Random("ten pairs")

    def start(ratio: float) -> list[float]:
        fastest = ratio * math.exp(draw.gauss(0, fastest_apart))
        middle = ratio * 1.2 * math.exp(draw.gauss(0, medians_apart))
        return [fastest, max(middle, fastest), 2 * middle]

    sides = [make_series(*(start(ratio) for _ in range(10))) for ratio in (1.0, of_b)]
    records = [
        make_record(side, run_id=own, interleaved_with=other)
        for side, own, other in zip(sides, (RUN_A, RUN_B), (RUN_B, RUN_A), strict=True)
    ]
    return StoredRun(Path("/out/a"), records[0]), StoredRun(Path("/out/b"), records[1])


def test_where_fastest_inferences_agree_much_better_than_medians_they_are_compared() -> None:
    found = compare_runs(*_ten_pairs(1.05, medians_apart=0.08, fastest_apart=0.005))
    assert found.statistic == Statistic.FASTEST
    assert found.verdict == Verdict.SLOWER
    assert any("fastest inference" in remark for remark in found.remarks)
    assert any(remark.startswith("By medians, B takes ") for remark in found.remarks)


@pytest.mark.parametrize(("medians_apart", "fastest_apart"), [(0.005, 0.001), (0.05, 0.05)])
def test_medians_are_compared_where_they_agree_or_nothing_agrees_better(
    medians_apart: float, fastest_apart: float
) -> None:
    found = compare_runs(*_ten_pairs(1.0, medians_apart, fastest_apart))
    assert found.statistic == Statistic.MEDIAN
    assert not any("fastest" in remark for remark in found.remarks)


def test_starts_that_are_too_short_to_agree_are_told_with_the_remedy() -> None:
    far = compare_runs(*_ten_pairs(1.0, medians_apart=0.05, fastest_apart=0.05))
    [told] = [remark for remark in far.remarks if "benchmark.iterations" in remark]
    assert "3 inferences in 3." in told
    assert told.split()[-2:] == ["--set", "benchmark.iterations=400"]
    near = compare_runs(*_ten_pairs(1.0, medians_apart=0.005, fastest_apart=0.005))
    assert not any("benchmark.iterations" in remark for remark in near.remarks)


def test_of_more_samples_on_one_side_the_fastest_counts_no_more() -> None:
    a, b = paired_runs(slower_by(1.0))
    workload = a.record.inference
    samples = [x for time in A_MS for x in (time, 0.9 * time, time, 0.1)]
    workload = workload.model_copy(
        update={
            "latency_ms": workload.latency_ms.model_copy(update={"samples": tuple(samples)}),
            "runs": tuple(s.model_copy(update={"samples": 4}) for s in workload.runs),
        }
    )
    a = disturbed(StoredRun(a.folder, a.record.model_copy(update={"workload": workload})), _BUSY)
    found = compare_runs(a, b)
    assert found.statistic == Statistic.FASTEST
    assert found.verdict == Verdict.NO_DIFFERENCE


@pytest.mark.parametrize("kind", [_BUSY, _SAVING, DisturbanceKind.CLOCK])
def test_what_met_both_of_a_pair_is_a_remark(kind: DisturbanceKind) -> None:
    a, b = paired_runs(slower_by(1.05))
    found = compare_runs(disturbed(a, kind), disturbed(b, kind, 1))
    assert found.verdict == Verdict.SLOWER
    assert [remark for remark in found.remarks if remark == f"It was {kind}."] != []


@pytest.mark.parametrize("kind", [_BUSY, _SAVING, _THROTTLED])
def test_a_disturbed_record_is_not_compared_with_one_of_another_time(kind: DisturbanceKind) -> None:
    a, b = separate_runs(slower_by(1.3))
    for starts in ((), range(6)):
        found = compare_runs(a, disturbed(b, kind, *starts))
        assert found.verdict == Verdict.NOT_COMPARABLE
        assert found.reason == f"B was disturbed: it was {kind}"


def test_disturbed_starts_of_a_record_are_left_out() -> None:
    a, b = separate_runs((*slower_by(1.3)[:-1], 9.0))
    found = compare_runs(a, disturbed(b, _BUSY, 7))
    assert found.verdict == Verdict.SLOWER
    assert [r for r in found.remarks if r.startswith("Starts of B ") and "busy" in r]


def test_records_of_the_mode_that_saves_power_are_compared_with_each_other() -> None:
    a, b = (disturbed(run, _SAVING) for run in separate_runs(slower_by(1.3)))
    found = compare_runs(a, b)
    assert found.verdict == Verdict.SLOWER
    assert "It was power_saving." in found.remarks


def _with_inputs(folder: Path, run_id: str, *inputs: TensorFile | PlainValue) -> StoredRun:
    folder.mkdir()
    Provenance(source="x", inputs=inputs).save(folder / EXPORT_INFO)
    return StoredRun(folder, started(A_MS, run_id=run_id, files={"export": EXPORT_INFO}))


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        ([TensorFile(path="p", dtype="float32", shape=(1, 9))], "is a tensor [1, 8] in A and a"),
        ([], None),
        ([TensorFile(path="q", dtype="float16", shape=(1, 8))], None),
        ([PlainValue(kind="Int", value=3)], "and the value 3 in B"),
        (
            [TensorFile(path="p", dtype="float32", shape=(1, 8)), PlainValue(kind="Int", value=3)],
            "other inputs: input 1 is not there in A and the value 3 in B",
        ),
    ],
)
def test_other_inputs_are_another_workload(
    tmp_path: Path, inputs: list[TensorFile | PlainValue], reason: str | None
) -> None:
    tensor = TensorFile(path="p", dtype="float32", shape=(1, 8))
    a = _with_inputs(tmp_path / "a", "a", tensor)
    found = compare_runs(a, _with_inputs(tmp_path / "b", "b", *inputs))
    if reason is None:
        assert found.verdict == Verdict.NO_DIFFERENCE
    else:
        assert reason in found.reason


def test_what_weakens_a_comparison_is_told() -> None:
    device = make_device(emulator="qemu 7.2")
    content = {"benchmark": {"warmup": "auto", "memory": True}}
    other = {"benchmark": {"warmup": 5, "memory": False}}
    recipe = make_record().recipe
    a, b = paired_runs(
        slower_by(1.05),
        {"device": device, "recipe": recipe.model_copy(update={"content": content})},
        {"device": device, "recipe": recipe.model_copy(update={"content": other})},
    )
    text = "\n".join(compare_runs(a, b).remarks)
    assert "auto -> 5" in text
    assert "Nothing that is known" in text
    assert "an emulator" in text


def test_the_size_that_is_compared_is_named() -> None:
    series = make_series(A_MS)
    size = SizeRecord(
        name="short", sizes={}, shapes={}, latency_ms=series.latency, first_inference_ms=1.0,
        peak_rss_bytes=None, outputs=(), runs=series.starts, spread=series.spread,
    )  # fmt: skip
    a, b = paired_runs(slower_by(1.05), {"sizes": (size,)})
    assert any("first size, short" in remark for remark in compare_runs(a, b).remarks)


def test_a_loss_of_quantization_that_differs_is_a_remark() -> None:
    lossy = make_program(quantization_loss=(make_loss(sqnr_db=12.0), make_loss(name="same")))
    kept = make_program(quantization_loss=(make_loss(), make_loss(name="same")))

    def remarks(*programs: Any) -> list[str]:
        a, b = (
            StoredRun(Path(), make_record(program=each, run_id=str(number)))
            for number, each in enumerate(programs)
        )
        found = compare_runs(a, b).remarks
        return [remark for remark in found if "unquantized" in remark]

    [remark] = remarks(kept, lossy)
    assert remark.startswith("scores against")
    assert remark.index("SQNR 27.0 dB") < remark.index(" in A")
    assert remark.index("SQNR 12.0 dB") < remark.index(" in B")
    assert remarks(kept, kept) == []
    assert "no quantization" in remarks(make_program(), kept)[0]


def test_outputs_that_were_not_checked_are_a_remark() -> None:
    runs = [StoredRun(Path(), make_record(outputs=(), run_id=n)) for n in "ab"]
    checked = StoredRun(Path(), make_record(run_id="c"))
    for b, which in ((runs[1], "A and B"), (checked, "A")):
        remarks = compare_runs(runs[0], b).remarks
        [remark] = [remark for remark in remarks if "not checked" in remark]
        assert remark.endswith(f" of {which}.")
    assert not any("not checked" in text for text in compare_runs(checked, checked).remarks)
