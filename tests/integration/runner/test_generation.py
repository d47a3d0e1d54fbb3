"""The runner generates text as the eager model does, and tells what it cannot do."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etdeploy.bench.chat_process import ChatProcess
from etdeploy.bench.text_generator import (
    GenerationOutput,
    TextGenerator,
    open_generator,
)
from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import DeviceError, RunError
from etdeploy.devices.registry import open_device
from etdeploy.program.generation import Draft, Generation, LoadMode
from etdeploy.program.inspect import inspect_file
from etdeploy.recipe.sections.benchmark import Speculation
from etdeploy.runner.etdump import read_summary
from etdeploy.runner.fingerprint import runner_sources
from etdeploy.runner.generation import (
    PromptRun,
    Sampling,
    listening_arguments,
    request_lines,
)
from etdeploy.runner.missing import check_program
from etdeploy.targets.platforms import host_target
from tests.support.bundles import make_bundle
from tests.support.generation_values import (
    CACHE,
    CAPACITY,
    CHUNK,
    METHODS,
    PROMPTS,
    UNDEFINED,
    VOCABULARY,
)
from tests.support.runtime_runs import Run, Start, build, plan_here
from tests.support.runtime_values import make_recipe
from tests.support.talk_values import answered

pytestmark = pytest.mark.integration

_QEMU = shutil.which("qemu-aarch64-static")
needs_cross = pytest.mark.skipif(
    host_target().name != "linux-x86_64" or not (shutil.which("aarch64-linux-gnu-g++") and _QEMU),
    reason="needs Linux x86_64, g++-aarch64-linux-gnu and qemu-user-static",
)
_WARM = Sampling(temperature=8.0, top_k=20, top_p=0.9, seed=3)


@dataclass(frozen=True)
class Programs:
    """The folder of generation_export, and the eager model's texts in it."""

    folder: Path

    @property
    def texts(self) -> list[list[int]]:
        loaded: list[list[int]] = json.loads((self.folder / "texts.json").read_text())
        return loaded

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.pte"


@pytest.fixture(scope="module")
def programs(text_programs: Path) -> Programs:
    return Programs(text_programs)


@pytest.fixture(scope="module")
def runner(programs: Programs, export_workspace: Workspace) -> Start:
    program = inspect_file(programs.path("dynamic"))
    built = build(plan_here(program), export_workspace)
    assert check_program(program, built) == ()
    return Start(built)


def _write(
    folder: Path,
    points: Sequence[tuple[Sequence[int], dict[str, Any]]],
    name: str = "dynamic",
    sampling: Sampling | None = None,
    stop: Sequence[int] = (),
    rewind: int | None = None,
    speculation: Speculation = "none",
    draft: Draft | None = None,
    load_mode: LoadMode = "mmap",
) -> None:
    """Writes a request and its prompts."""
    listed = []
    for i, (prompt, asked) in enumerate(points):
        (folder / f"{i}.bin").write_bytes(np.array(prompt, "<i8").tobytes())
        listed.append(PromptRun(name=f"p{i}", path=f"{i}.bin", **asked))
    cache = CACHE if name == "cached" else None
    text = request_lines(
        METHODS[name], sampling or Sampling(), stop, listed, rewind, static_cache=cache,
        speculation=speculation, draft=draft, load_mode=load_mode,
    )  # fmt: skip
    (folder / "request.txt").write_text(text)


def _whole_context() -> list[tuple[Sequence[int], dict[str, Any]]]:
    return [(prompt, {"new_tokens": CAPACITY + 1 - len(prompt)}) for prompt in PROMPTS]


def _ids(run: Run) -> list[tuple[int, ...]]:
    assert run.exit_code == 0, run.stderr
    return [text.token_ids for text in run.generated.generation.runs]


@pytest.mark.parametrize("name", ["dynamic", "static", "forward"])
def test_greedy_text_is_the_eager_models(
    runner: Start, programs: Programs, tmp_path: Path, name: str
) -> None:
    _write(tmp_path, _whole_context(), name)
    run = runner.generate(programs.path(name), tmp_path)
    texts = [[*prompt, *new] for prompt, new in zip(PROMPTS, _ids(run), strict=True)]
    assert texts == programs.texts
    # A chunk is one call, and so is a rest where a call may take fewer tokens than a chunk. Else,
    # all but the last token of a rest take one call with padding.
    calls = [len(text.prefill_ms) for text in run.generated.generation.runs]
    taken = {"dynamic": [1, 1, 2, 3, 4], "static": [1, 1, 2, 4, 4], "forward": [1, 1, 2, 3, 4]}
    assert calls == taken[name]


def test_keys_and_values_may_be_inputs_and_outputs(
    runner: Start, programs: Programs, tmp_path: Path
) -> None:
    """Of prompts that fill a call, and of those before which there is padding."""
    _write(tmp_path, _whole_context(), "cached")
    run = runner.generate(programs.path("cached"), tmp_path)
    texts = [[*prompt, *new] for prompt, new in zip(PROMPTS, _ids(run), strict=True)]
    assert texts == json.loads((programs.folder / "cached.json").read_text())
    assert texts != programs.texts
    calls = [len(text.prefill_ms) for text in run.generated.generation.runs]
    assert calls == [1, 1, 2, 3, 4]


