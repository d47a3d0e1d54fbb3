"""PyTorch's benchmark JSON, with the types of the database's columns."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from etdeploy.bench.records.stored import StoredRun
from etdeploy.report.formats import BEGINNINGS, Format
from etdeploy.report.report_data import ReportData
from etdeploy.report.rows import pytorch_oss
from tests.support.bench_values import FOLDER, SIMULATED, make_run
from tests.support.report_values import make_report_data
from tests.support.text_values import make_text_record


def _read(run: ReportData) -> list[dict[str, Any]]:
    text = pytorch_oss([run])
    assert text.startswith(BEGINNINGS[Format.PYTORCH_OSS])
    found: list[dict[str, Any]] = json.loads(text)
    return found


def _values(run: ReportData) -> dict[str, list[float]]:
    return {each["metric"]["name"]: each["metric"]["benchmark_values"] for each in _read(run)}


def test_metrics_have_a_value_for_each_start() -> None:
    run = make_report_data()
    values = _values(run)
    assert list(values) == [
        "load_status", "model_load_time(ms)", "avg_inference_latency(ms)",
        "trimmean_inference_latency(ms)", "first_inference_latency(ms)", "ram_pss_usage(mb)",
        "peak_inference_mem_usage(mb)",
    ]  # fmt: skip
    assert values["load_status"] == [0]
    starts = run.record.workload.runs
    assert values["avg_inference_latency(ms)"] == [start.mean_ms for start in starts]
    assert values["ram_pss_usage(mb)"] == [pytest.approx(110e6 / 1024**2)]


def test_the_trimmed_mean_is_that_of_the_middle() -> None:
    samples = (100.0, *range(1, 10))
    values = _values(ReportData(make_run(samples), "mlp"))
    # Of ten, the shortest and the longest are left out.
    assert values["trimmean_inference_latency(ms)"] == [sum(range(2, 10)) / 8]


@pytest.mark.parametrize("run", [make_report_data(), ReportData(make_run(), "mlp")])
def test_types_are_the_database_s(run: ReportData) -> None:
    for each in _read(run):
        for part in ("benchmark", "model", "metric"):
            assert all(isinstance(v, str) for v in each[part]["extra_info"].values())
        assert isinstance(each["metric"]["target_value"], int | float)
        assert all(isinstance(v, int | float) for v in each["metric"]["benchmark_values"])
        [runner] = each["runners"]
        for key in ("cpu_count", "avail_mem_in_gb", "total_mem_in_gb"):
            assert isinstance(runner.get(key, 0), int)
        assert each["benchmark"]["name"] == "ExecuTorch"
        assert each["benchmark"]["mode"] == "inference"


def test_a_simulated_run_has_no_times() -> None:
    assert list(_values(ReportData(make_run(simulated=SIMULATED), "mlp"))) == ["load_status"]


def test_nan_is_left_out() -> None:
    values = _values(ReportData(make_run((math.nan, 1.0)), "mlp"))
    assert "avg_inference_latency(ms)" not in values
    assert values["trimmean_inference_latency(ms)"] == [1.0]


def test_generated_text_has_rates_that_say_of_how_many_tokens() -> None:
    run = ReportData(StoredRun(FOLDER, make_text_record()), "tiny")
    values = _values(run)
    assert list(values) == [
        "load_status", "model_load_time(ms)", "peak_inference_mem_usage(mb)", "token_per_sec",
        "prefill_token_per_sec", "time_to_first_token(ms)",
    ]  # fmt: skip
    assert values["token_per_sec"] == [pytest.approx(198, abs=1)]
    assert len(values["time_to_first_token(ms)"]) == 6
    about = _read(run)[-1]["metric"]["extra_info"]
    assert about == {"method": "decode", "prompt_tokens": "8", "new_tokens": "4", "depth": "0"}
