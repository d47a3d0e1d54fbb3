"""The app that generates text gives the tokens of the runner, and tells what it cannot do."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from etdeploy.cache.workspace import Workspace
from etdeploy.program.generation import GenerationMethod
from etdeploy.program.inspect import inspect_file
from etdeploy.runner.generation import (
    GenerationResults,
    PromptRun,
    Sampling,
    prompt_bytes,
    request_lines,
)
from tests.support.android_app import App, Screen, Tools, describe
from tests.support.app_tokenizers import words
from tests.support.generation_values import CAPACITY, CHUNK, METHODS, PROMPTS, VOCABULARY
from tests.support.runtime_runs import Run, Start, build, plan_here

pytestmark = pytest.mark.integration

_WARM = Sampling(temperature=8.0, top_k=20, top_p=0.9, seed=3)
_NIGHT, _SMALL = "w411dp-h891dp-night-xhdpi", "w360dp-h640dp-xhdpi"


def _points(folder: Path) -> list[PromptRun]:
    """A point for each prompt that leaves room, and one that begins in a filled cache."""
    points = []
    for i, prompt in enumerate(PROMPTS[:-1]):
        (folder / f"{i}.bin").write_bytes(prompt_bytes(prompt))
        new = CAPACITY - len(prompt) + 1
        points.append(PromptRun(name=f"p{i}", new_tokens=new, path=f"{i}.bin"))
    deep = PromptRun(name="deep", depth=9, new_tokens=6, repetitions=2, path="1.bin")
    return [*points, deep]


def _request(
    folder: Path,
    name: str,
    methods: tuple[GenerationMethod, ...],
    sampling: Sampling,
    repetitions: int | None = None,
) -> Path:
    path = folder / f"{name}.txt"
    points = _points(folder)
    if repetitions:
        points = [points[0].model_copy(update={"repetitions": repetitions})]
    path.write_text(request_lines(methods, sampling, [VOCABULARY - 1], points, rewind=24))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("requests")


@pytest.fixture(scope="module")
def screens(
    tools: Tools, generation_app: App, text_programs: Path, folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Screen]:  # fmt: skip
    payload = generation_app.payload
    payload.mkdir(parents=True, exist_ok=True)
    shutil.copy(text_programs / "dynamic.pte", payload / "program.pte")
    words().save(str(payload / "tokenizer.json"))
    golden = generation_app.project / "app/src/androidTest/assets/golden"
    golden.mkdir(parents=True, exist_ok=True)
    for name in ("tokens.bin", "logits.bin"):
        shutil.copy(text_programs / name, golden)
    describe(
        payload,
        workload="generation",
        sizes=[
            {
                "name": "",
                "inputs": [{"path": "tokens.bin"}],
                "expected": [{"path": "logits.bin", "atol": 1e-4}],
            }
        ],
        generation={
            "methods": [method.model_dump() for method in METHODS["dynamic"]],
            "vocabulary": VOCABULARY,
            "context": CAPACITY,
            "stop_ids": [],
            "bos_id": None,
            "rewind": None,
            "sampling": {
                "temperature": 3.0,
                "top_k": 0,
                "top_p": 1.0,
                "seed": 11,
                "min_p": 0.0,
                "repetition_penalty": 1.0,
            },
            "new_tokens": 20,
            "tokenizer": "tokenizer.json",
            "chat": {"before": "T", "after": "?"},
        },
    )
    greedy = _request(folder, "greedy", METHODS["dynamic"], Sampling())
    warm = _request(folder, "warm", METHODS["dynamic"], _WARM)
    static = _request(folder, "static", METHODS["static"], Sampling())
    forward = _request(folder, "forward", METHODS["forward"], Sampling())
    long = _request(folder, "long", METHODS["dynamic"], Sampling(), repetitions=1_000_000)
    broken = folder / "broken.txt"
    broken.write_text("method decode\n")

    def asked(name: str, request: Path, **further: Any) -> dict[str, Any]:
        return {"extras": {"run_id": name, "request": str(request)} | further}

    scenarios: dict[str, dict[str, Any]] = {
        "greedy": asked("greedy", greedy, threads=1),
        "warm": asked("warm", warm),
        "static": asked("static", static, program=str(text_programs / "static.pte")),
        "forward": asked("forward", forward, program=str(text_programs / "forward.pte")),
        "by_hand": {"type": {"prompt": "why is the sky blue"}, "click": ["run"],
                    "then_click": ["share"]},
        "night": {"qualifiers": _NIGHT, "type": {"prompt": "what is light"}, "click": ["run"]},
        "large": {"qualifiers": _SMALL, "font_scale": 2.0, "click": ["run"],
                  "type": {"prompt": "what is light"}},
        "untouched": {"idle": True},
        "golden": {"tests": ["GoldenTest"]},
        "too_long": {"type": {"prompt": "a" * 40}, "click": ["run"]},
        "left": {"type": {"prompt": "what is light"}, "click": ["run"], "leave": True},
        "measured": asked("measured", long) | {"leave": True},
        "no_request": asked("no_request", folder / "none.txt"),
        "broken": asked("broken", broken),
    }  # fmt: skip
    return generation_app.start(tools, tmp_path_factory.mktemp("screens") / "all", scenarios)


def test_the_projects_own_tests_ran(screens: dict[str, Screen]) -> None:
    """The local ones, of the sampler, outside of Android; the golden one fails its scenario."""
    said = (screens["golden"].folder.parent / "junit.txt").read_text()
    assert f"OK ({len(screens) + 5} tests)" in said


@pytest.fixture(scope="module")
def runner(text_programs: Path, export_workspace: Workspace) -> Start:
    return Start(build(plan_here(inspect_file(text_programs / "dynamic.pte")), export_workspace))


@pytest.mark.parametrize("name", ["greedy", "warm"])
def test_its_tokens_are_the_runner_s(
    screens: dict[str, Screen], runner: Start, text_programs: Path, folder: Path, name: str
) -> None:
    ran: Run = runner.generate(text_programs / "dynamic.pte", folder, f"{name}.txt")
    assert ran.exit_code == 0, ran.stderr
    wanted = ran.generated.generation.runs
    found = GenerationResults.model_validate(screens[name].results).generation.runs
    assert [run.point for run in found] == [run.point for run in wanted]
    assert [run.token_ids for run in found] == [run.token_ids for run in wanted]
    assert [run.stopped for run in found] == [run.stopped for run in wanted]
    assert found[-1].token_ids == found[-2].token_ids


def test_times_are_told_for_each_token(screens: dict[str, Screen]) -> None:
    results = GenerationResults.model_validate(screens["greedy"].results)
    assert results.threads == 1
    assert list(results.generation.load_methods_ms) == ["decode"]
    for run in results.generation.runs:
        assert len(run.token_ms) == len(run.token_ids) - 1
        assert run.first_token_ms >= sum(run.prefill_ms)


def test_a_text_gets_the_smallest_method_that_takes_all_of_it(screens: dict[str, Screen]) -> None:
    """Methods share no memory in ExecuTorch's Java API."""
    results = GenerationResults.model_validate(screens["static"].results).generation
    greedy = GenerationResults.model_validate(screens["greedy"].results).generation
    assert set(results.load_methods_ms) == {"decode"}
    assert [run.token_ids for run in results.runs] == [run.token_ids for run in greedy.runs]


