"""The text that ends a run, letter by letter and in its words."""

from __future__ import annotations

import re
from typing import Any

import pytest

from etdeploy.bench.records.performance import Spread
from etdeploy.bench.records.record import SizeRecord
from etdeploy.bench.records.stored import StoredRun
from etdeploy.bench.statistics import summarize
from etdeploy.devices.base import DeviceState
from etdeploy.program.model import Delegate, Operator
from etdeploy.report.terminal.latencies import WIDTH
from etdeploy.report.terminal.summary import summary
from tests.support.bench_values import (
    SIMULATED,
    UNCOMPARED,
    make_check,
    make_device,
    make_loss,
    make_program,
    make_results,
    make_run,
    make_series,
)


def test_whole_text() -> None:
    assert (
        summary(make_run(notes=("Something to know.",)))
        == """\
mlp on host: 1.100 ms per inference, 909 inferences per second

  latency             ms
  ---------------  -----
  median           1.100  of 5 inferences in 1 start, 2 threads
  min              1.000
  mean             1.080
  p90              1.160
  p99              1.196
  stddev           0.084  8 % of the median
  first inference  2.500  before any warm-up
  load             8.357  program and method, after 0.2100 ms for checking the file

  spread       7.6 % within a start; between starts it is not known: --runs 5 shows it
  warm-up      5 inferences
  outputs      correct: the output is within tolerance of the model's
               largest error 1.2e-07 (tolerance 0.0001), cosine similarity 1 (at least 0.9999)
  peak memory  32.7 MB resident
  device       Test CPU, Test Linux 1, 2 CPUs
  program      example mlp, xnnpack, 5.5 kB
  runs on      XnnpackBackend takes 8 nodes in 1 partition (80 % of all nodes)
               2 operator calls stay outside, on CPU kernels
               2 x aten::add.out
  runner       runner for linux-x86_64, ExecuTorch 1.5.1+cpu

  note         Something to know.

  files        /out/20261121T084449Z-mlp-host-ab12cd34/record.json
               beside it: outputs, runner.stderr.txt"""
    )


def test_a_simulated_run_shows_no_time() -> None:
    record = {"peak_rss_bytes": None, "notes": ("Something to know.",), "simulated": SIMULATED}
    assert (
        summary(make_run(**record))
        == """\
mlp on host: simulated by Simulator 1.2.3 for NPU9

  latency      simulated, not measured
  outputs      correct: the output is within tolerance of the model's
               largest error 1.2e-07 (tolerance 0.0001), cosine similarity 1 (at least 0.9999)
  device       Test CPU, Test Linux 1, 2 CPUs
  program      example mlp, xnnpack, 5.5 kB
  runs on      XnnpackBackend takes 8 nodes in 1 partition (80 % of all nodes)
               2 operator calls stay outside, on CPU kernels
               2 x aten::add.out
  runner       runner for linux-x86_64, ExecuTorch 1.5.1+cpu

  note         Something to know.

  files        /out/20261121T084449Z-mlp-host-ab12cd34/record.json
               beside it: outputs, runner.stderr.txt"""
    )


def test_the_sizes_of_a_simulated_run_have_a_verdict_and_no_times() -> None:
    short = _size("short", 1.1)
    unnamed = SIMULATED.model_copy(update={"soc": None})
    lines = summary(make_run(sizes=(short,), simulated=unnamed)).splitlines()
    assert lines[0] == "mlp on host: simulated by Simulator 1.2.3"
    assert lines[4].split() == ["short", "tokens", "16", "simulated", "correct"]
    assert not any(" ms" in line for line in lines)


@pytest.mark.parametrize(
    ("median_ms", "shown"),
    [(0.00123, "1.230 µs"), (0.0826, "82.60 µs"), (0.826, "0.8260 ms"), (12.34567, "12.35 ms"),
     (1234.567, "1,234.6 ms")],
)  # fmt: skip
def test_four_significant_digits(median_ms: float, shown: str) -> None:
    text = summary(make_run((median_ms,)))
    number, unit = shown.split()
    assert f": {shown} per inference" in text
    assert re.search(rf"latency +{unit}\n.*\n  median +{number}  of 1 inference ", text)


