"""The list of inputs as the runner reads it, and its results as they are read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from etdeploy.core.errors import RunError
from etdeploy.program.folder import TensorFile
from etdeploy.program.model import PlainValue
from etdeploy.runner.protocol import inputs_list, load_results

_RESULTS: dict[str, Any] = {
    "schema_version": 1,
    "executorch_version": "1.5.1+cpu",
    "method": "forward",
    "started_unix_s": 1_700_000_000,
    "threads": 2,
    "warmup": 5,
    "verify_ms": 0.2,
    "load_program_ms": 0.05,
    "load_method_ms": 0.4,
    "rss_after_load_bytes": 5_000_000,
    "first_inference_ms": 0.1,
    "outputs": [
        {"kind": "Tensor", "dtype": "float32", "shape": [2, 4], "path": "0.bin"},
        {"kind": "Int", "value": 2},
        {"kind": "Double"},
    ],
    "peak_rss_bytes": 6_000_000,
    "samples_ms": [0.002, 0.003],
}


def test_plain_inputs_stand_in_the_list_with_their_values() -> None:
    values = (
        PlainValue(kind="Int", value=2**62 + 1),
        PlainValue(kind="Double", value=1e-20),
        PlainValue(kind="Bool", value=True),
        PlainValue(kind="None", name="mask"),
    )
    assert inputs_list(values) == "Int 4611686018427387905\nDouble 1e-20\nBool 1\nNone\n"


def test_list_has_a_line_for_each_input() -> None:
    tensors = (
        TensorFile(path="inputs/0.bin", dtype="float32", shape=(1, 3, 224, 224)),
        TensorFile(path="inputs/1.bin", dtype="int64", shape=()),
    )
    assert inputs_list(tensors) == "float32 4 1 3 224 224 inputs/0.bin\nint64 0 inputs/1.bin\n"


def _write(path: Path, content: object) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_results_of_a_runner_that_checked_while_it_loaded_are_read(tmp_path: Path) -> None:
    older = {name: value for name, value in _RESULTS.items() if name != "verify_ms"}
    results = load_results(_write(tmp_path / "results.json", older))
    assert (results.verify_ms, results.load_program_ms) == (None, 0.05)


def test_results_of_memory_and_sustained_passes_are_read(tmp_path: Path) -> None:
    state = {"rss_bytes": 5_000_000, "pss_bytes": None, "anonymous_bytes": 300_000}
    memory = {
        "before_load": state,
        "after_load": state,
        "peak_pss_bytes": None,
        "peak_footprint_bytes": None,
        "program_resident_bytes": 4096,
        "points": [[0.0, 5_000_000, None], [0.01, 6_000_000, 5_500_000]],
    }
    sustained = {"began_s": 0.1, "stretches": [[1.0, 200], [2.01, 199]]}
    content = _RESULTS | {"memory": memory, "sustained": sustained}
    results = load_results(_write(tmp_path / "results.json", content))
    assert results.memory is not None
    assert results.memory.points[1] == (0.01, 6_000_000, 5_500_000)
    assert results.memory.after_load.anonymous_bytes == 300_000
    assert results.sustained is not None
    assert results.sustained.stretches == ((1.0, 200), (2.01, 199))


@pytest.mark.parametrize(
    "content",
    [
        json.dumps(_RESULTS)[:80],
        _RESULTS | {"schema_version": 2},
        _RESULTS | {"samples_ms": []},
        _RESULTS | {"sustained": {"began_s": 0.1, "stretches": []}},
        {k: v for k, v in _RESULTS.items() if k != "threads"},
    ],
    ids=["cut short", "another schema", "no samples", "no work", "no threads"],
)
def test_unusable_results_are_told(tmp_path: Path, content: object) -> None:
    path = _write(tmp_path / "results.json", content)
    with pytest.raises(RunError, match="results cannot be read") as raised:
        load_results(path)
    assert raised.value.place == str(path)


def test_missing_results_are_told(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="ended without results"):
        load_results(tmp_path / "results.json")