def test_a_prompt_may_be_all_that_a_program_takes(
    runner: Start, programs: Programs, tmp_path: Path
) -> None:
    """Without a method for single tokens, each is one behind padding; without prefill, the same."""
    wanted = json.loads((programs.folder / "cached.json").read_text())
    for role in ("prefill", "decode"):
        _write(tmp_path, _whole_context(), "cached")
        request = tmp_path / "request.txt"
        lines = request.read_text().splitlines(keepends=True)
        request.write_text("".join(x for x in lines if not x.startswith(f"method {role}")))
        texts = _ids(runner.generate(programs.path("cached"), tmp_path))
        assert [[*p, *new] for p, new in zip(PROMPTS, texts, strict=True)] == wanted


@pytest.mark.parametrize(
    ("name", "line", "facts"),
    [
        ("cached", "static 30 -1.0 0 5", ("input 2", "[1, 1, 8, 38]", "[1, 1, 8, 39]")),
        ("cached", "static 31 -1.0 0", ("takes 6 inputs", "3 outputs")),
        ("cached", "static 31 1.0 0 5", ("a mask's number up to 0",)),
        ("cached", "static 31 -1.0", ("a window from 0 on",)),
        ("dynamic", "static 31 -1.0 0", ("input 1", "[1, 8]")),
    ],
)
def test_a_cache_that_does_not_fit_the_program(
    runner: Start,
    programs: Programs,
    tmp_path: Path,
    name: str,
    line: str,
    facts: tuple[str, ...],
) -> None:
    _write(tmp_path, [((3,), {"new_tokens": 2})], name)
    request = tmp_path / "request.txt"
    lines = [x for x in request.read_text().splitlines() if not x.startswith("static ")]
    request.write_text("\n".join([*lines, line]) + "\n")
    run = runner.generate(programs.path(name), tmp_path)
    assert run.exit_code == 4
    assert all(fact in run.stderr for fact in facts), run.stderr


def test_results_tell_every_measurement(runner: Start, programs: Programs, tmp_path: Path) -> None:
    _write(tmp_path, [((1, 2, 3), {"new_tokens": 4, "repetitions": 2})])
    run = runner.generate(programs.path("dynamic"), tmp_path, threads=1, watched=True)
    results = run.generated
    assert results.generation.load_methods_ms.keys() == {"prefill", "decode"}
    assert min(results.generation.load_methods_ms.values()) > 0
    assert results.threads == 1
    assert 0 < results.rss_after_load_bytes <= results.peak_rss_bytes
    assert results.memory is not None
    assert results.memory.program_resident_bytes
    assert results.processors is not None
    first, second = results.generation.runs
    assert first.token_ids == second.token_ids
    assert (first.point, len(first.token_ids), first.stopped) == ("p0", 4, False)
    assert len(first.token_ms) == 3
    assert 0 < sum(first.prefill_ms) <= first.first_token_ms
    assert min(first.token_ms) > 0
    seconds = sum(text.first_token_ms + sum(text.token_ms) for text in (first, second)) / 1000
    assert results.processors.wall_s >= seconds
    assert run.stdout == ""


def test_a_filled_cache_is_a_longer_prompt(
    runner: Start, programs: Programs, tmp_path: Path
) -> None:
    depth, prompt, new = 11, (3, 1, 4), 6
    filled = [prompt[i % len(prompt)] for i in range(depth)]
    _write(
        tmp_path,
        [
            (prompt, {"new_tokens": new, "depth": depth, "repetitions": 2}),
            ([*filled, *prompt], {"new_tokens": new}),
        ],
    )
    run = runner.generate(programs.path("dynamic"), tmp_path)
    first, again, longer = _ids(run)
    assert first == again == longer
    assert [len(text.prefill_ms) for text in run.generated.generation.runs] == [1, 1, 2]


def test_the_cache_is_filled_again_where_a_ring_has_lost_what_is_needed(
    runner: Start, programs: Programs, tmp_path: Path
) -> None:
    points: list[tuple[Sequence[int], dict[str, Any]]] = [
        ((3, 1, 4), {"new_tokens": 6, "depth": 11, "repetitions": 3})
    ]
    _write(tmp_path, points)
    wanted = _ids(runner.generate(programs.path("dynamic"), tmp_path))
    for rewind in (8, 7):  # from 19 to 11 and no further; a call would refuse what is further
        _write(tmp_path, points, rewind=rewind)
        assert _ids(runner.generate(programs.path("dynamic"), tmp_path)) == wanted


def test_a_program_that_is_read_into_memory_gives_the_same_text(
    runner: Start, programs: Programs, tmp_path: Path
) -> None:
    points: list[tuple[Sequence[int], dict[str, Any]]] = [((3, 1, 4), {"new_tokens": 6})]
    _write(tmp_path, points)
    mapped = _ids(runner.generate(programs.path("dynamic"), tmp_path))
    _write(tmp_path, points, load_mode="file")
    assert _ids(runner.generate(programs.path("dynamic"), tmp_path)) == mapped


def test_a_stop_token_ends_the_text_and_is_told(
    runner: Start, programs: Programs, tmp_path: Path
) -> None:
    new = programs.texts[0][len(PROMPTS[0]) :]
    stop = new[4]
    assert stop not in new[:4]
    _write(tmp_path, [(PROMPTS[0], {"new_tokens": 20}), (PROMPTS[0], {"new_tokens": 2})],
           stop=(UNDEFINED, stop))  # fmt: skip
    run = runner.generate(programs.path("dynamic"), tmp_path, stream=True)
    ended, cut = run.generated.generation.runs
    assert (list(ended.token_ids), ended.stopped) == (new[:5], True)
    assert (list(cut.token_ids), cut.stopped) == (new[:2], False)
    assert run.stdout == "".join(f"{token}\n" for token in [*new[:5], *new[:2]])