@pytest.mark.parametrize(
    ("median_ms", "shown"), [(0.0826, "12,107"), (40.0, "25"), (3000.0, "0.333")]
)
def test_inferences_per_second(median_ms: float, shown: str) -> None:
    assert f", {shown} inferences per second" in summary(make_run((median_ms,)))


def test_times_below_the_clock_are_no_error() -> None:
    assert "countless inferences" in summary(make_run((0.0, 0.0)))


def test_the_load_of_an_older_runner_has_the_check_in_it() -> None:
    text = summary(make_run(verify_ms=None))
    assert "program and method, with a thorough check of the file" in text


def test_one_inference_is_not_many() -> None:
    assert " of 1 inference in 1 start, " in summary(make_run((2.0,)))


def _line(run: StoredRun, label: str) -> str:
    [line] = [line for line in summary(run).splitlines() if line.startswith(f"  {label}  ")]
    return line.removeprefix(f"  {label}").strip()


def test_the_spread_between_starts_stands_beside_the_one_within() -> None:
    run = make_run(make_series((1.0, 1.1, 1.2), (1.2,) * 3, (1.3,) * 3))
    assert "  of 9 inferences in 3 starts, 2 threads\n" in summary(run)
    assert _line(run, "spread") == (
        "0.0 % within a start, 8.3 % between 3 starts: medians 1.100, 1.200, 1.300 ms"
    )
    many = make_run(make_series(*((0.01 + 0.001 * i,) for i in range(11))))
    assert _line(many, "spread").endswith("22 % between 11 starts: medians from 10.00 to 20.00 µs")


def test_what_a_warm_up_took() -> None:
    steady = [make_results(warmup=n, steady=True) for n in (400, 1200)]
    run = make_run(make_series(*steady))
    assert _line(run, "warm-up") == "400 to 1,200 inferences, until the times had stopped falling"
    falling = make_run(make_series(steady[0], make_results(warmup=400, steady=False)))
    assert _line(falling, "warm-up") == "400 inferences; the times were STILL FALLING"


def test_wrong_outputs_are_told_one_by_one() -> None:
    wrong = [
        make_check(name=f"output_{i}", max_abs_error=0.5, within_tolerance=False) for i in range(7)
    ]
    text = summary(make_run(outputs=(make_check(), *wrong)))
    assert "WRONG: 7 of 8 outputs are not what the model gives" in text
    assert "output_4 (float32): largest error 0.5 (tolerance 0.0001)" in text
    assert "output_5" not in text
    assert "and 2 more" in text
    assert "correct" not in text


def _size(name: str, median_ms: float, **changes: Any) -> SizeRecord:
    values: dict[str, Any] = {
        "name": name,
        "sizes": {"tokens": 16},
        "shapes": {},
        "latency_ms": summarize((median_ms,)),
        "first_inference_ms": 2.5,
        "peak_rss_bytes": 7_900_000,
        "outputs": (make_check(),),
        "runs": (series := make_series((median_ms,))).starts,
        "spread": series.spread,
    }
    return SizeRecord(**(values | changes))


def test_every_size_has_a_line() -> None:
    wrong = make_check(within_tolerance=False, max_abs_error=3.0)
    spread = Spread(within_percent=1.0, between_percent=4.0)
    sizes = (_size("short", 1.1, spread=spread), _size("long", 22.0, sizes={}, outputs=(wrong,)))
    lines = summary(make_run(sizes=sizes)).splitlines()
    assert "1.100 ms per inference at short," in lines[0]
    table = [line.split() for line in lines if line.lstrip().startswith(("short", "long"))]
    assert table == [
        ["short", "tokens", "16", "1.100", "4.0", "%", "2.500", "7.9", "MB", "correct"],
        ["long", "the", "example's", "22.000", "-", "2.500", "7.9", "MB", "WRONG"],
    ]
    assert any("output_0 at long (float32): largest error 3" in line for line in lines)
    assert max(map(len, lines[:-2])) <= 100


