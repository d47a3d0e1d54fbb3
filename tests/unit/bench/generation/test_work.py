"""What a recipe wants of a program that generates text, and what it cannot want."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from etdeploy.bench.generation.work import GenerationWorkload, WorkPoint, refuse_early, work_of
from etdeploy.core.errors import UsageError
from tests.support.text_values import make_generation, make_loaded, make_work


def _work(grid: dict[str, Any] | None = None, **benchmark: Any) -> GenerationWorkload:
    loaded = make_loaded(benchmark={"generation": grid or {}, **benchmark})
    return work_of(loaded, make_generation(), Path())


def test_each_prompt_meets_each_number_of_new_tokens_at_each_depth() -> None:
    work = _work({"prompt_tokens": [4, 8], "new_tokens": [2, 3], "depth": [0, 16]})
    assert [(len(p.prompt), p.new_tokens, p.depth) for p in work.points] == [
        (4, 2, 0), (4, 2, 16), (4, 3, 0), (4, 3, 16),
        (8, 2, 0), (8, 2, 16), (8, 3, 0), (8, 3, 16),
    ]  # fmt: skip
    assert work.prompt is None


def test_a_recipe_without_the_section_generates_by_its_defaults() -> None:
    work = work_of(make_loaded(), make_generation(), Path())
    assert [(len(p.prompt), p.new_tokens, p.depth) for p in work.points] == [(128, 64, 0)]


def test_random_prompts_are_not_stopped() -> None:
    assert _work({"prompt_tokens": [8], "new_tokens": [4]}).stop_ids == ()


@pytest.mark.parametrize(
    ("new_tokens", "benchmark", "repeated"),
    [
        (64, {}, (1, 1)),
        (11, {}, (1, 5)),
        (11, {"warmup": 0, "iterations": 1}, (0, 1)),
        (11, {"warmup": 21, "iterations": 20}, (3, 2)),
        (1, {"iterations": 25}, (1, 4)),
    ],
    ids=["default", "few tokens", "no warm-up", "given", "prompts only"],
)
def test_iterations_count_tokens(
    new_tokens: int, benchmark: dict[str, Any], repeated: tuple[int, int]
) -> None:
    [point] = _work({"prompt_tokens": [8], "new_tokens": [new_tokens]}, **benchmark).points
    assert (point.warmup, point.repetitions) == repeated


def test_the_last_token_needs_no_position() -> None:
    grid = {"prompt_tokens": [128], "new_tokens": [65], "depth": [64]}
    assert _work(grid).points[0].positions == 256
    with pytest.raises(UsageError, match="do not fit the program's context of 256 tokens"):
        _work({**grid, "new_tokens": [66]})


def test_what_does_not_fit_names_its_place_and_what_would_do() -> None:
    loaded = make_loaded(
        {("benchmark", "generation"): 7, ("benchmark", "generation", "depth"): 9},
        benchmark={"generation": {"prompt_tokens": [8], "new_tokens": [4], "depth": [0, 1000]}},
        export={"generation": {"context": 256}},
    )
    with pytest.raises(UsageError, match="a prompt of 8 tokens, 4 new tokens and 1,000") as raised:
        work_of(loaded, make_generation(), Path())
    assert raised.value.place == "tiny.yaml:9:5"
    assert "--set export.generation.context=1011" in str(raised.value.remedy)


@pytest.mark.parametrize(
    ("sections", "told", "place"),
    [
        ({"benchmark": {"sustained_s": 5}}, "no sustained pass yet", "tiny.yaml:3:5"),
        ({"runtime": {"threads": [1, 2]}}, "no sweep of threads yet", "/recipes/tiny.yaml"),
    ],
)
def test_what_generating_text_does_not_have_is_refused(
    sections: dict[str, Any], told: str, place: str
) -> None:
    loaded = make_loaded({("benchmark", "sustained_s"): 3}, **sections)
    with pytest.raises(UsageError, match=told) as raised:
        work_of(loaded, make_generation(), Path())
    assert raised.value.place == place


@pytest.mark.parametrize(
    ("point", "method"),
    [
        (WorkPoint(tuple(range(8)), 4, 0, 0, 1), "decode_64"),
        (WorkPoint(tuple(range(8)), 4, 100, 0, 1), "decode"),
        (WorkPoint(tuple(range(8)), 1, 0, 0, 1), "prefill"),
    ],
)
def test_the_method_is_the_one_that_gives_the_first_points_tokens(
    point: WorkPoint, method: str
) -> None:
    assert make_work(point).method == method


def test_what_cannot_fit_is_refused_before_the_export() -> None:
    grid = {"prompt_tokens": [8, 128], "new_tokens": [65], "depth": [0, 64]}
    export = {"generation": {"context": 256}}
    refuse_early(make_loaded(benchmark={"generation": grid}, export=export), 256)
    refuse_early(make_loaded(), 2048)
    longer = make_loaded(benchmark={"generation": {**grid, "depth": [65]}}, export=export)
    with pytest.raises(UsageError, match="context of 256") as raised:
        refuse_early(longer, 256)
    assert "context=257" in str(raised.value.remedy)
    refuse_early(make_loaded(benchmark={"generation": {**grid, "prompt": "x"}}, export=export), 256)
    with pytest.raises(UsageError, match="no sustained pass yet"):
        refuse_early(make_loaded(benchmark={"sustained_s": 5}), 256)


def test_a_model_with_too_few_positions_is_asked_for_fewer_tokens() -> None:
    grid = {"prompt_tokens": [128], "new_tokens": [64], "depth": [8]}
    with pytest.raises(UsageError, match="context of 100") as raised:
        refuse_early(make_loaded(benchmark={"generation": grid}), 100)
    settings = shlex.split(str(raised.value.remedy).splitlines()[-1])[1::2]
    assert settings == [f"benchmark.generation.{x}" for x in
                        ("prompt_tokens=[67]", "new_tokens=[33]", "depth=[0]")]  # fmt: skip
    fitting = {"prompt_tokens": [67], "new_tokens": [33], "depth": [0]}
    refuse_early(make_loaded(benchmark={"generation": fitting}), 100)
