"""The facts of a run, which every report shows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from etdeploy.bench.generation_workload import WorkPoint
from etdeploy.bench.records.generation import (
    DraftRecord,
    EncodedInput,
    SpeculatedCalls,
    TextGeneration,
)
from etdeploy.bench.records.outputs import UndelegatedOperator, UndelegatedTime
from etdeploy.bench.records.performance import (
    Disturbance,
    DisturbanceKind,
    Energy,
    Memory,
    Sustained,
    SustainedPoint,
    WeightsKind,
)
from etdeploy.bench.records.record import RunRecord
from etdeploy.bench.starts import StartSeries
from etdeploy.bench.statistics import summarize
from etdeploy.devices.base import DeviceState
from etdeploy.program.model import Delegate, Operator
from etdeploy.report.document import Fact
from etdeploy.report.facts import (
    disturbance_kinds,
    disturbances,
    generated_text,
    headline,
    original_lines,
    outside_text,
    run_facts,
    text_lines,
)
from tests.support.bench_values import (
    SIMULATED,
    UNCOMPARED,
    make_check,
    make_device,
    make_pass,
    make_program,
    make_record,
    make_results,
    make_series,
)
from tests.support.facts import lacks
from tests.support.text_values import (
    TRACED,
    make_evaluation,
    make_text_check,
    make_text_record,
    make_text_workload,
    make_work,
)


def facts(record: RunRecord) -> dict[str, Fact]:
    return {fact.label: fact for fact in run_facts(record)}


def shown(record: RunRecord, label: str) -> str:
    fact = facts(record)[label]
    return "\n".join((fact.value, *fact.lines))


@pytest.mark.parametrize(
    ("median_ms", "value", "per_second"),
    [(0.00123, "1.230 µs", "813,008"), (0.0826, "82.60 µs", "12,107"),
     (0.826, "0.8260 ms", "1,211"), (12.34567, "12.35 ms", "81"), (40.0, "40.00 ms", "25"),
     (3000.0, "3,000.0 ms", "0.333"),
     (0.0, "0.000 ms", "countless")],
)  # fmt: skip
def test_the_latency_with_its_rate(median_ms: float, value: str, per_second: str) -> None:
    record = make_record((median_ms,))
    found = facts(record)["latency"]
    assert (found.value, found.lines[0].split()[0]) == (value, per_second)
    assert headline(record).startswith(f"{value} per inference, {per_second} ")


def test_the_spread_between_starts_with_that_within() -> None:
    one = facts(make_record())["spread"]
    assert one.value == "unknown"
    assert "--runs 5" in one.lines[0]
    three = make_record(make_series((1.0, 1.1, 1.2), (1.2,) * 3, (1.3,) * 3))
    found = facts(three)["spread"]
    assert found.value == "8.3 %"
    assert found.lines[0].endswith(" 1.100, 1.200, 1.300 ms")
    assert found.lines[1].startswith("0 % ")
    many = make_record(make_series(*((0.01 + 0.001 * i,) for i in range(11))))
    assert "from 10.00 to 20.00 µs" in shown(many, "spread")


@pytest.mark.parametrize(
    ("starts", "text"),
    [
        ([(5, None)], "5 inferences"),
        ([(400, True), (1200, True)], "400 to 1,200 inferences, until the times"),
        ([(400, True), (400, False)], "400 inferences; the times were STILL FALLING"),
    ],
)
def test_the_warm_up(starts: list[tuple[int, bool | None]], text: str) -> None:
    results = [make_results(warmup=number, steady=steady) for number, steady in starts]
    assert shown(make_record(make_series(*results)), "warm-up").strip().startswith(text)


def test_the_load_of_an_older_runner_includes_the_check() -> None:
    assert "after 0.2100 ms" in shown(make_record(), "load")
    assert "after" not in shown(make_record(verify_ms=None), "load")


def _wrong(count: int) -> tuple[Any, ...]:
    wrong = [
        make_check(name=f"output_{i}", max_abs_error=0.5, within_tolerance=False)
        for i in range(count)
    ]
    return (make_check(), *wrong)


LARGE = make_check(max_abs_error=0.5, tolerance_max_abs=10.0)
CLOSE = make_check(name="output_1", max_abs_error=9e-5)
TURNED = make_check(name="output_2", cosine_similarity=0.99995)
SPREAD = make_check(name="output_3", rms_error=0.099, tolerance_rms=0.1, tolerance_cosine=None)


@pytest.mark.parametrize(
    ("outputs", "value", "present", "absent"),
    [
        ((make_check(),), "correct", ("largest error 1.2e-07 (tolerance 0.0001)",), ("all",)),
        (_wrong(7), "WRONG",
         ("7 of 8", "output_4 (float32): largest error 0.5", "and 2 more"),
         ("output_5", "correct")),
        ((), "not checked", ("expected outputs",), ("correct",)),
        ((UNCOMPARED,), "not all compared", ("output_9 (float32)", "NaN"), ("within",)),
        ((make_check(), UNCOMPARED), "not all compared", ("output_9 (float32)", "1 of 2 within"),
         ()),
        ((LARGE, CLOSE), "correct", ("all within", "output_1", "largest error 9e-05"), ()),
        ((LARGE, CLOSE, TURNED), "correct", ("output_1",), ("output_2",)),
        ((LARGE, CLOSE, TURNED, SPREAD), "correct", ("output_3",), ("output_1",)),
    ],
)  # fmt: skip
def test_the_verdict_on_the_outputs(
    outputs: tuple[Any, ...], value: str, present: tuple[str, ...], absent: tuple[str, ...]
) -> None:
    record = make_record(outputs=outputs)
    assert facts(record)["outputs"].value == value
    text = shown(record, "outputs")
    assert all(part in text for part in present), text
    assert not any(part in text for part in absent), text


MEMORY = Memory(peak_rss_bytes=32_700_000, peak_pss_bytes=21_000_000,
                before_load_rss_bytes=4_300_000, planned_bytes=1_100,
                program_resident_bytes=4_096)  # fmt: skip


def _weights(kind: WeightsKind) -> Memory:
    return MEMORY.model_copy(update={"weights": kind})


@pytest.mark.parametrize(
    ("memory", "parts"),
    [
        (MEMORY, ("32.7 MB", "4.3 MB before", "PSS 21.0 MB", "1.1 kB planned")),
        (_weights(WeightsKind.LOADED), ("copied; 4.1 kB of the 5.5 kB",)),
        (_weights(WeightsKind.MAPPED), ("file, 4.1 kB of the 5.5 kB",)),
        (_weights(WeightsKind.BOTH), ("some", "4.1 kB of the 5.5 kB")),
        (None, ("32.7 MB",)),
    ],
)  # fmt: skip
def test_the_memory(memory: Memory | None, parts: tuple[str, ...]) -> None:
    text = shown(make_record(memory=memory), "peak memory")
    assert all(part in text for part in parts), text


def test_a_system_that_reports_no_memory_still_has_the_plan() -> None:
    memory = Memory(peak_rss_bytes=None, planned_bytes=1_100)
    record = make_record(memory=memory, peak_rss_bytes=None)
    assert facts(record)["peak memory"] == Fact("peak memory", ("1.1 kB planned",))
    assert "peak memory" not in facts(make_record(peak_rss_bytes=None))


POINTS = tuple(
    SustainedPoint(seconds=60 * i, inferences_per_s=50 if i < 3 else 25) for i in range(10)
)
WARM = tuple(
    SustainedPoint(seconds=60 * i, inferences_per_s=50, celsius=30.0 + i, khz=2_800_000 - i)
    for i in range(10)
)


def _energy(joules: float) -> dict[str, Energy]:
    energy = Energy(joules_per_inference=joules, watts=4.12, idle_watts=0.9, samples=600)
    return {"energy": energy}


@pytest.mark.parametrize(
    ("changes", "line", "parts"),
    [
        ({}, 0, ("50 % of the rate", "10 min", "from 50 to 25", "30,000 in all")),
        ({}, 1, ("10 % slower after 3 min", "25 % after 3 min")),
        ({}, 2, ("███▅▅▅▅▅▅▅",)),
        ({"retained_percent": 103.0, "end_per_s": 51.5}, 0, ("nothing", "from 50 to 51.5")),
        ({"to_minus_10_percent_s": None}, 1, ("never 10 %",)),
        ({"to_minus_25_percent_s": None}, 1, ("10 % slower after 3 min, never 25 %",)),
        ({"points": WARM}, 2, ("  30 to 39 °C, 2.80 to 2.80 GHz",)),
        (_energy(0.5), 3, ("0.5 J", "4.1 W, 0.9 W before")),
        (_energy(0.0123), 3, ("12 mJ", "estimated")),
        (_energy(0.0000041), 3, ("4.1 µJ", "battery")),
    ],
)
def test_sustained_work(changes: dict[str, Any], line: int, parts: tuple[str, ...]) -> None:
    values: dict[str, Any] = {
        "seconds": 600.0, "inferences": 30_000, "points": POINTS, "start_per_s": 50.0,
        "end_per_s": 25.0, "retained_percent": 50.0, "to_minus_10_percent_s": 180.0,
        "to_minus_25_percent_s": 180.0,
    }  # fmt: skip
    sustained = Sustained(**(values | changes))
    workload = make_record().workload.model_copy(update={"sustained": sustained})
    text = facts(make_record(workload=workload))["sustained"].lines[line]
    assert all(part in text for part in parts), text


def test_a_phone_with_its_state() -> None:
    device = make_device(
        "android:ABC",
        before=DeviceState(battery_celsius=31.2),
        after=DeviceState(battery_celsius=33.8, thermal_status="none"),
        manufacturer="Google",
        model="Pixel 8",
        soc="Tensor G3",
        os="Android 16",
        cpu_count=9,
        memory_bytes=12_000_000_000,
    )
    line = "Tensor G3, Android 16, 9 CPUs, 12.0 GB, battery 31 to 34 °C, thermal status none"
    found = facts(make_record(device=device))["device"]
    assert found.value == "Google Pixel 8"
    assert found.lines[0].endswith(line)


OPERATORS = tuple(Operator(name=f"aten::op{i}.out", calls=9 - i) for i in range(9))
QNN = (Delegate(backend_id="QnnBackend", size_bytes=10),)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({}, ("XnnpackBackend takes 8 nodes in 1 partition (80 %", "2 x aten::add.out")),
        ({"operator_calls": OPERATORS, "delegates": ()},
         ("45 operator calls", "9 x aten::op0.out", "and 3 more operators")),
        # A backend without node counts claims no share.
        ({"operator_calls": (), "delegates": QNN}, ("QnnBackend takes 1 partition",)),
    ],
)  # fmt: skip
def test_where_it_runs(changes: dict[str, Any], parts: tuple[str, ...]) -> None:
    text = shown(make_record(program=make_program(**changes)), "runs on")
    assert all(part in text for part in parts), text
    assert ("%" in text) == ("(80 %" in parts[0])


SUM = UndelegatedOperator(name="aten::sum.out", calls=2, share=0.051, modules=("head",),
                      places=("net.py:3",), reasons=("XNNPACK has no sum",))  # fmt: skip
COPY = UndelegatedOperator(name="aten::clone.out", calls=9, share=0.012, modules=("a", "b"),
                       places=("net.py:3",), reasons=("one", "another"))  # fmt: skip
SMALL = UndelegatedOperator(name="aten::add.out", calls=1, share=0.0009)


@pytest.mark.parametrize(
    ("share", "operators", "is_delegated", "start", "end"),
    [
        (0.07, (SUM, COPY, SMALL), True, "7 % ",
         ": 5.1 % in aten::sum.out (head, net.py:3), since XNNPACK has no sum; 1.2 % in "
         "aten::clone.out (2 modules, net.py:3)"),
        (0.0004, (SMALL,), True, "0.04 % ", " delegates"),
        (0.0004, (SMALL,), False, "", ""),
        (1.0, (SUM,), False, "most ", "(head, net.py:3), since XNNPACK has no sum"),
        (0.3, (COPY,) * 6, True, "30 % ", "; 1.2 % in aten::clone.out (2 modules, net.py:3)" * 3),
    ],
)  # fmt: skip
def test_the_time_outside_of_delegates(
    share: float,
    operators: tuple[UndelegatedOperator, ...],
    is_delegated: bool,
    start: str,
    end: str,
) -> None:
    text = outside_text(UndelegatedTime(share=share, operators=operators), is_delegated)
    assert text.startswith(start)
    assert text.endswith(end)
    assert text.count("clone") == min(4, operators.count(COPY))


def test_the_share_outside_of_delegates_stands_with_what_runs_there() -> None:
    workload = make_record().workload.model_copy(update={"outside": UndelegatedTime(share=0.07)})
    assert "\n7 % of the time" in shown(make_record(workload=workload), "runs on")


def test_a_simulated_run_has_no_times() -> None:
    record = make_record(simulated=SIMULATED)
    assert headline(record).endswith("Simulator 1.2.3 for NPU9")
    assert facts(record)["latency"].value == "simulated"
    unnamed = SIMULATED.model_copy(update={"soc": None})
    assert headline(make_record(simulated=unnamed)).endswith("Simulator 1.2.3")
    assert headline(make_text_record(simulated=SIMULATED)) == headline(record)


BUSY = Disturbance(kind=DisturbanceKind.BUSY, text="Other work took 1.0 of 2 processors.")
SAVING = Disturbance(kind=DisturbanceKind.POWER_SAVING, text="It saved power.")
CLOCK = Disturbance(kind=DisturbanceKind.CLOCK, text="The clock was moved.")


@pytest.mark.parametrize(
    ("starts", "whole", "mark", "lines"),
    [
        (((), ()), (), "", []),
        (((BUSY,), (), (BUSY,)), (BUSY,), "busy", [f"busy in 2 of 3 starts: {BUSY.text}"]),
        (((), (BUSY,), ()), (), "", [f"busy in start 2 of 3: {BUSY.text}"]),
        (((BUSY,), (BUSY,)), (), "", [f"busy in all starts: {BUSY.text}"]),
        (((BUSY, SAVING),), (BUSY, SAVING), "busy, power saving",
         [f"busy: {BUSY.text}", f"power saving: {SAVING.text}"]),
        # A clock that jumped slows nothing down.
        (((CLOCK,),), (CLOCK,), "", [f"clock: {CLOCK.text}"]),
    ],
)  # fmt: skip
def test_disturbances(
    starts: tuple[tuple[Disturbance, ...], ...], whole: tuple[Disturbance, ...], mark: str,
    lines: list[str],
) -> None:  # fmt: skip
    passes = [
        replace(make_pass(number, make_results()), disturbances=found)
        for number, found in enumerate(starts, 1)
    ]
    record = make_record(StartSeries(tuple(passes)), disturbances=whole)
    assert disturbance_kinds(record) == mark
    assert [each.text for each in disturbances(record)] == lines
    assert headline(record).endswith(f" (disturbed: {mark})") == bool(mark)


PROMPT_ONLY = make_text_workload(work=make_work(WorkPoint(tuple(range(8)), 1, 0, 1, 2)))


def test_generated_text_has_rates() -> None:
    record = make_text_record()
    found = facts(record)
    assert headline(record).startswith("198 tokens per second")
    assert headline(record).endswith("(prompt 8, new 4)")
    assert (found["decode"].value, found["prefill"].value) == ("198 tokens/s", "1,598 tokens/s")
    times, medians = found["decode"].lines
    assert times.startswith("5.055 ms per token")
    assert times.endswith("; prompt 8, new 4")
    assert "6 generations" in medians
    assert "3 starts, 2 threads" in medians
    assert found["warm-up"].lines == ("1 generation",)
    assert found["outputs"].value == "not checked"
    assert "method" not in found["program"].lines[0]


def test_a_prompt_alone_has_no_rate_of_decoding() -> None:
    record = make_text_record(workload=PROMPT_ONLY)
    assert headline(record).startswith("first token after 5.005")
    assert "decode" not in facts(record)
    assert "3 starts" in facts(record)["prefill"].lines[1]


def test_huge_pages_and_what_is_not_delegated() -> None:
    workload = make_text_workload(methods=TRACED).model_copy(update={"huge_page_bytes": 2_000_000})
    found = facts(make_text_record(workload=workload))
    assert found["huge pages"].lines[0].startswith("2.0 MB")
    assert found["not delegated"].lines[0].startswith("decode 4.5 %, ")
    assert "prefill 3 %" in found["not delegated"].lines[0]


@pytest.mark.parametrize(
    ("prompt", "text", "stopped", "line"),
    [
        ("Once", "It was\na dark\x1b[31m night.", False, "It was a dark [31m night. ..."),
        ("Once", "It was.", True, "It was."),
        (None, "It was.", False, None),
        ("Once", None, False, None),
    ],
)
def test_the_text_of_a_prompt(
    prompt: str | None, text: str | None, stopped: bool, line: str | None
) -> None:
    workload = make_text_workload()
    point = workload.first.model_copy(update={"text": text, "stopped": stopped})
    workload = workload.model_copy(update={"points": (point,), "prompt": prompt})
    found = facts(make_text_record(workload=workload)).get("text")
    assert (found.lines[0] if found else None) == line
    assert (generated_text(workload) is None) == (line is None)


TIE = {"token_ids": (10, 12), "equal_tokens": 1, "gap": 0.001, "tolerance_gap": 0.002}
PARTING = "text_0: token 2 of 2 is 12 in place of 11"


def _texts(*texts: object, **changes: object) -> TextGeneration:
    return make_text_workload().model_copy(update={"texts": texts, **changes})


@pytest.mark.parametrize(
    ("texts", "starts"),
    [
        ((make_text_check(), make_text_check(name="text_1")), ["token for token the model's"]),
        ((make_text_check(original_ids=(10, 11), original_equal_tokens=2),),
         ["token for token the quantized", "the model gives the same before"]),
        ((make_text_check(**TIE),), ["the model's logits", PARTING]),
        ((make_text_check(**TIE, within_tolerance=False), make_text_check(name="text_1")),
         ["1 of 2 texts is ", PARTING]),
    ],
)  # fmt: skip
def test_the_verdict_on_texts(texts: tuple[Any, ...], starts: list[str]) -> None:
    lines = list(text_lines(_texts(*texts)))
    assert len(lines) == len(starts)
    assert all(line.startswith(start) for line, start in zip(lines, starts, strict=True)), lines


def test_what_quantization_does_to_the_text() -> None:
    same = make_text_check(original_ids=(10, 11), original_equal_tokens=2)
    other = make_text_check(original_ids=(10, 19), original_equal_tokens=1)
    [line] = original_lines([same, other])
    assert "token 2 of 2 on (text_0)" in line


def test_texts_and_their_quality_are_facts() -> None:
    workload = _texts(make_text_check(), evaluation=make_evaluation(14.5))
    found = facts(make_text_record(workload=workload))
    assert found["outputs"].value == "correct"
    assert "(2 tokens)" in found["outputs"].lines[0]
    assert found["quality"].lines[0].startswith("perplexity 14.5 ")


def test_speech_is_measured_against_its_length() -> None:
    encoder = EncodedInput(
        is_real=True, preprocess_ms=12.0, encode_ms=summarize([140.0]), audio_s=2.0,
        real_time_factor=0.1,
    )  # fmt: skip
    workload = make_text_workload().model_copy(update={"encoder": encoder})
    point = workload.first.model_copy(update={"text": "hello", "stopped": True})
    found = facts(make_text_record(workload=workload.model_copy(update={"points": (point,)})))
    assert found["encoder"].value == "140.0 ms"
    assert "12.00 ms" in found["encoder"].lines[1]
    assert found["real time"].value == "0.1 x"
    assert not lacks(found["real time"].lines[0], "200.0 ms", "2 s of speech")
    assert found["text"].lines == ("hello",)
    random = encoder.model_copy(update={"is_real": False, "audio_s": None})
    workload = workload.model_copy(update={"encoder": random, "points": (point,)})
    assert {"text", "real time"}.isdisjoint(facts(make_text_record(workload=workload)))


def test_speculation_names_the_draft() -> None:
    calls = SpeculatedCalls(
        calls=10, verified_calls=9, proposed=27, accepted=18, acceptance_rate=18 / 27,
        tokens_per_call=2.8, draft_ms=250,
    )  # fmt: skip
    workload = make_text_workload()
    point = workload.first.model_copy(update={"speculation": calls})
    draft = DraftRecord(name="small", sha256="a", size_bytes=90_000_000)
    update = {"points": (point,), "draft": draft}
    found = facts(make_text_record(workload=workload.model_copy(update=update)))["speculation"]
    assert found.lines == (
        "2.80 tokens per call, 67 % of 27 proposed tokens accepted, draft 250.0 ms",
        "draft small, 90.0 MB",
    )
