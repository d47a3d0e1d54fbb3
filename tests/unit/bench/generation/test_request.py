"""The files with which a runner is told what to generate."""

from __future__ import annotations

from pathlib import Path

from etdeploy.bench.generation.request import write_request
from etdeploy.bench.generation.work import WorkPoint
from etdeploy.program.expected import ExpectedText, GreedyText, NextToken
from etdeploy.runner.generation import Sampling
from tests.support.text_values import ids_in, make_expected, make_generation, make_work


def test_every_point_follows_its_own_warm_up(tmp_path: Path) -> None:
    work = make_work(WorkPoint((5, 6, 7), 4, 0, 1, 2), WorkPoint((5,), 1, 16, 0, 3), stop_ids=(2,))
    files = write_request(work, tmp_path)
    assert list(files) == [
        "generation/timing.txt", "generation/memory.txt", "generation/profile.txt",
        "generation/prompt-0.bin", "generation/prompt-1.bin",
    ]  # fmt: skip
    assert files["generation/timing.txt"].read_text().splitlines()[3:] == [
        "sampling 0.0 0 1.0 0 0.0 1.0",
        "stop 2",
        "point warmup-0 0 4 1 prompt-0.bin",
        "point point-0 0 4 2 prompt-0.bin",
        "point point-1 16 1 3 prompt-1.bin",
    ]
    assert [ids_in(files[f"generation/prompt-{i}.bin"]) for i in (0, 1)] == [(5, 6, 7), (5,)]


def test_the_runner_is_told_how_far_a_position_may_be_set_back(tmp_path: Path) -> None:
    work = make_work(generation=make_generation(rewind=129))
    text = write_request(work, tmp_path)["generation/timing.txt"].read_text()
    assert "\nrewind 129\n" in text


def test_the_memory_is_that_of_the_first_point_once(tmp_path: Path) -> None:
    work = make_work(WorkPoint((5,), 4, 0, 1, 9), WorkPoint((6,), 1, 16, 0, 3))
    text = write_request(work, tmp_path)["generation/memory.txt"].read_text()
    assert [line for line in text.splitlines() if line.startswith("point")] == [
        "point point-0 0 4 1 prompt-0.bin"
    ]


def test_a_text_of_the_model_is_followed(tmp_path: Path) -> None:
    choice = NextToken(ids=(7, 99), behind=(0, 1), largest=3, best=3, sample=(0,) * 64)
    text = ExpectedText(prompt_ids=(1, 5), original=GreedyText(tokens=(choice,) * 3))
    files = write_request(make_work(generation=make_generation(expected=(text,))), tmp_path)
    *_, logits, follow = files["generation/text.txt"].read_text().splitlines()
    assert logits.split()[:3] + logits.split()[-2:] == ["logits", "0", "1", "98", "99"]
    assert follow == "follow point-0 3 text-prompt-0.bin"
    assert ids_in(files["generation/text-prompt-0.bin"]) == (1, 5, 7, 7)


def test_known_texts_are_greedy_whatever_the_recipe_samples_with(tmp_path: Path) -> None:
    texts = (make_expected(), make_expected((10, 11), (10, 11, 12, 13), prompt=(7,)))
    work = make_work(
        generation=make_generation(expected=texts), sampling=Sampling(temperature=2), stop_ids=(2,)
    )
    files = write_request(work, tmp_path)
    sampling, stop, _, *points = files["generation/text.txt"].read_text().splitlines()[3:]
    assert (sampling, stop) == ("sampling 0.0 0 1.0 0 0.0 1.0", "stop")
    assert points == ["follow point-0 3 text-prompt-0.bin", "follow point-1 4 text-prompt-1.bin"]
    assert ids_in(files["generation/text-prompt-0.bin"]) == (1, 5, 6, 10, 11)
    # The quantised model's tokens.
    assert ids_in(files["generation/text-prompt-1.bin"]) == (7, 10, 11, 12)


def test_the_first_point_is_traced_last_and_the_shortest_and_longest_before(tmp_path: Path) -> None:
    points = [
        WorkPoint((5,), new, depth, 1, 9) for new, depth in ((8, 50), (8, 0), (2, 20), (9, 99))
    ]
    text = write_request(make_work(*points, stop_ids=(2,)), tmp_path)["generation/profile.txt"]
    lines = text.read_text().splitlines()
    # No token ends a text, which could leave a method without a trace.
    assert "stop" in lines
    assert [line for line in lines if line.startswith("point")] == [
        "point warmup-3 99 4 1 prompt-3.bin",
        "point point-3 99 9 1 prompt-3.bin",
        "point warmup-1 0 4 1 prompt-1.bin",
        "point point-1 0 8 1 prompt-1.bin",
        "point warmup-0 50 4 1 prompt-0.bin",
        "point point-0 50 8 1 prompt-0.bin",
    ]
