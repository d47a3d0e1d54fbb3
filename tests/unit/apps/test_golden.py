"""The projects of three recipes are as they are recorded, and the same each time."""

from __future__ import annotations

import pytest

from tests.support.golden_apps import FOLDER, cases, path_of, recorded


@pytest.mark.parametrize(("platform", "recipe"), cases())
def test_a_project_is_as_recorded(platform: str, recipe: str) -> None:
    now = recorded(platform, recipe)
    assert now == recorded(platform, recipe)
    known = path_of(platform, recipe).read_text()
    assert now == known  # python -m tests.support.golden_apps


def test_nothing_else_is_recorded() -> None:
    assert sorted(FOLDER.iterdir()) == sorted(path_of(*case) for case in cases())
