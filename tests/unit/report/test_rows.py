"""CSV and JSON lines."""

from __future__ import annotations

import csv
import io
import json
import math
from typing import Any

import pytest

from etdeploy.bench.generation_workload import WorkPoint
from etdeploy.bench.records.record import SizeRecord
from etdeploy.bench.records.stored import StoredRun
from etdeploy.report.formats import BEGINNINGS, Format
from etdeploy.report.report_data import ReportData
from etdeploy.report.rows import csv_text, json_lines
from tests.support.bench_values import (
    FOLDER,
    SIMULATED,
    make_loss,
    make_program,
    make_results,
    make_run,
    make_series,
)
from tests.support.report_values import make_report_data, renamed
from tests.support.text_values import make_text_record, make_text_workload, make_work


def _read(*runs: ReportData) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(csv_text(runs))))


def _collect(*arguments: Any, **changes: Any) -> ReportData:
    return ReportData(make_run(*arguments, **changes), "mlp")


def test_every_start_of_every_number_of_threads_is_a_line() -> None:
    rows = _read(make_report_data())
    assert [row["threads"] for row in rows] == ["1"] * 5 + ["2"] * 5 + ["4"] * 5
    assert [row["start"] for row in rows[:5]] == list("12345")
    assert [row["disturbances"] for row in rows[:5]] == ["", "", "", "throttled", ""]


def test_every_size_has_lines() -> None:
    series = make_series(make_results((5.0,), first_inference_ms=9.0))
    size = SizeRecord(
        name="long", sizes={}, shapes={}, latency_ms=series.latency, first_inference_ms=9.0,
        peak_rss_bytes=None, outputs=(), runs=series.starts, spread=series.spread,
    )  # fmt: skip
    [row] = _read(_collect(sizes=(size,)))
    assert (row["size"], row["median_ms"], row["first_inference_ms"]) == ("long", "5.0", "9.0")


def test_a_simulated_run_has_no_times() -> None:
    [row] = _read(_collect(simulated=SIMULATED))
    assert (row["simulated"], row["median_ms"], row["load_ms"]) == ("true", "", "")
    [line] = json_lines([_collect(simulated=SIMULATED)]).splitlines()
    value = json.loads(line)
    assert value["simulated"] == "Simulator 1.2.3"
    assert {value[key] for key in ("median_ms", "avg_ns", "samples_ns", "load_ms")} == {None}


def test_a_cell_is_no_formula() -> None:
    [row] = _read(renamed(_collect(), "=HYPERLINK(A1)"))
    assert row["recipe"] == "'=HYPERLINK(A1)"


def test_a_json_line_has_the_samples_of_each_start_in_ns() -> None:
    text = json_lines([make_report_data(), _collect((1.0, 3.0))])
    assert text.startswith(BEGINNINGS[Format.JSONL])
    full, small = map(json.loads, text.splitlines())
    assert [len(samples) for samples in full["samples_ns"]] == [40] * 5
    assert small["samples_ns"] == [[1_000_000, 3_000_000]]
    assert (small["avg_ns"], small["median_ms"], small["n_runs"]) == (2_000_000, 2.0, 1)


def test_nan_is_null_or_empty() -> None:
    run = _collect((math.nan, 1.0))
    [line] = json_lines([run]).splitlines()
    json.loads(line, parse_constant=lambda name: (_ for _ in ()).throw(ValueError(name)))
    assert json.loads(line)["samples_ns"] == [[None, 1_000_000]]
    [row] = _read(run)
    assert row["mean_ms"] == ""


def test_every_point_of_generated_text_is_a_line() -> None:
    work = make_work(WorkPoint(tuple(range(8)), 4, 0, 1, 2), WorkPoint((1,) * 16, 1, 128, 0, 1))
    record = make_text_record(workload=make_text_workload(work=work))
    run = ReportData(StoredRun(FOLDER, record), "tiny")
    tokens, prompts = _read(run)
    assert (tokens["prompt_tokens"], tokens["new_tokens"], tokens["depth"]) == ("8", "4", "0")
    assert (tokens["samples"], tokens["start"], tokens["size"]) == ("18", "", "")
    assert float(tokens["decode_tokens_per_s"]) == pytest.approx(198, abs=1)
    assert (prompts["depth"], prompts["median_ms"], prompts["decode_tokens_per_s"]) == (
        "128", "", "",
    )  # fmt: skip
    first, second = map(json.loads, json_lines([run]).splitlines())
    assert (first["n_prompt"], first["n_gen"], first["n_depth"], first["n_runs"]) == (8, 4, 0, 3)
    assert first["avg_ts"] == pytest.approx(198, abs=1)
    assert len(first["samples_ns"]) == 18
    assert (second["n_depth"], second["avg_ts"], second["samples_ns"]) == (128, None, [])


def test_a_simulated_run_of_text_has_points_without_times() -> None:
    run = ReportData(StoredRun(FOLDER, make_text_record(simulated=SIMULATED)), "tiny")
    row = json.loads(json_lines([run]))
    assert (row["n_prompt"], "avg_ts" in row) == (8, False)
    assert _read(run)[0]["median_ms"] == ""


def test_the_lowest_measures_of_quantization() -> None:
    losses = (make_loss(), make_loss(cosine_similarity=0.8, sqnr_db=31.0), make_loss(sqnr_db=None))
    run = _collect(program=make_program(quantization_loss=losses))
    [row] = _read(run)
    assert (row["quantization_cosine"], row["quantization_sqnr_db"]) == ("0.8", "27.0")
    assert json.loads(json_lines([run]))["quantization_cosine"] == 0.8
    [plain] = _read(_collect())
    assert plain["quantization_cosine"] == ""