def test_sampled_text_depends_on_the_seed_alone(
    runner: Start, programs: Programs, tmp_path: Path
) -> None:
    texts = []
    for i, seed in enumerate((3, 3, 4)):
        folder = tmp_path / str(i)
        folder.mkdir()
        sampling = _WARM.model_copy(update={"seed": seed})
        _write(folder, [((1,), {"new_tokens": 24, "repetitions": 2})], sampling=sampling)
        texts += _ids(runner.generate(programs.path("dynamic"), folder))
    assert len(set(texts[:4])) == 1
    assert texts[4] == texts[5] != texts[0]
    assert len(set(texts[0])) > 8


@pytest.mark.nightly
@needs_cross
def test_an_arm64_runner_generates_the_same(
    runner: Start, programs: Programs, export_workspace: Workspace, tmp_path: Path
) -> None:
    program = inspect_file(programs.path("dynamic"))
    there = build(plan_here(program, "linux-aarch64"), export_workspace)
    arm64 = Start(there, prefix=(str(_QEMU), "-L", "/usr/aarch64-linux-gnu"))
    found: dict[str, list[tuple[int, ...]]] = {}
    for name, sampling in {"greedy": Sampling(), "sampled": _WARM}.items():
        (tmp_path / name).mkdir()
        _write(tmp_path / name, _whole_context(), sampling=sampling)
        found[name] = _ids(arm64.generate(programs.path("dynamic"), tmp_path / name))
        assert found[name] == _ids(runner.generate(programs.path("dynamic"), tmp_path / name))
    assert found["greedy"] != found["sampled"]


def test_a_trace_has_the_last_calls_of_each_method(
    runner: Start, programs: Programs, tmp_path: Path
) -> None:
    _write(tmp_path, [((1, 2, 3), {"new_tokens": 5})])
    run = runner.generate(programs.path("dynamic"), tmp_path, etdump="trace.etdp")
    assert run.exit_code == 0, run.stderr
    assert {p.name for p in tmp_path.glob("trace*")} == {"trace.etdp.prefill", "trace.etdp.decode"}
    # Each event has its name in the file. To import a reader would take longer than all the rest.
    trace = (tmp_path / "trace.etdp.decode").read_bytes()
    assert trace.count(b"Method::execute") == 4
    assert trace.count(b"native_call_mm.out") == 4 * 6
    generation = run.generated.generation  # before another run writes results in their place
    traced = generation.traced
    assert {method: tuple(each.model_dump().values()) for method, each in traced.items()} == {
        "prefill": (1, 3, 0), "decode": (4, 4, 3),
    }  # fmt: skip
    # A method that no token went through has no trace.
    _write(tmp_path, [((1,), {"new_tokens": 2})])
    run = runner.generate(programs.path("dynamic"), tmp_path, etdump="short.etdp")
    assert {p.name for p in tmp_path.glob("short*")} == {"short.etdp.decode"}


def test_a_trace_is_no_longer_than_ten_calls_of_one_text(
    runner: Start, programs: Programs, tmp_path: Path
) -> None:
    points: list[tuple[Sequence[int], dict[str, Any]]] = [
        ((1, 2, 3), {"new_tokens": 25, "depth": 2, "repetitions": 2}),
        ((1, 2), {"new_tokens": 1, "depth": 9}),
    ]
    # A prompt's rest and the tokens after it are calls of one method.
    rest: list[tuple[Sequence[int], dict[str, Any]]] = [(range(18), {"new_tokens": 9})]
    _write(tmp_path, points, "static")
    run = runner.generate(programs.path("static"), tmp_path, etdump="trace.etdp")
    assert run.exit_code == 0, run.stderr
    generation = run.generated.generation  # before another run writes results in their place
    traced = generation.traced
    assert {method: tuple(each.model_dump().values()) for method, each in traced.items()} == {
        # What filled the cache; the prompt of the last text, token by token; the first one's end.
        "prefill": (1, 8, 0), "decode_half": (2, 2, 9), "decode": (10, 10, 19),
    }  # fmt: skip
    for method, each in traced.items():
        content = (tmp_path / f"trace.etdp.{method}").read_bytes()
        assert content.count(b"Method::execute") == each.calls
        assert read_summary(content).calls == each.calls
    _write(tmp_path, rest, "static")
    run_of_rest = runner.generate(programs.path("static"), tmp_path, etdump="rest.etdp")
    assert run_of_rest.generated.generation.traced["decode"].model_dump() == {
        "calls": 10, "tokens": 10, "position": 16,
    }  # fmt: skip
    assert generation.runs[0].token_ids == generation.runs[1].token_ids


@pytest.mark.parametrize(
    ("prompt", "asked", "message"),
    [
        (
            range(CAPACITY + 1),
            {"new_tokens": 1},
            "point p0: 0 tokens in the cache, a prompt of 33 and 1 new tokens do not fit into a "
            "context of 32",
        ),
        ((1,) * 20, {"new_tokens": 14}, "a prompt of 20 and 14 new tokens do not fit"),
        ((1,), {"new_tokens": 1, "depth": 32}, "32 tokens in the cache, a prompt of 1"),
        ((1,), {"new_tokens": 2**63 - 1, "depth": 2**63 - 1}, "do not fit into a context of 32"),
        ((), {"new_tokens": 1}, "the prompt 0.bin has no token"),
        ((1, 48), {"new_tokens": 1}, "the prompt has the id 48, the vocabulary 48 tokens"),
        ((1, -1), {"new_tokens": 1}, "the prompt has the id -1"),
    ],
)
def test_a_point_that_cannot_be_is_told_with_its_numbers(
    runner: Start, programs: Programs, tmp_path: Path,
    prompt: Sequence[int], asked: dict[str, Any], message: str,
) -> None:  # fmt: skip
    _write(tmp_path, [(prompt, asked)])
    run = runner.generate(programs.path("dynamic"), tmp_path)
    assert run.exit_code == 4
    assert message in run.error
    assert not (tmp_path / "results.json").exists()


