"""Libraries for existing apps: consumers of their own compile, and run real programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from etdeploy.apps.library import AndroidLibrary
from tests.integration.apps.android_template.conftest import tools
from tests.support.android_app import AndroidLibraries, Tools
from tests.support.generation_values import PROMPTS
from tests.support.libraries import inference_subject, text_subject, write_library
from tests.support.runtime_runs import programs, text_programs

pytestmark = pytest.mark.integration

__all__ = ["programs", "text_programs", "tools"]

NAMES = {"inputs": ["image", "class"], "expected": ["picked", "next", "rows"]}


def test_an_android_app_uses_two_libraries(
    tools: Tools, programs: Path, text_programs: Path, tmp_path: Path
) -> None:
    platform = AndroidLibrary()
    pair, files = inference_subject(platform, programs / "two_inputs", "pair", NAMES)
    words, text_files = text_subject(platform, text_programs, "words", tmp_path)
    folders = [
        write_library(platform, pair, files, tmp_path / "pair"),
        write_library(platform, words, text_files, tmp_path / "words"),
    ]
    told = AndroidLibraries(tmp_path / "built", folders).run(
        tools, "org.example.consumer.PairGolden", "org.example.consumer.WordsGolden",
        "org.example.consumer.Consumer",
    )  # fmt: skip
    assert "OK (10 tests)" in told
    ids = next(line for line in told.splitlines() if line.startswith("ids "))
    expected = json.loads((text_programs / "texts.json").read_text())[1]
    assert len(PROMPTS[1]) == 8
    assert json.loads(ids.removeprefix("ids ")) == expected[8:24]
