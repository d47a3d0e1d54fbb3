"""B's outputs against A's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etdeploy.bench.records.stored import StoredRun
from etdeploy.compare.runs import output_differences
from etdeploy.runner.protocol import RunnerOutput
from tests.support.bench_values import make_record, make_results


def _tensor(folder: Path, values: list[float], dtype: str = "float32") -> RunnerOutput:
    (folder / "outputs").mkdir(exist_ok=True)
    np.array(values, dtype).tofile(folder / "outputs" / "0.bin")
    return RunnerOutput(kind="Tensor", dtype=dtype, shape=(len(values),), path="0.bin")


def _run(folder: Path, *outputs: RunnerOutput) -> StoredRun:
    folder.mkdir(exist_ok=True)
    make_results(outputs=outputs).save(folder / "timing.json")
    return StoredRun(folder, make_record(files={"timing": "timing.json", "outputs": "outputs"}))


@pytest.fixture
def a(tmp_path: Path) -> Path:
    (tmp_path / "a").mkdir()
    return tmp_path / "a"


@pytest.fixture
def b(tmp_path: Path) -> Path:
    (tmp_path / "b").mkdir()
    return tmp_path / "b"


def test_tensors_are_measured_against_each_other(a: Path, b: Path) -> None:
    runs = _run(a, _tensor(a, [1.0, 0.0])), _run(b, _tensor(b, [0.0, 1.0]))
    [found] = output_differences(*runs)
    assert (found.name, found.problem) == ("output_0", None)
    assert found.max_abs_error == 1.0
    assert found.cosine_similarity == 0.0


def test_nan_on_one_side_is_a_problem_and_on_both_it_is_none(a: Path, b: Path) -> None:
    nan = float("nan")
    runs = _run(a, _tensor(a, [1.0, nan, nan])), _run(b, _tensor(b, [1.0, nan, 2.0]))
    [found] = output_differences(*runs)
    assert found.max_abs_error == 0.0
    assert str(found.problem).startswith("1 of 3 values ")


def _int(value: float | None, kind: str = "Int") -> RunnerOutput:
    return RunnerOutput(kind=kind, value=value)


@pytest.mark.parametrize(
    ("in_a", "in_b", "error", "problem"),
    [
        ([_int(3)], [_int(5)], 2.0, None),
        ([_int(3)], [_int(3.0, "Double")], None, "Int in A and Double in B"),
        ([_int(None, "Double")], [_int(1.0, "Double")], None, "a value is not a number"),
        ([_int(3)], [], None, "only A has it"),
        ([], [_int(3)], None, "only B has it"),
    ],
)
def test_other_values_are_compared_too(
    a: Path, b: Path, in_a: list[Any], in_b: list[Any], error: float | None, problem: str | None
) -> None:
    [found] = output_differences(_run(a, *in_a), _run(b, *in_b))
    assert (found.max_abs_error, found.problem) == (error, problem)


def test_other_forms_and_damaged_files_are_told(a: Path, b: Path) -> None:
    in_a, in_b = _tensor(a, [1.0, 2.0]), _tensor(b, [1.0, 2.0], "float16")
    [found] = output_differences(_run(a, in_a), _run(b, in_b))
    assert str(found.problem).split(" and ") == ["float32 [2] in A", "float16 [2] in B"]
    (b / "outputs" / "0.bin").write_bytes(b"1")
    [found] = output_differences(_run(a, in_a), _run(b, in_a))
    assert "1 bytes instead of 8" in str(found.problem)


def test_a_path_out_of_the_folder_is_not_followed(a: Path, b: Path) -> None:
    out = RunnerOutput(kind="Tensor", dtype="float32", shape=(1,), path="../../secret")
    [found] = output_differences(_run(a, out), _run(b, out))
    assert "leads out of" in str(found.problem)


def test_a_record_alone_has_no_outputs(a: Path, b: Path) -> None:
    run = _run(a, _tensor(a, [1.0]))
    assert output_differences(run, StoredRun(b, make_record())) == ()
    (b / "timing.json").write_text("{")
    assert output_differences(run, StoredRun(b, run.record)) == ()