def test_logits_that_are_no_numbers_are_told(
    runner: Start, programs: Programs, tmp_path: Path
) -> None:
    _write(tmp_path, [((1, UNDEFINED), {"new_tokens": 3})])
    run = runner.generate(programs.path("dynamic"), tmp_path)
    assert run.exit_code == 5
    assert all(fact in run.error for fact in ("point p0", "after 2 tokens", "48 are NaN"))


@pytest.mark.parametrize(
    ("line", "by", "message"),
    [
        (0, "method prefill prefill 8 1", "request.txt:1 expects a capacity from 1 on"),
        (0, "method prefill fill 8 1 32", "request.txt:1 expects the role prefill or decode"),
        (0, "method prefill prefill 9 1 32", "the input 0 int64 [1, 9], and has int64 [1, 8]"),
        (1, "method decode decode 2 0 32", "expects max_tokens 1 of a decode method"),
        (1, "method decode decode 1 0 32 4", "request.txt:2 expects nothing more"),
        (1, "method of_one_input decode 1 0 32", "takes 1 inputs, to generate it would take 2"),
        (2, "sampling -1 0 1 0", "request.txt:3 expects a temperature from 0 on"),
        (2, "sampling 1 0 0 0", "request.txt:3 expects top_p above 0 and up to 1"),
        (2, "sampling nan 0 1 0", "request.txt:3 expects a temperature from 0 on"),
        (3, "stop 1 x", "request.txt:4 expects ids from 0 on, the line is 'stop 1 x'"),
        (3, "", "request.txt:4 expects a word"),
        (4, "point p0 0 1 1", "request.txt:5 expects the path of a prompt"),
        (4, "point p0 0 1 0 0.bin", "request.txt:5 expects repetitions from 1 on"),
        (4, "point p0 0 1 1 gone.bin", "the prompt gone.bin cannot be read"),
        (4, "point p0 0 1 1 odd.bin", "the prompt odd.bin has 9 bytes, ids have 8 each"),
        (4, "stop", "the request request.txt has no point"),
        (
            4,
            "temperature 1",
            "expects method, encoder, embedding, positions, static, rewind, verify",
        ),
        (4, "rewind -1", "request.txt:5 expects a number of tokens from 0 on"),
        (4, "load_mode copy", "request.txt:5 expects the mode mmap or file"),
    ],
)
def test_a_damaged_request_is_told(
    runner: Start, programs: Programs, tmp_path: Path, line: int, by: str, message: str
) -> None:
    _write(tmp_path, [((1,), {"new_tokens": 1})], stop=(1,))
    (tmp_path / "odd.bin").write_bytes(bytes(9))
    lines = (tmp_path / "request.txt").read_text().splitlines()
    lines[line] = by
    (tmp_path / "request.txt").write_text("\n".join(lines) + "\n")
    run = runner.generate(programs.path("dynamic"), tmp_path)
    assert run.exit_code == 4
    assert message in run.error


def test_a_program_that_does_not_fit_the_request_is_told(
    runner: Start, programs: Programs, tmp_path: Path
) -> None:
    _write(tmp_path, [((1,), {"new_tokens": 1})], "dynamic")
    run = runner.generate(programs.path("dynamic"), tmp_path, request="gone.txt")
    assert (run.exit_code, "cannot read the request gone.txt" in run.error) == (4, True)
    request = (tmp_path / "request.txt").read_text()
    (tmp_path / "request.txt").write_text(request.replace("method decode", "method encode"))
    run = runner.generate(programs.path("dynamic"), tmp_path)
    assert (run.exit_code, "the program has no method encode" in run.error) == (3, True)


