"""Records of generated text are written and read like others."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.bench.generation.work import WorkPoint
from etdeploy.bench.records.generation import TextGeneration
from etdeploy.bench.records.stored import RECORD_FILE, load_record
from etdeploy.core.errors import UsageError
from tests.support.bench_values import make_record
from tests.support.text_values import make_text_record, make_text_workload, make_work


def test_what_was_written_is_read(tmp_path: Path) -> None:
    record = make_text_record()
    record.save(tmp_path / RECORD_FILE)
    assert load_record(tmp_path / RECORD_FILE) == record
    assert record.model_dump(mode="json")["workload"]["kind"] == "generation"


def test_what_is_not_whole_names_the_key_as_the_record_has_it(tmp_path: Path) -> None:
    content = make_text_record().model_dump_json().replace('"new_tokens":4', '"new_tokens":"x"')
    (tmp_path / RECORD_FILE).write_text(content)
    with pytest.raises(UsageError, match=r"not complete: workload\.points\.0\.new_tokens: "):
        load_record(tmp_path / RECORD_FILE)


def test_a_run_is_compared_by_its_tokens_or_else_by_its_first_ones() -> None:
    tokens = make_text_workload()
    assert (tokens.metric, tokens.sample) == ("token_ms", "token")
    assert tokens.timed == tokens.first.token_ms
    prompts = make_text_workload(work=make_work(WorkPoint((1, 2), 1, 0, 0, 2)))
    assert (prompts.metric, prompts.sample) == ("ttft_ms", "first token")
    assert prompts.timed == prompts.first.first_token_ms


def test_only_a_run_of_inferences_has_some() -> None:
    assert make_record().inference == make_record().workload
    with pytest.raises(TypeError, match="the workload is generation"):
        _ = make_text_record().inference


def test_points_have_a_name_for_people_and_one_for_metrics() -> None:
    workload = make_text_workload(work=make_work(WorkPoint((1, 2), 3, 1024, 0, 1)))
    assert isinstance(workload, TextGeneration)
    assert workload.first.label == "prompt 2, new 3, depth 1,024"
    assert workload.first.key == "p2-n3-d1024"
