"""The generating code of the app, compiled and run: it does what the runner does."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import executorch
import numpy as np
import pytest

from etdeploy.runner.fingerprint import runner_sources
from etdeploy.runner.generation import GenerationResults, PromptRun, Sampling, request_lines
from tests.support.generation_values import CAPACITY, CHUNK, METHODS, PROMPTS, UNDEFINED
from tests.support.ios_template import Compiled, compile_program, make_app, write_payload
from tests.support.swift import Swift

pytestmark = pytest.mark.integration

_CPP = """
#include <cstdio>
#include <cstdlib>
#include "generation/sampling.h"
int main(int, char** argv) {
  Sampling sampling{std::atof(argv[1]), std::atoll(argv[2]), std::atof(argv[3]),
                    std::strtoull(argv[4], nullptr, 10), std::atof(argv[6]), std::atof(argv[7])};
  std::vector<float> logits;
  for (double logit = 0; std::scanf("%lf", &logit) == 1;)
    logits.push_back(static_cast<float>(logit));
  Sampler sampler(sampling);
  for (long i = std::atol(argv[5]); i != 0; --i) {
    const int64_t token = sampler.choose(logits.data(), logits.size());
    sampler.see({token});
    std::printf("%lld ", (long long)token);
  }
}
"""
Points = Sequence[tuple[Sequence[int], dict[str, Any]]]


class Text:
    """Starts the program on requests, and reads what it left."""

    def __init__(self, compiled: Compiled, folder: Path, **folders: Path) -> None:
        self.compiled = compiled
        self.model = folder / "Model"
        self.documents = folder / "Documents"
        self.documents.mkdir()
        self.folders = {"model": self.model, "documents": self.documents, **folders}
        write_payload(self.model, workload="generation", sizes=[], generation=_language())

    def start(self, *words: str, manner: str = "fine") -> str:
        return self.compiled.run(
            "generate", "/model", "/documents", manner, *words, folders=self.folders
        )

    def ask(
        self,
        points: Points,
        name: str = "dynamic",
        sampling: Sampling | None = None,
        stop: Sequence[int] = (),
        rewind: int | None = None,
        words: Sequence[str] = (),
        manner: str = "fine",
    ) -> str:
        """Starts it on a request; gives what it printed."""
        listed = []
        for i, (prompt, asked) in enumerate(points):
            (self.documents / f"{i} .bin").write_bytes(np.array(prompt, "<i8").tobytes())
            listed.append(PromptRun(name=f"p{i}", path=f"{i} .bin", **asked))
        text = request_lines(METHODS[name], sampling or Sampling(), stop, listed, rewind)
        (self.documents / "request.txt").write_text(text)
        return self.start("request=/documents/request.txt", *words, manner=manner)

    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.documents / "results.json").read_text())
        return found

    def results(self) -> GenerationResults:
        report = self.report()
        assert report["error"] is None
        return GenerationResults.model_validate(report["results"])

    def ids(self) -> list[tuple[int, ...]]:
        return [text.token_ids for text in self.results().generation.runs]


def _language() -> dict[str, Any]:
    return {
        "methods": [method.model_dump() for method in METHODS["dynamic"]],
        "vocabulary": 48,
        "context": CAPACITY,
        "stop_ids": [],
        "bos_id": None,
        "rewind": None,
        "sampling": Sampling().model_dump(),
        "new_tokens": 5,
        "tokenizer": None,
        "chat": None,
    }


@pytest.fixture
def text(generation: Compiled, tmp_path: Path) -> Text:
    return Text(generation, tmp_path)


def _calls(said: str) -> list[tuple[str, int, int]]:
    words = (line.split() for line in said.splitlines() if line.startswith("call"))
    return [(method, int(count), int(position)) for _, method, count, position in words]


def test_the_screens_prompt_gives_the_results_of_a_runner(text: Text) -> None:
    said = text.start("run_id=a1")
    results = text.results()
    assert text.report()["run_id"] == "a1"
    (run,) = results.generation.runs
    assert (run.point, len(run.token_ids), run.stopped) == ("screen", 5, False)
    assert len(run.token_ms) == 4
    assert 0 < sum(run.prefill_ms) <= run.first_token_ms
    assert results.generation.load_methods_ms.keys() == {"prefill", "decode"}
    assert said.splitlines()[:2] == ["load prefill", "load decode"]
    # The last new token is chosen and not fed back.
    assert _calls(said) == [("prefill", 3, 0), *(("decode", 1, at) for at in range(3, 7))]


def test_a_prompt_is_taken_in_the_calls_that_take_the_most(text: Text) -> None:
    long = [1] * (2 * CHUNK + 3)
    said = text.ask([(long, {"new_tokens": 1})])
    assert _calls(said) == [("prefill", 8, 0), ("prefill", 8, 8), ("prefill", 3, 16)]
    said = text.ask([(long, {"new_tokens": 1})], "static")
    # A rest of a fixed chunk is padded, up to its last token. If it is short, or if padding would
    # overwrite earlier tokens, it goes one by one, by the method with the smallest capacity.
    whole = [("prefill", 8, 0), ("prefill", 8, 8)]
    assert _calls(said) == [*whole, ("prefill", 8, 16), ("decode", 1, 18)]
    said = text.ask([(long, {"new_tokens": 1})], "static", rewind=8)
    assert _calls(said) == [*whole, *(("decode", 1, at) for at in range(16, 19))]
    said = text.ask([(long[: CHUNK + 2], {"new_tokens": 1})], "static")
    assert _calls(said) == [whole[0], ("decode_half", 1, 8), ("decode_half", 1, 9)]
    said = text.ask([([1], {"new_tokens": 18})], "static")
    assert [name for name, _, _ in _calls(said)] == ["decode_half"] * 16 + ["decode"] * 2


def test_the_cache_is_filled_once_or_where_a_ring_has_lost_what_is_needed(text: Text) -> None:
    points: Points = [((3, 1, 4), {"new_tokens": 6, "depth": 11, "repetitions": 3})]
    fills = {}
    for rewind in (None, 8, 7):  # from 19 to 11, and no further
        fills[rewind] = [at for _, _, at in _calls(text.ask(points, rewind=rewind))].count(0)
        assert len(set(text.ids())) == 1
    assert fills == {None: 1, 8: 1, 7: 3}


def test_a_stop_token_ends_the_text(text: Text) -> None:
    text.ask([((3, 1), {"new_tokens": 8})])
    new = text.ids()[0]
    at = next(i for i in range(1, 8) if new[i] not in new[:i])
    text.ask([((3, 1), {"new_tokens": 8})], stop=(new[at],))
    (run,) = text.results().generation.runs
    assert (run.token_ids, run.stopped) == (new[: at + 1], True)


def test_a_person_can_stop_it(text: Text) -> None:
    text.start(manner="stop")
    # Told of the prompt, the first token and the second.
    assert [len(run.token_ids) for run in text.results().generation.runs] == [2]


@pytest.mark.parametrize(
    ("points", "kind", "message"),
    [
        ([((1,) * CAPACITY, {"new_tokens": 2})], "usage",
         "33 tokens do not fit into a context of 32"),
        ([((), {"new_tokens": 2})], "usage", "the prompt has no token"),
    ],
)  # fmt: skip
def test_what_cannot_be_generated_is_told(
    text: Text, points: Points, kind: str, message: str
) -> None:
    assert "call" not in text.ask(points)
    assert text.report()["error"] == {"kind": kind, "message": message}


@pytest.mark.parametrize(
    "line",
    ["method decode decode 0 0 32", "sampling x 0 1.0 0", "point a 0 0 1 p.bin", "rewind -1", "x"],
)
def test_a_wrong_line_of_a_request_is_told(text: Text, line: str) -> None:
    (text.documents / "request.txt").write_text(line + "\n")
    text.start("request=request.txt")
    assert text.report()["error"]["message"] == (
        f"the request /documents/request.txt has the line '{line}'"
    )


def test_sampling_is_the_runners(generation: Compiled, tmp_path: Path) -> None:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    (tmp_path / "main.cpp").write_text(_CPP)
    command = [compiler, "-std=c++17", "-O1", '-DEXECUTORCH_VERSION="0"']
    command += ["-I", str(runner_sources()), "main.cpp", "-o", "draw"]
    subprocess.run(command, cwd=tmp_path, check=True)
    chance = np.random.default_rng(2)
    for case, (temperature, top_k, top_p, *others) in enumerate(
        [(0.0, 0, 1.0), (1.0, 0, 1.0), (0.7, 40, 1.0), (1.3, 0, 0.9), (2.0, 50, 0.8),
         (1.0, 1, 1.0), (1e-300, 0, 1.0), (1.0, 0, 1e-9), (2.0, 0, 0.99, 0.1, 1.3),
         (0.0, 0, 1.0, 0.0, 1.2)]
    ):  # fmt: skip
        logits = chance.normal(0, 3, 500).astype(np.float32)
        logits[chance.integers(0, 500, 40)] = logits[7]  # equals, whose order counts
        logits[11] = -np.inf
        given = "\n".join(f"{value:.17g}" for value in logits)
        words = [
            str(temperature),
            str(top_k),
            str(top_p),
            str(case + 5),
            "300",
            *map(str, others or (0.0, 1.0)),
        ]
        wanted = subprocess.run(
            [str(tmp_path / "draw"), *words], input=given, capture_output=True, text=True,
            check=True,
        ).stdout  # fmt: skip
        assert generation.run("sample", *words, stdin=given) == wanted
        assert len(wanted.split()) == 300


def test_logits_that_are_no_numbers_are_told(generation: Compiled) -> None:
    words = ["sample", "1", "0", "1", "0", "1", "0", "1"]
    assert generation.run(*words, stdin="1\nnan\n2") == "run a logit is NaN\n"
    said = generation.run(*words, stdin="-inf\n-inf")
    assert said == "run the largest logit is -inf\n"


@pytest.fixture
def real(generation: Compiled, text_programs: Path, tmp_path: Path) -> Text:
    """The generating code with ExecuTorch's own runtime, on the runner's test programs."""
    return Text(generation, tmp_path, programs=text_programs)


@pytest.mark.parametrize("name", ["dynamic", "static"])
def test_methods_share_their_cache_and_greedy_text_is_the_eager_models(
    real: Text, text_programs: Path, name: str
) -> None:
    points = [(prompt, {"new_tokens": CAPACITY + 1 - len(prompt)}) for prompt in PROMPTS]
    real.ask(points, name, words=[f"program=/programs/{name}.pte"], manner="real")
    runs = real.results().generation.runs
    texts = [[*prompt, *run.token_ids] for prompt, run in zip(PROMPTS, runs, strict=True)]
    assert texts == json.loads((text_programs / "texts.json").read_text())
    calls = [len(run.prefill_ms) for run in runs]
    assert calls == {"dynamic": [1, 1, 2, 3, 4], "static": [1, 1, 2, 4, 4]}[name]


@pytest.mark.parametrize("number", [1, 2])
def test_threads_are_those_of_executorchs_pool(real: Text, number: int) -> None:
    words = ["program=/programs/dynamic.pte", f"threads={number}"]
    real.ask([((1,), {"new_tokens": 2})], words=words, manner="real")
    assert real.results().threads == number


def test_executorchs_errors_are_told(real: Text) -> None:
    real.start("program=/programs/texts.json", manner="real")
    assert real.report()["error"]["kind"] == "program"
    words = ["program=/programs/dynamic.pte"]
    real.ask([((UNDEFINED,), {"new_tokens": 2})], words=words, manner="real")
    assert real.report()["error"] == {"kind": "run", "message": "a logit is NaN"}


@pytest.mark.nightly
def test_the_golden_tests_of_the_project_compare_with_the_runtime(
    swift: Swift, text_programs: Path, tmp_path: Path
) -> None:
    installed = Path(next(iter(executorch.__path__)))
    app = make_app("generation")
    golden = compile_program(swift, app, tmp_path, executorch=installed, program="golden")
    model = golden.binary.parent / "Model"
    tokens = {"kind": "Tensor", "dtype": "int64", "shape": [1, 3], "path": "inputs/0.bin"}
    logits = {"kind": "Tensor", "dtype": "float32", "shape": [1, 48], "path": "expected/0.bin"}
    size = {"name": "", "inputs": [tokens], "expected": [{**logits, "atol": 1e-4}]}
    write_payload(model, workload="generation", sizes=[size], generation=_language())
    shutil.copy(text_programs / "dynamic.pte", model / "program.pte")
    (model / "inputs/0.bin").write_bytes(np.array([3, 1, 4], "<i8").tobytes())
    (model / "expected/0.bin").write_bytes(np.full(48, 100, "<f4").tobytes())
    *wrong, ended = golden.run().splitlines()
    assert ended == "ended"
    found = [re.fullmatch(r"wrong: logit (\d+) is (\S+), not 100.0", line) for line in wrong]
    values = np.array([float(each[2]) for each in found if each], "<f4")
    assert len(values) == 48
    (model / "expected/0.bin").write_bytes(values.tobytes())
    assert golden.run() == "ended\n"