def test_methods_that_share_no_buffers_are_told(
    runner: Start, programs: Programs, tmp_path: Path
) -> None:
    _write(tmp_path, [((1,), {"new_tokens": 1})], "static")
    request = (tmp_path / "request.txt").read_text().splitlines(keepends=True)
    (tmp_path / "request.txt").write_text("".join(request[1:]))
    run = runner.generate(programs.path("unshared"), tmp_path)
    assert run.exit_code == 4
    assert "shares no buffers with the others" in run.error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--generation", "r.txt", "--iterations", "3"), "--iterations does not go with --gener"),
        (("--generation", "r.txt", "--inputs", "i.txt"), "--inputs does not go with --generation"),
        (("--stream", "1"), "--stream needs --generation"),
        (("--listen", "9", "--method", "m"), "--method does not go with --listen"),
        (("--generation", "r.txt", "--listen", "9", "--stream", "1"), "--stream does not go with"),
    ],
)
def test_options_of_the_other_workload_are_refused(
    runner: Start, programs: Programs, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    run = runner.start(tmp_path, "--program", str(programs.path("dynamic")), *arguments)
    assert run.exit_code == 2
    assert message in run.error


_COUNTED = tuple(i % 8 for i in range(17))


@pytest.mark.parametrize("name", ["verifying", "each"])
@pytest.mark.parametrize(
    "sampling",
    [Sampling(), Sampling(temperature=2, top_k=9, seed=3),
     Sampling(temperature=1.5, min_p=0.01, repetition_penalty=1.1, seed=5)],
)  # fmt: skip
def test_speculation_gives_the_same_text_in_fewer_calls(
    runner: Start, programs: Programs, tmp_path: Path, name: str, sampling: Sampling
) -> None:
    """Also where a stop token is proposed, and where the context ends."""
    prompts = (_COUNTED, (*_COUNTED[:12], 9, 4, 5), PROMPTS[1], (7,) * 5)
    points = [(p, {"new_tokens": CAPACITY + 1 - len(p), "repetitions": 2}) for p in prompts]
    for stop in ((UNDEFINED,), (UNDEFINED, 6)):
        _write(tmp_path, points, name, sampling, stop)
        plain = runner.generate(programs.path(name), tmp_path).generated.generation.runs
        _write(tmp_path, points, name, sampling, stop, speculation="lookup")
        runs = runner.generate(programs.path(name), tmp_path).generated.generation.runs
        texts = [[(r.token_ids, r.stopped) for r in each] for each in (runs, plain)]
        assert texts[0] == texts[1]
        for run, without in zip(runs, plain, strict=True):
            assert run.calls + run.accepted == len(run.token_ms) == len(run.token_ids) - 1
            assert run.verified_calls <= run.proposed <= run.verified_calls * (CHUNK - 1)
            assert (without.calls, without.proposed) == (len(without.token_ms), 0)
        if not sampling.temperature:
            assert sum(run.accepted for run in runs) > 0


def test_a_program_that_cannot_verify_is_told(
    runner: Start, programs: Programs, tmp_path: Path
) -> None:
    point = (PROMPTS[1], {"new_tokens": 2})
    _write(tmp_path, [point], "dynamic", speculation="lookup")
    run = runner.generate(programs.path("dynamic"), tmp_path)
    assert (run.exit_code, "speculation needs a method that gives the logits" in run.error) == (
        4, True,
    )  # fmt: skip
    _write(tmp_path, [point], "verifying", rewind=0, speculation="lookup")
    assert runner.generate(programs.path("verifying"), tmp_path).exit_code == 4
    _write(tmp_path, [point], "verifying", speculation="lookup")
    run = runner.generate(programs.path("dynamic"), tmp_path)
    assert (run.exit_code, "gives the logits of the last token, and is to" in run.error) == (
        4, True,
    )  # fmt: skip


@contextmanager
def _opened(
    runner: Start,
    programs: Programs,
    folder: Path,
    name: str = "dynamic",
    speculation: Speculation = "none",
    draft: Draft | None = None,
) -> Iterator[TextGenerator]:
    """A program, pushed to this machine.

    The workspace is the test's own: whoever opens a device ends what still runs in its folder, and
    here no lock keeps other tests from doing so.
    """
    built = Path(runner.runner.path)
    files = {p.relative_to(built).as_posix(): p for p in built.rglob("*") if p.is_file()}
    executable = runner.runner.executable
    command: tuple[str, ...] = (executable,)
    files["program.pte"] = programs.path(name)
    if draft:
        files["draft/program.pte"] = programs.path(draft.name)
        command = (executable, "--draft", "{bundle}/draft/program.pte")
    bundle = make_bundle(files, command, (executable,)).model_copy(update={"draft": draft})
    device = open_device("host", Workspace(folder / "workspace"))
    device.push(bundle)
    generation = Generation(
        methods=METHODS[name], vocabulary=VOCABULARY, context=CAPACITY, model="m",
        path="plain", path_reason="a test", static_cache=CACHE if name == "cached" else None,
    )  # fmt: skip
    asked = {"benchmark": {"generation": {"speculation": speculation}}}
    recipe = make_recipe(model={"hf": "m"}, **asked) if speculation != "none" else make_recipe()
    log = folder / "log.txt"
    with open_generator(device, bundle, generation, recipe, log) as generator:
        yield generator


def test_a_device_streams_the_eager_models_text(
    runner: Start, programs: Programs, tmp_path: Path
) -> None:
    prompt, log = PROMPTS[1], tmp_path / "log.txt"
    with _opened(runner, programs, tmp_path) as generator:
        for new_tokens in (CAPACITY + 1 - len(prompt), 2):
            heard: list[int] = []
            said = generator.generate(prompt, new_tokens, Sampling(), heard.append)
            assert [*prompt, *heard] == programs.texts[1][: len(prompt) + new_tokens]
            assert said.token_ids == tuple(heard)
        with pytest.raises(RunError, match="the prompt has the id 48, the vocabulary 48 tokens"):
            generator.generate((VOCABULARY,), 1, Sampling(), heard.append)
        assert "etdeploy-runner: error" in log.read_text()


def test_a_dialogue_is_the_eager_models_text(
    runner: Start, programs: Programs, tmp_path: Path
) -> None:
    whole = programs.texts[1]
    with (
        _opened(runner, programs, tmp_path) as generator,
        ChatProcess(generator, idle_timeout_s=1) as chat,
    ):

        def asked(tokens: int, new_tokens: int) -> GenerationOutput:
            return answered(chat, whole[:tokens], new_tokens, Sampling(), lambda _: None)

        # A prompt, more of the text than what was said, and less of it.
        for tokens, new_tokens, taken in ((8, 5, 8), (14, 6, 2), (10, 9, 1)):
            said = asked(tokens, new_tokens)
            assert list(said.token_ids) == whole[tokens : tokens + new_tokens]
            assert (said.prefilled, said.stopped) == (taken, False)
        assert list(asked(20, 13).token_ids) == whole[20:33]
        time.sleep(1.5)  # by now it has ended itself
        assert asked(20, 13).prefilled == 20
        with pytest.raises(RunError, match="19 tokens in the cache, a prompt of 1 and 14 new"):
            asked(20, 14)


@pytest.mark.parametrize("name", ["dynamic", "forward", "cached"])
def test_a_dialogue_goes_on_from_an_image(
    runner: Start, programs: Programs, tmp_path: Path, name: str
) -> None:
    texts = programs.texts
    if name == "cached":
        texts = json.loads((programs.folder / "cached.json").read_text())
    whole, penalized = texts[3], Sampling(repetition_penalty=4.0)
    with _opened(runner, programs, tmp_path, name) as generator, ChatProcess(generator) as chat:

        def asked(
            tokens: int, new_tokens: int, sampling: Sampling | None = None
        ) -> tuple[list[int], int]:
            prompt = whole[:tokens]
            output = answered(chat, prompt, new_tokens, sampling or Sampling(), lambda _: None)
            return list(output.token_ids), output.prefilled

        assert asked(19, 6) == (whole[19:25], 19)
        tokens, furthest = list(chat.cached), chat.furthest
        assert tokens == whole[:24]
        chat.save_image("a.bin")
        answered(chat, (3, 4), 2, Sampling(), lambda _: None)
        for _ in range(2):
            chat.load_image("a.bin", tokens, furthest)
            # All of it, a part of it, and again a place before what the first one wrote.
            assert asked(26, 7) == (whole[26:33], 2)
            assert asked(20, 4) == (whole[20:24], 1)
            assert asked(23, 3) == (whole[23:26], 1)
            chat.end()  # what is saved is in the run's folder
        # Tokens of the file are part of the text.
        alone = generator.generate(whole[:20], 6, penalized, lambda _: None).token_ids
        assert list(alone) != whole[20:26]
        chat.load_image("a.bin", tokens, furthest)
        assert asked(20, 6, penalized) == (list(alone), 1)
        chat.remove_image("a.bin")
        with pytest.raises(RunError, match=r"a\.bin is no snapshot of a cache"):
            chat.load_image("a.bin", tokens, furthest)
        with pytest.raises(DeviceError, match=r"left no a\.bin\.tmp"):
            chat.pull_image("a.bin.tmp")


def test_of_an_image_only_what_is_filled_takes_room(
    runner: Start, programs: Programs, tmp_path: Path
) -> None:
    sizes = []
    with _opened(runner, programs, tmp_path) as generator, ChatProcess(generator) as chat:
        for tokens in (1, CAPACITY - 1):
            chat.feed((3,) * tokens)
            chat.save_image("a.bin")
            sizes.append(chat.pull_image("a.bin").stat().st_size)
    assert sizes[0] < sizes[1]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda file: file[:-4], "a.bin is damaged"),
        (lambda file: file + b"1", "a.bin is damaged"),
        (lambda file: file[:7], "a.bin is no snapshot of a cache"),
        (lambda file: b"x" * len(file), "a.bin is no snapshot of a cache"),
        (lambda file: file[:16] + bytes([file[16] ^ 1]) + file[17:], "with another cache"),
        # A part that would be beyond the memory.
        (lambda file: file[:24] + b"\xff" * 7 + b"\x7f" + file[32:], "a.bin is damaged"),
    ],
)
def test_an_image_that_is_not_sound_is_refused(
    runner: Start,
    programs: Programs,
    tmp_path: Path,
    damage: Callable[[bytes], bytes],
    message: str,
) -> None:
    with _opened(runner, programs, tmp_path) as generator, ChatProcess(generator) as chat:
        chat.feed((3, 4, 5))
        chat.save_image("a.bin")
        generator.put("a.bin", damage(chat.pull_image("a.bin").read_bytes()))
        with pytest.raises(RunError, match=re.escape(message)):
            chat.load_image("a.bin", (3, 4, 5), 3)


