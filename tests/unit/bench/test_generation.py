"""A measurement of a program that generates text, from its bundle to the record."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import etdeploy.bench.measure as measurement_module
from etdeploy.bench.assemble import Revision
from etdeploy.bench.bundle import make_bundle
from etdeploy.bench.generation_request import write_request
from etdeploy.bench.generation_workload import WorkPoint, make_points, make_workload
from etdeploy.bench.measure import PreparedMeasurement, measure
from etdeploy.bench.notes import generation_notes
from etdeploy.bench.records.generation import TextGeneration
from etdeploy.bench.records.stored import StoredRun, load_run
from etdeploy.bench.run_pass import as_inferences
from etdeploy.core.errors import UsageError
from etdeploy.devices.base import Bundle, RunOutcome
from etdeploy.program.model import Method, Program
from tests.support.bench_device import FakeDevice, FakeRun
from tests.support.bench_values import make_program_folder, make_runner
from tests.support.etdumps import make_etdump
from tests.support.text_values import (
    generated,
    make_evaluation,
    make_expected,
    make_generated,
    make_generation,
    make_loaded,
    make_text_workload,
    make_work,
)


@pytest.fixture(autouse=True)
def _revision(monkeypatch: pytest.MonkeyPatch) -> None:
    """git is a process; tests with real parts ask it."""
    monkeypatch.setattr(measurement_module, "revision_of", lambda _: Revision("c0ffee", True))


def _logits(new: int, ids: Sequence[str]) -> list[list[float]]:
    """Those of `make_expected` for the tokens 10, 11 and so on."""
    behind = [{110 + i: -0.1, 210 + i: -0.5} for i in range(new)]
    return [[at.get(int(each), 0.0) for each in ids] for at in behind]


class GeneratingRun(FakeRun):
    """Answers each point of the request with times that its place gives."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        super().__init__((), (), lambda _: None)
        self._sources = files

    def run(self, arguments: Sequence[str], timeout_s: float) -> RunOutcome:
        assert timeout_s > 0
        given = dict(zip(arguments[::2], arguments[1::2], strict=True))
        self.arguments.append(given)
        path = given["--generation"].removeprefix("{bundle}/")
        lines = [shlex.split(line) for line in self._sources[path].read_text().splitlines()]
        ids = next((line[1:] for line in lines if line[0] == "logits"), [])
        start = len(self.arguments)
        runs = []
        for kind, *words in lines:
            if kind == "point":
                name, _, new, repetitions, _ = words
                one = generated(name, float(start), [start / 2] * (int(new) - 1))
                runs += [one] * int(repetitions)
            elif kind == "follow":
                name, new, _ = words
                logits = _logits(int(new), ids)
                runs.append(generated(name, 1.0, [0.5] * (int(new) - 1), logits=logits))
        made = make_generated(*runs).model_dump(mode="json")
        if "--etdump" in given:
            made["generation"]["traced"] = {"decode_64": {"calls": 2, "tokens": 2, "position": 9}}
            call = [("DELEGATE_CALL", 0, 900), ("Method::execute", 0, 1000)]
            self._files[given["--etdump"] + ".decode_64"] = make_etdump(call, call)
        self._files[given["--results"]] = json.dumps(made).encode()
        return RunOutcome(0, None, "", "", 0.25)


class GeneratingDevice(FakeDevice):
    """Has a runner that generates."""

    def __init__(self) -> None:
        super().__init__((), ())

    @contextmanager
    def open_run(self, bundle: Bundle, run_id: str) -> Iterator[FakeRun]:
        self.folder = GeneratingRun({file.path: Path(file.source) for file in bundle.files})
        self.run_ids.append(run_id)
        yield self.folder
        self.closed_runs += 1


def _method(name: str) -> Method:
    return Method(
        name=name, inputs=(), outputs=(), operators=(), delegates=(), instructions=0,
        planned_memory_bytes=0,
    )  # fmt: skip


def _prepared(folder: Path, **sections: Any) -> PreparedMeasurement:
    generation = sections.pop("program", make_generation())
    loaded = make_loaded(**sections)
    program = folder / "program"
    provenance = make_program_folder(program, inputs=(), expected=(), generation=generation)
    runner = make_runner(folder / "runner")
    request = write_request(make_workload(loaded, generation, program), folder / "generation")
    bundle = make_bundle(runner, program, provenance, folder / "inputs.txt", request=request)
    methods = tuple(_method(each.name) for each in generation.methods)
    info = Program(
        schema_version=1, sha256="ab" * 32, size_bytes=100, methods=methods, constant_bytes=0
    )  # fmt: skip
    return PreparedMeasurement(bundle, loaded, program, info, runner)


def _measured(folder: Path, **benchmark: Any) -> tuple[StoredRun, GeneratingDevice]:
    device = GeneratingDevice()
    grid = {"prompt_tokens": [8, 16], "new_tokens": [3], **benchmark.pop("generation", {})}
    program = benchmark.pop("program", make_generation())
    prepared = _prepared(
        folder, benchmark={"generation": grid, "iterations": 4, **benchmark}, program=program
    )
    return measure(device, prepared, folder / "out"), device


