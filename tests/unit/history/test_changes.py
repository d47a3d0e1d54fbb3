"""Where a series of numbers changed its level."""

from __future__ import annotations

import random

import pytest

from etdeploy.history.trend import LevelShift, find_level_shifts


def noisy(*levels: tuple[float, int], spread: float = 0.02, seed: int = 1) -> list[float]:
    draw = random.Random(seed)
    return [draw.gauss(level, level * spread) for level, count in levels for _ in range(count)]


def test_a_staircase() -> None:
    found = find_level_shifts([1.0] * 9 + [1.2] * 5 + [1.1] * 8)
    assert found == [LevelShift(9, 1.0, 1.2), LevelShift(14, 1.2, 1.1)]


def test_noise_rarely_has_a_change() -> None:
    found = [find_level_shifts(noisy((1.0, 40), spread=0.04, seed=seed)) for seed in range(200)]
    assert sum(map(bool, found)) <= 6  # 2 expected


@pytest.mark.parametrize(
    "values",
    [
        [],
        [1.0] * 40,
        [1.0, 1.0, 9.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0],
        [1.0, 1.0, 2.0, 2.0],
        [0.0] * 10,
    ],
    ids=["nothing", "constant", "one odd value", "too few", "zero"],
)
def test_no_change(values: list[float]) -> None:
    assert find_level_shifts(values) == []


def test_a_change_below_a_percent_is_not_told() -> None:
    assert find_level_shifts([1.0] * 20 + [1.005] * 20) == []
    assert len(find_level_shifts([1.0] * 20 + [1.02] * 20)) == 1


def test_from_nothing_to_something() -> None:
    assert find_level_shifts([0.0] * 9 + [5.0] * 9) == [LevelShift(9, 0.0, 5.0)]