@pytest.mark.parametrize(
    ("ids", "furthest", "message"),
    [
        ((3, VOCABULARY), 2, f"the snapshot has the id {VOCABULARY}"),
        ((3,) * (CAPACITY + 1), CAPACITY + 1,
         f"the snapshot has {CAPACITY + 1} tokens, the context {CAPACITY}"),
        ((3, 4), 1, "expects an end that is not before that of the tokens"),
    ],
)  # fmt: skip
def test_the_text_of_an_image_has_to_fit(
    runner: Start,
    programs: Programs,
    tmp_path: Path,
    ids: Sequence[int],
    furthest: int,
    message: str,
) -> None:
    with _opened(runner, programs, tmp_path) as generator, ChatProcess(generator) as chat:
        chat.feed((3, 4))
        chat.save_image("a.bin")
        with pytest.raises(RunError, match=message):
            chat.load_image("a.bin", ids, furthest)


@pytest.mark.parametrize("name", ["dynamic", "verifying", "static", "each", "forward"])
def test_logits_of_a_text_are_those_that_choose_its_tokens(
    runner: Start, programs: Programs, tmp_path: Path, name: str
) -> None:
    """In one call where the program verifies several tokens, and else one by one."""
    with _opened(runner, programs, tmp_path, name) as generator, ChatProcess(generator) as chat:
        chosen = answered(chat, PROMPTS[1], 13, Sampling(), lambda _: None).token_ids
        whole = [*PROMPTS[1], *chosen[:12]]
        for count in (12, 1, 5):
            found = np.array(chat.logits(whole, count)).reshape(count, VOCABULARY)
            assert list(found.argmax(axis=1)) == list(chosen[13 - count :])
        assert chat.cached == whole
        text = [*whole[:18], 3, 4]
        known = np.array(chat.logits(text[:-1], 5), np.float64).reshape(5, VOCABULARY)
        known -= known.max(axis=1, keepdims=True)
        expected = known - np.log(np.exp(known).sum(axis=1, keepdims=True))
        for score, row, token in zip(chat.score(text, 5), expected, text[-5:], strict=True):
            assert score.log_probability == pytest.approx(row[token], abs=1e-4)
            assert score.best_id == row.argmax()
            assert score.best_log_probability == pytest.approx(row.max(), abs=1e-4)
        chat.feed(whole)
        assert answered(chat, whole, 2, Sampling(), lambda _: None).prefilled == 1


