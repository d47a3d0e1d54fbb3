"""Results of tasks: which are the same to a person, and how they are shown."""

from __future__ import annotations

from typing import Any

import pytest

from etdeploy.program.task import TaskLabel, TaskResult

CAT, DOG = TaskLabel(label="cat", score=0.7), TaskLabel(label="dog", score=0.2)
BOX = TaskLabel(label="cat", score=0.9, box=(1.0, 2.0, 30.0, 40.0))
WORD = TaskLabel(label="PER", score=0.8, part="Ada")


def moved(**changes: Any) -> TaskLabel:
    return BOX.model_copy(update=changes)


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ({"labels": (CAT, DOG)}, {"labels": (CAT.model_copy(update={"score": 0.6}), DOG)}, True),
        ({"labels": (CAT, DOG)}, {"labels": (CAT, WORD)}, True),
        ({"labels": (CAT, DOG)}, {"labels": (DOG, CAT)}, False),
        ({"labels": (CAT, DOG)}, {"labels": (CAT,)}, False),
        ({"labels": (BOX,)}, {"labels": (moved(box=(1.0, 3.5, 30.0, 40.0)),)}, True),
        ({"labels": (BOX,)}, {"labels": (moved(box=(1.0, 9.0, 30.0, 40.0)),)}, False),
        ({"labels": (BOX,)}, {"labels": (moved(box=None),)}, False),
        ({"labels": (WORD, CAT)}, {"labels": (WORD, DOG)}, False),
        ({"text": "a"}, {"text": "a"}, True),
        ({"text": "a"}, {"text": "b"}, False),
        ({"vector_size": 4}, {"vector_size": 8}, False),
        ({"problem": "NaN"}, {"problem": "NaN"}, False),
    ],
)
def test_what_a_person_takes_for_the_same(
    a: dict[str, Any], b: dict[str, Any], *, same: bool
) -> None:
    assert TaskResult(**a).agrees(TaskResult(**b)) == same


def test_a_result_is_a_few_lines() -> None:
    labels = (BOX, WORD, *[CAT] * 5)
    lines = [*TaskResult(labels=labels, file="result.png").lines()]
    assert lines == [
        "cat at 1, 2 to 30, 40: 90 %",
        "PER for Ada: 80 %",
        *["cat: 70 %"] * 3,
        "and 2 more",
        "in result.png",
    ]
    assert [*TaskResult(text="hello").lines()] == ['"hello"']
    assert [*TaskResult(vector_size=1024).lines()] == ["a vector of 1,024 elements"]
    assert len([*TaskResult(took_ms=1.5).lines()]) == 1
