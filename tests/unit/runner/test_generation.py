"""The request of a runner that generates text, its results, and the lines of one that listens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from etdeploy.core.errors import RunError
from etdeploy.program.generation import GenerationMethod
from etdeploy.runner.generation import (
    End,
    GenerationResults,
    PromptRun,
    Sampling,
    answer_line,
    generation_arguments,
    listening_arguments,
    parse_event,
    request_lines,
    trace_path,
)
from etdeploy.runner.protocol import load_results, load_results_as

_METHODS = (
    GenerationMethod(name="prefill", role="prefill", max_tokens=128, dynamic=True, capacity=2048),
    GenerationMethod(name="decode", role="decode", max_tokens=1, dynamic=False, capacity=2048),
)
_RUN: dict[str, Any] = {
    "point": "p128",
    "prefill_ms": [12.5],
    "first_token_ms": 12.6,
    "token_ms": [1.5, 1.25],
    "token_ids": [7, 8, 2],
    "stopped": True,
}
_RESULTS: dict[str, Any] = {
    "schema_version": 1,
    "executorch_version": "1.5.1+cpu",
    "started_unix_s": 1_700_000_000,
    "threads": 2,
    "verify_ms": 0.2,
    "load_program_ms": 0.05,
    "rss_after_load_bytes": 5_000_000,
    "peak_rss_bytes": 6_000_000,
    "generation": {"load_methods_ms": {"prefill": 40.0, "decode": 38.5}, "runs": [_RUN]},
}


def test_a_request_has_a_line_for_each_method_and_point() -> None:
    points = (
        PromptRun(name="warmup", new_tokens=1, path="short.bin"),
        PromptRun(name="p128", depth=512, new_tokens=64, repetitions=3, path="ids of it.bin"),
        PromptRun(name="text", new_tokens=8, path="text.bin", follows=True),
    )
    sampling = Sampling(
        temperature=0.1 + 0.2, top_k=40, top_p=0.95, min_p=0.05, repetition_penalty=1.1,
        seed=2**63 - 1,
    )  # fmt: skip
    assert request_lines(_METHODS, sampling, (2, 128001), points, logit_ids=(0, 7)) == (
        "method prefill prefill 128 1 2048\n"
        "method decode decode 1 0 2048\n"
        "sampling 0.30000000000000004 40 0.95 9223372036854775807 0.05 1.1\n"
        "stop 2 128001\n"
        "logits 0 7\n"
        "point warmup 0 1 1 short.bin\n"
        "point p128 512 64 3 ids of it.bin\n"
        "follow text 8 text.bin\n"
    )
    limited = request_lines(_METHODS, sampling, (), points, rewind=129).splitlines()
    assert limited[2:4] == [
        "rewind 129",
        "sampling 0.30000000000000004 40 0.95 9223372036854775807 0.05 1.1",
    ]
    assert "\nsampling 0.0 0 1.0 0 0.0 1.0\nstop\n" in request_lines(
        _METHODS, Sampling(), (), points
    )
    read = request_lines(_METHODS, Sampling(), (), points, load_mode="file").splitlines()
    assert read[2] == "load_mode file"


def test_a_request_names_the_methods_that_verify() -> None:
    methods = [m.model_copy(update={"verify_tokens": 5 * (m.max_tokens > 1)}) for m in _METHODS]
    assert "verify" not in request_lines(methods, Sampling(), (), ())
    verifying = [m.name for m in methods if m.max_tokens > 1]
    lines = request_lines(methods, Sampling(), (), (), speculation="lookup").splitlines()
    assert [line for line in lines if line.startswith("verify")] == [
        f"verify {name} 5" for name in verifying
    ]
    assert "speculation lookup" in lines


def test_the_end_of_an_answer_tells_its_calls() -> None:
    assert parse_event("end stop_token") == End(reason="stop_token")
    counts = {"calls": 9, "verified_calls": 4, "proposed": 20, "accepted": 12}
    assert parse_event("end new_tokens 9 4 20 12") == End(reason="new_tokens", **counts)
    drafted = End(reason="new_tokens", **counts, draft_ms=1.5)
    assert parse_event("end new_tokens 9 4 20 12 1500000") == drafted
    with pytest.raises(ValueError, match="not a line of an answer"):
        parse_event("end new_tokens 9 4")


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (Sampling, {"temperature": float("inf")}),
        (Sampling, {"temperature": -0.5}),
        (Sampling, {"top_k": -1}),
        (Sampling, {"top_p": 0.0}),
        (Sampling, {"top_p": 1.5}),
        (Sampling, {"seed": 2**63}),
        (PromptRun, {"name": "two words", "new_tokens": 1, "path": "p.bin"}),
        (PromptRun, {"name": "p", "new_tokens": 0, "path": "p.bin"}),
        (PromptRun, {"name": "p", "new_tokens": 1, "path": "p.bin\nstop 1"}),
        (PromptRun, {"name": "p", "new_tokens": 1, "path": "p.bin\n"}),
        (PromptRun, {"name": "p", "new_tokens": 1, "depth": -1, "path": "p.bin"}),
        (PromptRun, {"name": "p", "new_tokens": 1, "repetitions": 0, "path": "p.bin"}),
    ],
)
def test_what_the_runner_would_refuse_is_no_request(
    kind: type[Sampling] | type[PromptRun], values: dict[str, Any]
) -> None:
    with pytest.raises(ValidationError):
        kind(**values)


def test_the_command_line_has_what_is_asked_for() -> None:
    plain = generation_arguments("program.pte", "request.txt", "results.json")
    assert plain == (
        "--program", "program.pte", "--generation", "request.txt", "--threads", "0",
        "--results", "results.json",
    )  # fmt: skip
    more = generation_arguments(
        "p", "q", "r", threads=4, stream=True, watched=True, etdump="trace.etdp"
    )
    assert more[4:6] == ("--threads", "4")
    assert more[8:] == ("--stream", "1", "--watch-memory", "1", "--etdump", "trace.etdp")
    assert trace_path("trace.etdp", "decode") == "trace.etdp.decode"
    words = listening_arguments("p.pte", "r.txt", idle_timeout_s=60, threads=2)
    assert words[2:6] == ("--generation", "r.txt", "--threads", "2")
    assert words[words.index("--listen") + 1] == "60"


def test_results_are_read(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(json.dumps(_RESULTS))
    results = load_results_as(GenerationResults, path)
    assert results.generation.load_methods_ms["decode"] == 38.5
    [run] = results.generation.runs
    assert (run.token_ids, run.token_ms, run.stopped) == ((7, 8, 2), (1.5, 1.25), True)
    assert (results.threads, results.peak_rss_bytes) == (2, 6_000_000)
    with pytest.raises(RunError, match="results cannot be read"):
        load_results(path)


@pytest.mark.parametrize(
    "generation",
    [
        {"load_methods_ms": {"decode": 1.0}, "runs": []},
        {"load_methods_ms": {}, "runs": [_RUN]},
        {"load_methods_ms": {"decode": 1.0}, "runs": [_RUN | {"token_ids": []}]},
        {"load_methods_ms": {"decode": 1.0}, "runs": [_RUN | {"prefill_ms": []}]},
    ],
    ids=["no runs", "no methods", "no tokens", "no prefill"],
)
def test_results_without_a_text_are_told(tmp_path: Path, generation: object) -> None:
    path = tmp_path / "results.json"
    path.write_text(json.dumps(_RESULTS | {"generation": generation}))
    with pytest.raises(RunError, match="results cannot be read"):
        load_results_as(GenerationResults, path)


def test_a_line_has_the_sampling_and_the_ids() -> None:
    sampling = Sampling(temperature=0.7, top_k=40, top_p=0.95, seed=2**40)
    words = answer_line(12, 30, sampling, (5, 6)).split(" ")
    assert words == ["answer", "12", "30", "0.7", "40", "0.95", str(2**40), "0.0", "1.0", "5", "6"]