def test_speculation_in_a_dialogue_sets_the_cache_back(
    runner: Start, programs: Programs, tmp_path: Path
) -> None:
    """After wrong proposals, and before the end of what was generated."""
    sampling, heard = Sampling(temperature=1.5, top_k=9, seed=7), list[int]()
    with _opened(runner, programs, tmp_path / "plain", "verifying") as generator:
        whole = generator.generate(_COUNTED, 16, sampling, lambda _: None).token_ids
        other = (*_COUNTED, *whole[:4], 1, 2)
        later = generator.generate(other, 10, sampling, lambda _: None).token_ids
    with (
        _opened(runner, programs, tmp_path / "said", "verifying", "lookup") as generator,
        ChatProcess(generator, idle_timeout_s=60) as chat,
    ):
        for _ in range(2):
            said = answered(chat, _COUNTED, 16, sampling, heard.append)
            assert said.token_ids == whole
            assert said.speculation is not None
            assert said.speculation.calls + said.speculation.accepted == 15
            assert answered(chat, other, 10, sampling, lambda _: None).token_ids == later
    assert heard == [*whole, *whole]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("answer 3 1 0 0 1 0 0 1 5", "line 1 of the input expects a position up to 0"),
        ("answer 0 1 0 0 1 0 0 1", "line 1 of the input expects ids"),
        ("answer 0 1 0 0 1 0 0 1 48", "point of line 1: the prompt has the id 48"),
        ("tell 1", "line 1 of the input expects answer, feed, logits, score, save, load, remove"),
        ("feed 1 3", "line 1 of the input expects a position up to 0"),
        ("feed 0", "line 1 of the input expects ids"),
        ("logits 0 2 l.bin 3", "line 1 of the input expects as many ids as logits"),
        ("score 0 1 3", "line 1 of the input expects more ids than scores"),
        ("load 1 none.bin a.bin", "none.bin cannot be read"),
        ("save", "line 1 of the input expects a path"),
    ],
)
def test_a_line_that_cannot_be_answered_is_told(
    runner: Start, programs: Programs, tmp_path: Path, line: str, message: str
) -> None:
    (tmp_path / "request.txt").write_text(request_lines(METHODS["dynamic"], Sampling(), (), ()))
    arguments = listening_arguments(
        str(programs.path("dynamic")), str(tmp_path / "request.txt"), idle_timeout_s=60
    )
    run = runner.start(tmp_path, *arguments, said=f"stop\n{line}\n")
    assert (run.exit_code, message in run.error) == (4, True), run.error
    assert run.stdout == "ready\n"


def test_an_answer_ends_with_a_word_and_a_runner_with_its_input(
    runner: Start, programs: Programs, tmp_path: Path
) -> None:
    (tmp_path / "request.txt").write_text(request_lines(METHODS["dynamic"], Sampling(), (), ()))
    arguments = listening_arguments(
        str(programs.path("dynamic")), str(tmp_path / "request.txt"), idle_timeout_s=60
    )
    said = "answer 0 30 0 0 1 0 0 1 3\nstop\nanswer 1 30 0 0 1 0 0 1 4 5\nno end of line"
    run = runner.start(tmp_path, *arguments, said=said)
    # The input has ended before the other answer has.
    ends = "ready\ntaken 1\nend stop\ntaken 2\nend stop\n"
    assert (run.exit_code, run.stdout) == (0, ends)


@pytest.fixture(scope="module")
def proposing(
    programs: Programs, export_workspace: Workspace, tmp_path_factory: pytest.TempPathFactory
) -> Start:
    """A runner that proposes whenever it can, whether it pays or not."""
    sources = tmp_path_factory.mktemp("proposing") / "runner"
    shutil.copytree(runner_sources(), sources)
    pace = sources / "generation" / "speculation.h"
    always = pace.read_text()
    for limit, none in (
        ("kDraftMargin = 1.1", "kDraftMargin = 0"),
        ("kDraftTrial = 4", "kDraftTrial = 1e9"),
    ):
        assert always.count(limit) == 1
        always = always.replace(limit, none)
    pace.write_text(always)
    with pytest.MonkeyPatch.context() as patch:
        for module in ("fingerprint", "builder"):
            patch.setattr(f"etdeploy.runner.{module}.runner_sources", lambda: sources)
        return Start(build(plan_here(inspect_file(programs.path("dynamic"))), export_workspace))


def _draft(name: str, **changes: Any) -> Draft:
    values: dict[str, Any] = {
        "name": name, "sha256": "", "size_bytes": 1, "vocabulary": VOCABULARY,
        "context": CAPACITY, "methods": METHODS[name],
    }  # fmt: skip
    return Draft(**(values | changes))


# How often drafts are right: the least and the most of what they propose in greedy texts.
_DRAFTS = {
    "verifying": (0.6, 1.0), "partly": (0.2, 0.9), "never": (0.0, 0.2), "dynamic": (0.0, 0.3),
    "static": (0.0, 0.3), "forward": (0.0, 0.3), "each": (0.6, 1.0),
}  # fmt: skip


