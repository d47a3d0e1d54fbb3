"""Etdeploy's own kernels compute what their operators do eagerly."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from etdeploy.core.processes import process

pytest.importorskip("transformers", reason="needs etdeploy[llm]")
pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = str(tmp_path_factory.mktemp("kernels"))
    arguments = ("-m", "tests.support.kernels_run", folder)
    outcome = process.run(process.Request((sys.executable, *arguments), cwd=ROOT))
    assert outcome.ok, outcome.stderr[-3000:]
    told: dict[str, Any] = json.loads(outcome.stdout.splitlines()[-1])
    return told


def test_the_kernels_give_what_the_operators_do(found: dict[str, Any]) -> None:
    compared = {name: each for name, each in found.items() if isinstance(each, dict)}
    assert len(compared) > 15
    for name, each in compared.items():
        assert each["largest"] > 1, name
        assert each["error"] < 1e-5, name


@pytest.mark.parametrize("where", ["beyond the cache", "before it"])
def test_positions_outside_of_the_cache_are_refused(found: dict[str, Any], where: str) -> None:
    assert "0x12" in found[where]
