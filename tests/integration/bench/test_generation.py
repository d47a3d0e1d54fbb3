"""A program that generates text, measured on this machine with the real runner."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from etdeploy.bench.bundle import make_bundle
from etdeploy.bench.generation_request import write_request
from etdeploy.bench.generation_workload import make_workload
from etdeploy.bench.measure import PreparedMeasurement, measure
from etdeploy.bench.records.generation import TextGeneration
from etdeploy.bench.records.stored import StoredRun, load_run
from etdeploy.bench.verdict import require_match
from etdeploy.cache.workspace import Workspace
from etdeploy.compare.runs import compare_runs
from etdeploy.core.errors import MismatchError
from etdeploy.devices.local.device import open_host
from etdeploy.profile.profiled import profiles_of
from etdeploy.program.folder import EXPORT_INFO, PROGRAM_FILE, PROGRAM_INFO, Provenance
from etdeploy.program.generation import ExpectedText, Generation, GreedyText
from etdeploy.program.inspect import inspect_file
from etdeploy.program.model import Program
from etdeploy.report.run import summary
from etdeploy.report.terminal import render
from etdeploy.runner.model import BuiltRunner
from tests.support.generation_values import CAPACITY, METHODS, PROMPTS, VOCABULARY
from tests.support.runtime_runs import build, plan_here, text_programs
from tests.support.text_values import make_loaded
from tests.support.tokenizers import byte_level, save

pytestmark = pytest.mark.integration

__all__ = ["text_programs"]


@dataclass(frozen=True)
class Chain:
    """A program folder and a runner; measured on this machine."""

    folder: Path
    generation: Generation
    program: Program
    runner: BuiltRunner

    def measure(self, generation: dict[str, Any], **benchmark: Any) -> StoredRun:
        loaded = make_loaded(benchmark={"generation": generation, **benchmark})
        program_folder, device = self.folder / "program", open_host(self.folder / "device")
        made = Provenance.load(program_folder / EXPORT_INFO)
        made = made.model_copy(update={"generation": self.generation})
        made.save(program_folder / EXPORT_INFO)
        work = make_workload(loaded, self.generation, program_folder)
        request = write_request(work, self.folder / "generation")
        bundle = make_bundle(
            self.runner, program_folder, made, self.folder / "inputs.txt", request=request
        )
        device.push(bundle)
        prepared = PreparedMeasurement(bundle, loaded, program_folder, self.program, self.runner)
        return measure(device, prepared, self.folder / "out")

    def knowing(self, *texts: ExpectedText) -> Chain:
        """The same with texts that the program has to give."""
        return replace(self, generation=self.generation.model_copy(update={"expected": texts}))

    def expected(self) -> ExpectedText:
        """What the eager model makes of the second prompt."""
        return ExpectedText.load(self.folder / "made" / "expected.json")

    def texts(self) -> list[list[int]]:
        found: list[list[int]] = json.loads((self.folder / "made" / "texts.json").read_text())
        return found


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory, text_programs: Path) -> Chain:
    folder = tmp_path_factory.mktemp("chain")
    shutil.copytree(text_programs, folder / "made")
    (folder / "program").mkdir()
    (folder / "made" / "static.pte").rename(folder / "program" / PROGRAM_FILE)
    save(byte_level(), folder / "program" / "tokenizer")
    generation = Generation(
        methods=METHODS["static"], vocabulary=VOCABULARY, context=CAPACITY, stop_ids=(47,),
        tokenizer="tokenizer", model="tiny", path="fast", path_reason="made by hand",
    )  # fmt: skip
    provenance = Provenance(source="tiny", method="decode", generation=generation)
    provenance.save(folder / "program" / EXPORT_INFO)
    program = inspect_file(folder / "program" / PROGRAM_FILE)
    program.save(folder / "program" / PROGRAM_INFO)
    return Chain(folder, generation, program, build(plan_here(program), Workspace.default()))


def test_the_record_has_the_eager_models_tokens_and_their_times(chain: Chain) -> None:
    grid = {"prompt_tokens": [4, 20], "new_tokens": [1, 8], "depth": [0, 5]}
    run = chain.measure(grid, runs=2, iterations=14)
    record, workload = run.record, run.record.workload
    assert isinstance(workload, TextGeneration)
    assert [point.counted for point in workload.points][:3] == [(4, 1, 0), (4, 1, 5), (4, 8, 0)]
    assert all(len(point.token_ids) == point.new_tokens for point in workload.points)
    assert {point.distinct for point in workload.points} == {1}
    for point in workload.points:
        assert 0 < point.ttft_ms < 1000
        assert (point.decode_tokens_per_s or 1) > 0
    assert [start.samples for start in workload.runs] == [4, 4]
    assert record.memory
    assert record.peak_rss_bytes
    assert load_run(run.folder) == run
    assert "decode tok/s" in render(summary(run))
    again = chain.measure(grid, runs=2, iterations=14)
    found = compare_runs(run, again)
    # Where other work ran, runs that did not take turns are not compared.
    same = "Both texts have the same 1 token." in found.remarks
    assert same or "other work" in found.reason


def test_a_prompt_is_continued_as_the_eager_model_continues_it(chain: Chain) -> None:
    whole = chain.texts()[1]
    prompt = _text_of(PROMPTS[1])
    run = chain.measure({"prompt": prompt, "new_tokens": [8]}, runs=1, memory=False)
    workload = run.record.workload
    assert isinstance(workload, TextGeneration)
    assert list(workload.first.token_ids) == whole[len(PROMPTS[1]) :][:8]
    assert workload.first.text == _text_of(workload.first.token_ids)
    assert workload.first.text in render(summary(run))


def test_a_text_that_is_another_than_the_models_is_wrong(chain: Chain) -> None:
    expected = chain.expected()
    first, second, *others = expected.original.tokens
    # The second choice is taken for the most probable token.
    ids = (second.ids[1], second.ids[0], *second.ids[2:])
    tokens = (first, second.model_copy(update={"ids": ids}), *others)
    wrong = expected.model_copy(update={"original": GreedyText(tokens=tokens)})
    grid = {"prompt_tokens": [4], "new_tokens": [2], "temperature": 3}
    run = chain.knowing(expected, wrong).measure(grid, runs=1, memory=False)
    workload = run.record.workload
    assert isinstance(workload, TextGeneration)
    assert [(text.whole, text.wrong_token) for text in workload.texts] == [(True, None), (False, 2)]
    with pytest.raises(MismatchError, match=r"text_1 .* token 2 of 16"):
        require_match(run)


def test_a_cache_that_is_wrong_after_some_tokens_is_found(chain: Chain) -> None:
    expected = chain.expected()
    grid = {"prompt_tokens": [4], "new_tokens": [2]}
    run = chain.knowing(expected).measure(grid, runs=1, memory=False, profile=False)
    [text] = run.record.workload.texts  # type: ignore[union-attr]
    assert (text.within_tolerance, text.compared_tokens) == (True, 16)
    broken = replace(chain, folder=chain.folder / "broken")
    shutil.copytree(chain.folder / "program", broken.folder / "program")
    shutil.copyfile(
        chain.folder / "made" / "forgetful.pte", broken.folder / "program" / PROGRAM_FILE
    )
    run = broken.knowing(expected).measure(grid, runs=1, memory=False, profile=False)
    [text] = run.record.workload.texts  # type: ignore[union-attr]
    # Up to position 15, `decode_half` takes the tokens; the second of `decode` misses one before.
    assert text.wrong_token == 11
    with pytest.raises(MismatchError, match="from token 11 of 16"):
        require_match(run)


def _text_of(ids: tuple[int, ...]) -> str:
    """Of ids of single bytes."""
    return str(byte_level().decode(list(ids)))


def test_every_method_has_a_profile_at_the_positions_of_the_first_point(chain: Chain) -> None:
    grid = {"prompt_tokens": [10, 4], "new_tokens": [14], "depth": [0]}
    run = chain.measure(grid, runs=1, iterations=13, memory=False)
    workload = run.record.workload
    assert isinstance(workload, TextGeneration)
    where = {method.method: (method.calls, method.positions) for method in workload.methods}
    # Of 10 tokens, 8 are a chunk; the rest and the new ones are taken one by one.
    assert where == {
        "prefill": (1, "0 to 7"), "decode_half": (8, "8 to 15"), "decode": (7, "16 to 22"),
    }  # fmt: skip
    found = profiles_of(run, Workspace.default())
    assert found.method == run.record.program.method == "decode"
    assert found.methods.keys() == where.keys()
    for traced in workload.methods:
        profile = found.methods[traced.method]
        assert (profile.inferences, profile.text) == (traced.calls, traced)
        assert profile.inference_ms == pytest.approx(traced.call_ms, rel=0.01)
        assert profile.outside_delegates == traced.outside_delegates == 1.0
        assert "aten::mm.out" in {operator.name for operator in profile.operators}