@pytest.mark.parametrize("name", _DRAFTS)
@pytest.mark.parametrize(
    "sampling",
    [Sampling(), Sampling(temperature=1.5, top_k=9, repetition_penalty=1.1, seed=5)],
    ids=["greedy", "drawn"],
)
def test_the_text_with_a_draft_is_the_same(
    proposing: Start, programs: Programs, tmp_path: Path, name: str, sampling: Sampling
) -> None:
    """From several prompts, after texts in the cache, and where a stop token is proposed."""
    prompts = (_COUNTED, (*_COUNTED[:12], 9, 4, 5), PROMPTS[1], (3,))
    points: list[tuple[Sequence[int], dict[str, Any]]] = [
        (p, {"new_tokens": CAPACITY + 1 - len(p) - depth, "depth": depth, "repetitions": 2})
        for p in prompts
        for depth in (0, 5)
    ]
    for stop in ((UNDEFINED,), (UNDEFINED, 6)):
        _write(tmp_path, points, "verifying", sampling, stop)
        plain = proposing.generate(programs.path("verifying"), tmp_path)
        _write(tmp_path, points, "verifying", sampling, stop, speculation="model:x",
               draft=_draft(name))  # fmt: skip
        found = proposing.generate(programs.path("verifying"), tmp_path, draft=programs.path(name))
        assert _ids(found) == _ids(plain)
        runs = found.generated.generation.runs
        for run in runs:
            assert run.calls + run.accepted == len(run.token_ms) == len(run.token_ids) - 1
            assert run.verified_calls <= run.proposed <= run.verified_calls * (CHUNK - 1)
            assert run.draft_ms > 0 or len(run.token_ids) == 1
            assert run.draft_ms <= sum(run.token_ms)
        assert found.generated.generation.load_draft_ms > 0
        proposed, accepted = (sum(getattr(r, n) for r in runs) for n in ("proposed", "accepted"))
        assert proposed > 20
        least, most = _DRAFTS[name]
        assert sampling.temperature or least <= accepted / proposed <= most


@pytest.mark.parametrize("rewind", [None, CHUNK])
def test_a_draft_follows_a_dialogue(
    proposing: Start, programs: Programs, tmp_path: Path, rewind: int | None
) -> None:
    """After wrong proposals, a shorter text, another one, and a text from a file."""
    sampling = Sampling(temperature=1.2, top_k=9, seed=7)
    other = (*_COUNTED[:6], 1, 2, 3)
    asked = ((_COUNTED, 12), (other, 20), ((*_COUNTED, 1, 2), 9), (other[:7], 8))
    with _opened(proposing, programs, tmp_path / "plain", "verifying") as generator:
        texts = [
            generator.generate(prompt, new, sampling, lambda _: None).token_ids
            for prompt, new in asked
        ]
    draft = _draft("partly", rewind=rewind)
    with (
        _opened(
            proposing, programs, tmp_path / "said", "verifying", "model:x", draft=draft
        ) as generator,
        ChatProcess(generator, idle_timeout_s=60) as chat,
    ):  # fmt: skip
        for attempt in range(2):
            for (prompt, new), text in zip(asked, texts, strict=True):
                said = answered(chat, prompt, new, sampling, lambda _: None)
                assert said.token_ids == text
                assert said.speculation is not None
                assert said.speculation.proposed > 0
                assert said.speculation.draft_ms
            if attempt == 0:  # the draft has read another text than that of the image
                tokens, furthest = list(chat.cached), chat.furthest
                chat.save_image("a.bin")
                answered(chat, (3, 4), 2, sampling, lambda _: None)
                chat.load_image("a.bin", tokens, furthest)


def test_a_draft_that_does_not_pay_is_paused(
    runner: Start, programs: Programs, tmp_path: Path
) -> None:
    """One that is as slow as the program, and never right: it is tried once or twice."""
    point = (_COUNTED, {"new_tokens": CAPACITY + 1 - len(_COUNTED), "repetitions": 20})
    _write(tmp_path, [point], "verifying", speculation="model:x", draft=_draft("never"))
    run = runner.generate(programs.path("verifying"), tmp_path, draft=programs.path("never"))
    runs = run.generated.generation.runs
    assert sum(r.verified_calls for r in runs) <= 8
    assert sum(r.calls for r in runs) > 200


@pytest.mark.parametrize(
    ("changes", "program", "code", "message"),
    [
        ({}, None, 2, "the request has a draft, and no --draft names its program"),
        ({}, "absent", 3, "the draft: cannot read the program"),
        ({}, "texts.json", 3, "is no sound program"),
        ({"methods": METHODS["each"]}, "partly", 3, "the draft: the program has no method forward"),
        ({"methods": (METHODS["static"][2],)}, "static", 4, "a context of 16, the program one of"),
    ],
)
def test_a_draft_that_cannot_be_used_is_told(
    runner: Start,
    programs: Programs,
    tmp_path: Path,
    changes: dict[str, Any],
    program: str | None,
    code: int,
    message: str,
) -> None:
    point = (PROMPTS[1], {"new_tokens": 2})
    _write(tmp_path, [point], "verifying", speculation="model:x", draft=_draft("partly", **changes))
    path = None
    if program:
        path = programs.folder / (program if "." in program else f"{program}.pte")
    run = runner.generate(programs.path("verifying"), tmp_path, draft=path)
    assert (run.exit_code, message in run.error) == (code, True), run.error