def test_the_record_has_every_point_and_start(tmp_path: Path) -> None:
    run, _ = _measured(tmp_path, runs=3)
    record, workload = run.record, run.record.workload
    assert isinstance(workload, TextGeneration)
    assert [point.counted for point in workload.points] == [(8, 3, 0), (16, 3, 0)]
    # Three starts whose tokens take 0.5, 1 and 1.5 ms; 4 iterations are two texts of 2 tokens.
    assert workload.first.token_ms
    assert workload.first.token_ms.samples == (0.5,) * 4 + (1.0,) * 4 + (1.5,) * 4
    assert workload.first.ttft_ms == 2.0
    assert (workload.first_ttft_ms, workload.first.generations) == (2.0, 6)
    assert [start.samples for start in workload.runs] == [4, 4, 4]
    assert {start.warmup for start in workload.runs} == {1}
    assert workload.spread.between_percent == pytest.approx(50)
    assert (record.load_ms, record.program.method) == (3.5, "decode_64")
    assert record.peak_rss_bytes == 9_000_000
    assert [p.iterations for p in record.passes.values()] == [4, 4, 4, 2, 2]
    assert load_run(run.folder) == run


def test_every_method_that_was_traced_has_its_share_outside_of_delegates(tmp_path: Path) -> None:
    run, device = _measured(tmp_path, runs=1)
    assert [given.get("--etdump") for given in device.folder.arguments] == [
        None, None, "etdump.etdp",
    ]  # fmt: skip
    workload = run.record.workload
    assert isinstance(workload, TextGeneration)
    [found] = workload.methods
    assert (found.method, found.where) == ("decode_64", "2 calls at positions 9 to 10")
    assert found.call_ms == pytest.approx(0.001)
    assert found.outside_delegates == pytest.approx(0.1)
    path = run.path(run.record.traces["decode_64"])
    assert path
    assert path.name == "etdump.etdp.decode_64"
    assert path.is_file()


def test_what_does_not_fit_leaves_no_folder(tmp_path: Path) -> None:
    larger = make_loaded(benchmark={"generation": {"prompt_tokens": [8, 4096]}})
    prepared = replace(_prepared(tmp_path), loaded=larger)
    with pytest.raises(UsageError, match="context"):
        measure(GeneratingDevice(), prepared, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_texts_are_compared_with_the_models(tmp_path: Path) -> None:
    # The runner of these tests gives 10, 11 and so on.
    texts = (make_expected(), make_expected((10, 11, 90, 13)))
    program = make_generation(expected=texts, evaluation=make_evaluation())
    run, device = _measured(tmp_path, runs=1, program=program, generation={"temperature": 1})
    assert [given["--generation"] for given in device.folder.arguments] == [
        "{bundle}/generation/timing.txt", "{bundle}/generation/text.txt",
        "{bundle}/generation/memory.txt", "{bundle}/generation/profile.txt",
    ]  # fmt: skip
    workload = run.record.workload
    assert isinstance(workload, TextGeneration)
    assert [(t.name, t.within_tolerance, t.equal_tokens) for t in workload.texts] == [
        ("text_0", True, 3), ("text_1", False, 2),
    ]  # fmt: skip
    assert workload.outputs_compared
    assert [o.within_tolerance for o in workload.all_outputs] == [True, False]
    assert workload.evaluation == make_evaluation()
    assert run.record.files["text"] == "text.json"
    assert load_run(run.folder) == run


def test_what_is_missing_or_by_chance_is_told() -> None:
    workload = make_text_workload()
    odd = workload.first.model_copy(update={"distinct": 2})
    changed = workload.model_copy(update={"points": (odd,)})
    by_chance, no_text = generation_notes(changed, has_tokenizer=True)
    assert "6 generations" in by_chance
    assert "gave 2 different texts" in by_chance
    assert "[llm]'" in no_text


WORK = make_work(WorkPoint(tuple(range(8)), 3, 0, 1, 2), WorkPoint((1, 2, 3, 4), 1, 16, 0, 1))


def test_rates_and_times_are_those_of_the_generations_that_count() -> None:
    first = make_generated(
        generated("warmup-0", 90.0, [70.0, 80.0]),
        generated("point-0", 4.0, [1.0, 3.0]),
        generated("point-0", 6.0, [2.0, 2.0]),
        generated("point-1", 2.0, [], stopped=True),
    )
    second = make_generated(
        generated("warmup-0", 90.0, [70.0, 80.0]),
        generated("point-0", 5.0, [4.0, 4.0], ids=(10, 11, 9)),
        generated("point-1", 4.0, []),
    )
    long, short = make_points(WORK, [first, second], Path())
    assert (long.counted, short.counted) == ((8, 3, 0), (4, 1, 16))
    assert long.first_token_ms.samples == (4.0, 6.0, 5.0)
    assert long.ttft_ms == 5.0
    assert long.prefill_tokens_per_s == pytest.approx(1600)
    assert long.token_ms
    assert long.token_ms.samples == (1.0, 3.0, 2.0, 2.0, 4.0, 4.0)
    # Two tokens in 4, 4 and 8 ms: 500, 500 and 250 per second.
    assert long.decode_tokens_per_s == pytest.approx(500)
    assert (long.generations, long.distinct, long.token_ids) == (3, 2, (10, 11, 12))
    assert (long.stopped, short.stopped) == (False, True)
    assert (short.token_ms, short.decode_tokens_per_s) == (None, None)
    assert short.prefill_tokens_per_s == pytest.approx(1000 * 4 / 3)


def test_a_clock_that_sees_no_time_gives_no_rate() -> None:
    start = make_generated(generated("point-0", 0.0, [0.0]), generated("point-1", 0.0, []))
    long, _ = make_points(WORK, [start], Path())
    assert (long.prefill_tokens_per_s, long.decode_tokens_per_s) == (0.0, 0.0)


def test_where_only_first_tokens_are_generated_their_times_are() -> None:
    results = make_generated(generated("point-0", 4.0, []), generated("point-0", 5.0, []))
    assert as_inferences(results, "prefill").samples_ms == (4.0, 5.0)
