"""Generated text in the history."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from etdeploy.bench.generation_workload import WorkPoint
from etdeploy.bench.records.generation import EncodedInput
from etdeploy.bench.records.record import RunRecord
from etdeploy.bench.statistics import summarize
from etdeploy.history.check import FindingKind, judge_metrics
from etdeploy.history.entry import entry_from
from etdeploy.history.series import (
    Series,
    explain_differences,
    format_metric,
    metric_title,
    read_metrics,
    series_from,
)
from tests.support.bench_values import SIMULATED, make_program, make_record
from tests.support.text_values import (
    make_evaluation,
    make_text_check,
    make_text_record,
    make_text_workload,
    make_work,
)

GRID = {"prompt_tokens": [8], "new_tokens": [4], "depth": [0]}


def _record(grid: dict[str, Any] | None = None, **changes: Any) -> RunRecord:
    content = {"model": {"hf": "org/tiny"}, "benchmark": {"generation": {**GRID, **(grid or {})}}}
    recipe = make_record().recipe.model_copy(update={"content": content})
    return make_text_record(recipe=recipe, **changes)


def test_the_first_point_gives_the_numbers_and_others_are_named() -> None:
    work = make_work(WorkPoint(tuple(range(8)), 4, 0, 1, 2), WorkPoint((1,) * 16, 1, 128, 0, 1))
    metrics = read_metrics(_record(workload=make_text_workload(work=work)))
    assert list(metrics) == [
        "token_ms", "ttft_ms", "ttft_ms@p16-n1-d128", "load_ms", "peak_rss_bytes", "program_bytes",
    ]  # fmt: skip
    assert metrics["token_ms"] == pytest.approx(5.055, abs=0.001)
    assert metric_title("ttft_ms@p16-n1-d128").endswith(" at p16-n1-d128")
    assert format_metric("token_ms", metrics["token_ms"]) == "5.055 ms"
    assert read_metrics(_record(simulated=SIMULATED)) == {}


def test_speculation_makes_another_series_and_none_does_not() -> None:
    plain = series_from(_record())
    assert series_from(_record({"speculation": "none"})).key == plain.key
    kinds = ("lookup", "model:draft/program.pte", "model:other/program.pte")
    keys = {series_from(_record({"speculation": kind})).key for kind in kinds}
    assert len({plain.key, *keys}) == 4


def test_an_encoder_has_its_own_time() -> None:
    encoder = EncodedInput(
        is_real=True, preprocess_ms=12.0, encode_ms=summarize([150.0, 140.0, 130.0]), audio_s=2.0,
        real_time_factor=0.08,
    )  # fmt: skip
    workload = make_text_workload().model_copy(update={"encoder": encoder})
    metrics = read_metrics(_record(workload=workload))
    assert metrics["encode_ms"] == 140.0
    assert format_metric("encode_ms", 140.0) == "140.0 ms"


def test_how_tokens_are_made_may_change_within_a_series() -> None:
    assert series_from(_record(program=make_program(method="decode_64"))).key == (
        series_from(_record(program=make_program(method="decode"))).key
    )


def test_another_input_is_another_series() -> None:
    def of(text: str) -> Series:
        record = _record()
        benchmark = {**record.recipe.content["benchmark"], "input": {"text": text}}
        content = {**record.recipe.content, "benchmark": benchmark}
        recipe = record.recipe.model_copy(update={"content": content})
        return series_from(record.model_copy(update={"recipe": recipe}))

    assert of("The house is small.").key == of("The house is small.").key
    assert of("The house is small.").key != of("A long text.").key


def test_other_numbers_of_tokens_are_another_series() -> None:
    other = series_from(_record({"depth": [64]}))
    assert other.metric == "token_ms"
    assert other.key != series_from(_record()).key
    assert any("tokens" in text for text in explain_differences(other, series_from(_record())))


def test_slower_tokens_are_a_regression() -> None:
    earlier = [entry_from(_record(base_ms=5.0 + i / 100))[0] for i in range(8)]
    run = replace(entry_from(_record(base_ms=6.0))[0], run_id="new")
    found = {finding.metric: finding.kind for finding in judge_metrics(run, earlier, 5.0)}
    assert found["token_ms"] is FindingKind.REGRESSED
    assert found["load_ms"] is FindingKind.NO_DIFFERENCE


def test_the_perplexity_is_followed_by_its_text() -> None:
    workload = make_text_workload().model_copy(update={"evaluation": make_evaluation(14.5)})
    metrics = read_metrics(_record(workload=workload))
    assert metrics["perplexity@text.txt-abababab"] == 14.5  # of the quantized model
    assert metric_title("perplexity@text.txt-abababab").endswith(" at text.txt-abababab")
    assert format_metric("perplexity@text.txt-abababab", 14.512) == "14.51"
    undefined = workload.model_copy(update={"evaluation": make_evaluation(perplexity=None)})
    assert not any("perplexity" in name for name in read_metrics(_record(workload=undefined)))


def test_a_wrong_text_is_no_basis_for_a_comparison() -> None:
    for within, ok in ((True, True), (False, False)):
        text = make_text_check(within_tolerance=within)
        workload = make_text_workload().model_copy(update={"texts": (text,)})
        assert entry_from(_record(workload=workload))[0].outputs_ok is ok
    assert entry_from(_record())[0].outputs_ok is None