def test_one_method_for_all_calls_takes_a_prompt_in_parts(screens: dict[str, Screen]) -> None:
    """The layout that an app for Android has by default."""
    results = GenerationResults.model_validate(screens["forward"].results).generation
    greedy = GenerationResults.model_validate(screens["greedy"].results).generation
    assert set(results.load_methods_ms) == {"forward"}
    assert [run.token_ids for run in results.runs] == [run.token_ids for run in greedy.runs]
    calls = {run.point: len(run.prefill_ms) for run in results.runs}
    parts = {f"p{i}": -(-len(prompt) // CHUNK) for i, prompt in enumerate(PROMPTS[:-1])}
    assert calls == {**parts, "deep": parts["p1"]}
    assert {run.point: len(run.prefill_ms) for run in greedy.runs}["p3"] == len(PROMPTS[3])


def test_a_person_asks_reads_and_shares(screens: dict[str, Screen]) -> None:
    screen = screens["by_hand"]
    (run,) = GenerationResults.model_validate(screen.results).generation.runs
    wanted = words().decode(list(run.token_ids))
    assert screen.text("answer") == wanted
    assert screen.text("tokens") == f"{len('Twhy is the sky blue?')} + {len(run.token_ids)}"
    assert screen.text("first_token").endswith(" ms")
    assert screen.text("decode").endswith(" tok/s")
    assert '"token_ids"' in screen.shown["shared"]
    assert screen.text("run") == "Generate"


def test_a_person_may_leave_and_reads_the_answer_later(screens: dict[str, Screen]) -> None:
    screen = screens["left"]
    (run,) = GenerationResults.model_validate(screen.results).generation.runs
    whole = GenerationResults.model_validate(screens["night"].results).generation.runs[0]
    assert run.token_ids == whole.token_ids
    assert screen.text("answer") == words().decode(list(run.token_ids))
    assert "not in front" in screen.text("status")
    assert not {"first_token", "decode"} & {view.get("id") for view in screen.shown["views"]}


def test_a_measurement_may_not_be_left(screens: dict[str, Screen]) -> None:
    kind, message = screens["measured"].error
    assert kind == "run"
    assert "not in front" in message


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("too_long", "usage", "tokens are too many: the model takes up to 32"),
        ("no_request", "usage", "The request cannot be read"),
        ("broken", "usage", "The request cannot be read"),
    ],
)
def test_what_goes_wrong_is_told_on_the_screen_and_in_the_results(
    screens: dict[str, Screen], name: str, kind: str, said: str
) -> None:
    found, message = screens[name].error
    assert found == kind
    assert said in message
    assert screens[name].text("status") == message


@pytest.mark.parametrize("name", ["untouched", "by_hand", "night", "large"])
def test_the_screen_is_one_for_everybody(screens: dict[str, Screen], name: str) -> None:
    shown = screens[name].shown
    views = {view["id"]: view for view in shown["views"] if "id" in view}
    for name_of in ("run", "prompt"):
        assert views[name_of]["height"] >= 48 * shown["density"]
    assert views["status"]["live"] == 1
    assert not [view["text"] for view in shown["views"] if view.get("ellipsized")]
    assert sum(shown["corner"]) / 3 > 200 or name == "night"
