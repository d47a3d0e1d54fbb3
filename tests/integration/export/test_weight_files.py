"""Language models whose weights memory does not hold: the program is that of weights in memory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from etdeploy.export.hf.memory import LIBRARIES_BYTES
from tests.support.export import run_support
from tests.support.facts import lacks
from tests.support.limited_memory import Shape, export_limited, limited_memory, save_large

pytest.importorskip("transformers", reason="needs etdeploy[llm]")
pytestmark = [pytest.mark.integration, pytest.mark.nightly]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    made: dict[str, Any] = run_support("weights_in_files", str(tmp_path_factory.mktemp("weights")))
    return made


def test_the_program_and_what_is_known_of_it_are_the_same(found: dict[str, Any]) -> None:
    held, mapped = found["memory"], found["files"]
    assert mapped["digest"] == held["digest"]
    assert mapped["texts"] == held["texts"]
    assert all(held["texts"])
    # Sums of floats depend on where a tensor begins in memory.
    assert mapped["perplexities"] == pytest.approx(held["perplexities"], rel=1e-4)


def test_notes_and_details_say_how_it_was_exported(found: dict[str, Any]) -> None:
    held, mapped = found["memory"], found["files"]
    assert [each["memory"]["weights"] for each in (held, mapped)] == ["memory", "files"]
    assert all(each["etrecord"] for each in (held, mapped))
    text = "\n".join(mapped["notes"])
    assert not lacks(text, "in files during the export", "was not loaded")
    assert "in files" not in "\n".join(held["notes"])
    for each in (held, mapped):
        assert each["memory"]["peak_bytes"] > 100 << 20


def test_awq_scales_weights_in_files(found: dict[str, Any]) -> None:
    scaled, plain = found["scaled"], found["files"]
    assert scaled["memory"]["weights"] == "files"
    assert "AWQ scaled the inputs of 1" in "\n".join(scaled["notes"])
    assert "AWQ" not in "\n".join(plain["notes"])
    assert scaled["digest"] != plain["digest"]


def test_no_file_is_left(found: dict[str, Any]) -> None:
    assert found["files"]["beside"] == ["files", "memory"]


def test_a_disk_without_room_is_named_before_anything_is_written(found: dict[str, Any]) -> None:
    failure = found["no room"]
    assert failure["kind"] == "memory"
    assert not lacks(failure["message"], "has 5.0 kB", "/made")
    assert "ETDEPLOY_CACHE_DIR" in failure["remedy"]
    assert failure["beside"] == ["files", "memory", "no room", "scaled"]


def test_weights_of_twice_the_free_memory_are_exported(tmp_path: Path) -> None:
    checkpoint = save_large(tmp_path / "model", Shape(), sys.executable)
    weights = (checkpoint / "model.safetensors").stat().st_size
    with limited_memory(LIBRARIES_BYTES + weights // 2) as group:
        if group is None:
            pytest.skip("this process may not make a control group")
        found = export_limited(checkpoint, tmp_path / "export", sys.executable, group)
    assert found.memory["weights"] == "files"
    assert found.memory["peak_bytes"] == pytest.approx(found.memory["expected_bytes"], rel=0.15)
    assert (tmp_path / "export/program/program.pte").stat().st_size < weights / 3