def test_unchecked_outputs_are_not_called_correct() -> None:
    text = summary(make_run(outputs=()))
    assert "not checked: there are no expected outputs" in text
    assert "correct" not in text


def test_outputs_without_numbers_are_not_called_correct() -> None:
    text = summary(make_run(outputs=(UNCOMPARED,)))
    assert (
        "  outputs      NOT COMPARED: output_9 (float32): every value is NaN or infinite, in the "
        "model's own\n               output too\n"
    ) in text
    assert "correct" not in text
    both = summary(make_run(outputs=(make_check(), UNCOMPARED)))
    assert "NOT COMPARED: output_9" in both
    assert "correct: the other output is within tolerance" in both


def test_the_output_that_uses_most_of_its_tolerance_is_shown() -> None:
    large = make_check(max_abs_error=0.5, tolerance_max_abs=10.0)
    close = make_check(name="output_1", max_abs_error=9e-5)
    text = " ".join(summary(make_run(outputs=(large, close))).split())
    assert "all 2 outputs are within tolerance" in text
    assert "output_1, which is nearest to its limits: largest error 9e-05" in text
    turned = make_check(name="output_2", cosine_similarity=0.99995)
    spread = make_check(name="output_3", rms_error=0.099, tolerance_rms=0.1, tolerance_cosine=None)
    for others, nearest in (((turned,), "output_1"), ((turned, spread), "output_3")):
        text = summary(make_run(outputs=(large, close, *others)))
        assert f"{nearest}, which is nearest" in text


def test_a_phone_is_described_with_its_state() -> None:
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
    text = summary(make_run(device=device))
    assert (
        "  device       Google Pixel 8, Tensor G3, Android 16, 9 CPUs, 12.0 GB, "
        "battery 31 to 34 °C, thermal\n               status none"
    ) in text


def test_many_operators_are_cut_short() -> None:
    operators = tuple(Operator(name=f"aten::op{i}.out", calls=9 - i) for i in range(9))
    text = summary(make_run(program=make_program(operator_calls=operators, delegates=())))
    assert "nothing is delegated: 45 operator calls run on CPU kernels" in text
    assert "9 x aten::op0.out" in text
    assert "and 3 more operators" in text


def test_a_backend_without_node_counts_claims_no_share() -> None:
    delegates = (Delegate(backend_id="QnnBackend", size_bytes=10),)
    text = summary(make_run(program=make_program(delegates=delegates, operator_calls=())))
    assert "QnnBackend takes 1 partition\n" in text


def test_no_line_is_wider_than_the_limit_and_none_ends_in_blanks() -> None:
    names = tuple(Operator(name=f"aten::a_rather_long_name_{i}.out", calls=i) for i in range(9))
    run = make_run(
        notes=("A sentence that goes on and on. " * 12,),
        program=make_program(operator_calls=names, source="file.py:" + "factory" * 5),
    )
    for line in summary(run).splitlines():
        assert len(line) <= WIDTH
        assert line == line.rstrip()


def test_the_loss_of_quantisation_stands_below_the_outputs() -> None:
    losses = (make_loss(cosine_similarity=0.83, sqnr_db=4.9), make_loss(name="best"))
    text = summary(make_run(program=make_program(quantization_loss=losses)))
    quality = " ".join(text.partition("  quality ")[2].partition("  peak memory")[0].split())
    assert quality.startswith("QUANTISATION LOSS: scores against")
    assert "cosine 0.8300, SQNR 4.9 dB" in quality
    assert "best against the unquantised model: cosine 0.9990" in quality
