"""Outputs against the expected ones: equal, close, wrong, odd and unreadable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from etdeploy.bench.records.outputs import OutputCheck
from etdeploy.bench.sizes import Expectation, compare_outputs
from etdeploy.program.distance import measure_distance
from etdeploy.program.folder import TensorFile
from etdeploy.program.model import PlainValue
from etdeploy.recipe.model import Tolerance
from etdeploy.runner.protocol import RunnerOutput

_NAN, _INF = float("nan"), float("inf")


def _store(folder: Path, values: NDArray[Any]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "0.bin").write_bytes(values.tobytes())


def _compare(
    folder: Path,
    actual: NDArray[Any],
    expected: NDArray[Any],
    dtype: str = "",
    quantization: str = "none",
    max_abs_error: float | None = None,
    cosine_similarity: float | None = None,
) -> OutputCheck:
    """The check of one output; `dtype` differs from the arrays' only for bfloat16."""
    _store(folder / "actual", actual)
    _store(folder / "expected", expected)
    name = dtype or expected.dtype.name
    output = RunnerOutput(
        kind="Tensor", dtype=dtype or actual.dtype.name, shape=actual.shape, path="0.bin"
    )
    tensor = TensorFile(path="expected/0.bin", dtype=name, shape=expected.shape)
    tolerance = Tolerance(max_abs_error=max_abs_error, cosine_similarity=cosine_similarity)
    expectation = Expectation((tensor,), folder, quantization, tolerance)
    (check,) = compare_outputs((output,), folder / "actual", expectation)
    return check


def _floats(*values: float, dtype: str = "float32") -> NDArray[Any]:
    return np.array(values, dtype)


def test_equal_outputs(tmp_path: Path) -> None:
    check = _compare(tmp_path, _floats(1, 2, 3), _floats(1, 2, 3))
    assert (check.max_abs_error, check.within_tolerance, check.problem) == (0, True, None)
    assert check.cosine_similarity == pytest.approx(1)


def test_rounding_is_within_and_an_error_is_not(tmp_path: Path) -> None:
    expected = _floats(100, -50, 25)
    assert _compare(tmp_path, expected + _floats(1e-3, 0, 0), expected).within_tolerance
    check = _compare(tmp_path, expected + _floats(1, 0, 0), expected)
    assert not check.within_tolerance
    assert check.max_abs_error == pytest.approx(1)
    assert check.tolerance_max_abs == pytest.approx(100 * 1e-4 + 1e-6)


def test_permuted_outputs_are_wrong(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((4, 8)).astype("float32")
    check = _compare(tmp_path, values[::-1].copy(), values)
    assert not check.within_tolerance
    assert check.cosine_similarity is not None
    assert check.cosine_similarity < 0.9


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_judged_more_widely(tmp_path: Path, dtype: str) -> None:
    values = np.linspace(-1, 1, 64, dtype="float32")
    noisy = values + np.float32(5e-3)
    if dtype == "bfloat16":
        stored = [(v.view(np.uint32) >> 16).astype("uint16") for v in (noisy, values)]
        check = _compare(tmp_path, stored[0], stored[1], dtype)
    else:
        check = _compare(tmp_path, noisy.astype(dtype), values.astype(dtype))
    assert check.within_tolerance
    assert 2e-3 < (check.max_abs_error or 0) < 2e-2
    assert not _compare(tmp_path, noisy, values).within_tolerance


def test_bfloat16_is_the_upper_half_of_a_float(tmp_path: Path) -> None:
    one_and_two, one_and_four = np.array([0x3F80, 0x4000]), np.array([0x3F80, 0x4080])
    check = _compare(
        tmp_path, one_and_four.astype("uint16"), one_and_two.astype("uint16"), "bfloat16"
    )
    assert check.max_abs_error == 2


def test_quantised_programs_are_judged_more_widely(tmp_path: Path) -> None:
    expected = np.linspace(-1, 1, 255, dtype="float32")
    shifted = expected + np.float32(3 / 127)
    assert not _compare(tmp_path, shifted, expected).within_tolerance
    for scheme in ("int8_static", "int8_dynamic", "8da4w"):
        assert _compare(tmp_path, shifted, expected, quantization=scheme).within_tolerance
        broken = expected + np.where(np.arange(255) % 2, 0.14, -0.14).astype("float32")
        assert not _compare(tmp_path, broken, expected, quantization=scheme).within_tolerance


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64", "bool"])
def test_integers_and_booleans_have_to_be_equal(tmp_path: Path, dtype: str) -> None:
    expected = np.array([0, 1, 1]).astype(dtype)
    actual = np.array([0, 1, 0]).astype(dtype)
    assert _compare(tmp_path, expected, expected).within_tolerance
    check = _compare(tmp_path, actual, expected)
    assert (check.within_tolerance, check.max_abs_error) == (False, 1)
    assert check.cosine_similarity is None


def test_differences_of_integers_are_exact_at_both_ends() -> None:
    limits = np.iinfo("int64")
    far = measure_distance(np.array([limits.min]), np.array([limits.max]))
    assert far.max_abs_error == float(2**64 - 1)
    near = measure_distance(np.array([limits.max]), np.array([limits.max - 1]))
    assert near.max_abs_error == 1


def test_recipe_overrides_both_limits(tmp_path: Path) -> None:
    expected, actual = _floats(1, 0), _floats(1, 0.5)
    loose = _compare(tmp_path, actual, expected, max_abs_error=0.6, cosine_similarity=0.8)
    assert loose.within_tolerance
    assert not _compare(tmp_path, actual, expected, max_abs_error=0.6).within_tolerance
    assert not _compare(tmp_path, actual, expected, cosine_similarity=0.8).within_tolerance
    strict = _compare(tmp_path, expected + _floats(1e-7, 0), expected, max_abs_error=0.0)
    assert not strict.within_tolerance
    one_off = _compare(tmp_path, np.array([5, 6]), np.array([5, 7]), max_abs_error=1.0)
    assert one_off.within_tolerance


def test_nan_and_infinity_of_the_model_itself_are_equal(tmp_path: Path) -> None:
    values = _floats(1, _NAN, _INF, -_INF)
    check = _compare(tmp_path, values, values)
    assert (check.within_tolerance, check.max_abs_error, check.problem) == (True, 0, None)
    assert check.cosine_similarity == pytest.approx(1)


@pytest.mark.parametrize(
    ("actual", "expected"),
    [((1, _NAN), (1, 2)), ((1, 2), (1, _NAN)), ((1, _INF), (1, -_INF)), ((1, _INF), (1, _NAN))],
)
def test_nan_and_infinity_on_one_side_are_a_problem(
    tmp_path: Path, actual: tuple[float, ...], expected: tuple[float, ...]
) -> None:
    check = _compare(tmp_path, _floats(*actual), _floats(*expected), max_abs_error=1e9)
    assert not check.within_tolerance
    assert str(check.problem).startswith("1 of 2 values are NaN or infinite")
    assert check.max_abs_error == 0


def test_zeros_instead_of_values_are_wrong(tmp_path: Path) -> None:
    check = _compare(tmp_path, _floats(0, 0), _floats(1, 2), max_abs_error=5.0)
    assert (check.within_tolerance, check.cosine_similarity) == (False, 0)
    both = _compare(tmp_path, _floats(0, 0), _floats(0, 0))
    assert (both.within_tolerance, both.cosine_similarity) == (True, 1)


def test_the_angle_between_negligible_differences_is_not_judged(tmp_path: Path) -> None:
    check = _compare(tmp_path, _floats(1e-9, -1e-9), _floats(-1e-9, 1e-9))
    assert check.within_tolerance
    assert check.cosine_similarity == pytest.approx(-1)


def test_extreme_magnitudes_neither_overflow_nor_vanish(tmp_path: Path) -> None:
    huge, tiny = _floats(1.7e308, 1e308, dtype="float64"), _floats(1e-300, 2e-300, dtype="float64")
    for values in (huge, tiny):
        check = _compare(tmp_path, values, values)
        assert check.within_tolerance
        assert check.cosine_similarity == pytest.approx(1)
    far = _compare(tmp_path, -huge, huge)
    assert not far.within_tolerance
    assert far.cosine_similarity == pytest.approx(-1)
    assert OutputCheck.model_validate_json(far.model_dump_json()) == far


def test_empty_and_scalar_tensors(tmp_path: Path) -> None:
    empty = np.zeros((0, 3), "float32")
    assert _compare(tmp_path, empty, empty).within_tolerance
    assert _compare(tmp_path, np.float32(2).reshape(()), np.float32(2).reshape(())).within_tolerance


def test_another_shape_or_data_type_is_a_problem(tmp_path: Path) -> None:
    shape = _compare(tmp_path, np.zeros((2, 3), "float32"), np.zeros((3, 2), "float32"))
    assert shape.problem == "float32 [2, 3] was received instead of float32 [3, 2]"
    dtype = _compare(tmp_path, np.zeros(2, "int32"), np.zeros(2, "float32"))
    assert dtype.problem == "int32 [2] was received instead of float32 [2]"


def _expectation(folder: Path, *shapes: tuple[int, ...], dtype: str = "float32") -> Expectation:
    (folder / "expected").mkdir(exist_ok=True)
    tensors = []
    for i, shape in enumerate(shapes):
        (folder / f"expected/{i}.bin").write_bytes(bytes(4 * int(np.prod(shape))))
        tensors.append(TensorFile(path=f"expected/{i}.bin", dtype=dtype, shape=shape))
    return Expectation(tuple(tensors), folder, None, Tolerance())


def _output(path: str = "0.bin", dtype: str = "float32") -> RunnerOutput:
    return RunnerOutput(kind="Tensor", dtype=dtype, shape=(2,), path=path)


@pytest.mark.parametrize(
    ("expected", "output", "right"),
    [
        (PlainValue(kind="Int", value=3), RunnerOutput(kind="Int", value=3), True),
        (PlainValue(kind="Int", value=3), RunnerOutput(kind="Int", value=4), False),
        (PlainValue(kind="Bool", value=True), RunnerOutput(kind="Bool", value=False), False),
        (PlainValue(kind="Double", value=0.1), RunnerOutput(kind="Double", value=0.1000001), True),
        (PlainValue(kind="Double", value=0.1), RunnerOutput(kind="Double", value=0.2), False),
        (PlainValue(kind="Double"), RunnerOutput(kind="Double"), True),
        (PlainValue(kind="Double", value=0.1), RunnerOutput(kind="Double"), False),
        (PlainValue(kind="None"), RunnerOutput(kind="None"), True),
        (PlainValue(kind="None"), RunnerOutput(kind="Int", value=0), False),
    ],
)
def test_plain_values(
    tmp_path: Path, expected: PlainValue, output: RunnerOutput, right: bool
) -> None:
    expectation = Expectation((expected,), tmp_path, None, Tolerance())
    (check,) = compare_outputs((output,), tmp_path, expectation)
    assert (check.within_tolerance, check.shape) == (right, ())


def test_outputs_have_the_names_that_the_model_gives_them(tmp_path: Path) -> None:
    named = _expectation(tmp_path, (2,)).tensors[0].model_copy(update={"name": "hidden.0"})
    expectation = Expectation(
        (named, PlainValue(kind="None", name="mask")), tmp_path, None, Tolerance()
    )
    checks = compare_outputs((_output(),), tmp_path / "expected", expectation)
    assert [(c.name, c.problem) for c in checks] == [
        ("hidden.0", None),
        ("mask", "the device gave no such output"),
    ]


def test_missing_short_and_surplus_outputs_are_problems(tmp_path: Path) -> None:
    (tmp_path / "0.bin").write_bytes(bytes(8))
    (tmp_path / "1.bin").write_bytes(bytes(5))
    outputs = (_output(), _output("1.bin"), _output("2.bin"))
    checks = compare_outputs(outputs, tmp_path, _expectation(tmp_path, (2,), (2,), (2,)))
    assert [check.within_tolerance for check in checks] == [True, False, False]
    assert checks[1].problem == "1.bin has 5 bytes instead of 8"
    assert str(checks[2].problem).startswith("2.bin cannot be read")
    fewer = compare_outputs(outputs[:1], tmp_path, _expectation(tmp_path, (2,), (2,)))
    assert fewer[1].problem == "the device gave no such output"
    more = compare_outputs(outputs[:2], tmp_path, _expectation(tmp_path, (2,)))
    assert [check.name for check in more] == ["output_0", "output_1"]
    assert more[1].problem == "the model has no such output"


def test_other_kinds_and_types_are_problems(tmp_path: Path) -> None:
    expectation = _expectation(tmp_path, (2,))
    (number,) = compare_outputs((RunnerOutput(kind="Int", value=3),), tmp_path, expectation)
    assert number.problem == "a value of kind Int was received instead of a tensor"
    strange = _expectation(tmp_path, (2,), dtype="float8_e5m2")
    (check,) = compare_outputs((_output(dtype="float8_e5m2"),), tmp_path, strange)
    assert check.problem == "outputs of data type float8_e5m2 cannot be compared"


def test_paths_that_leave_the_folder_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret.bin").write_bytes(bytes(8))
    (tmp_path / "actual").mkdir()
    expectation = _expectation(tmp_path, (2,))
    (check,) = compare_outputs((_output("../secret.bin"),), tmp_path / "actual", expectation)
    assert "leads out" in str(check.problem)


def test_nothing_is_compared_without_expected_outputs(tmp_path: Path) -> None:
    assert compare_outputs((_output(),), tmp_path, _expectation(tmp_path)) == ()


@pytest.mark.parametrize("values", [(_NAN, _NAN), (_INF, -_INF), (_NAN, _INF)])
def test_nothing_but_nan_on_both_sides_is_not_compared(
    tmp_path: Path, values: tuple[float, ...]
) -> None:
    check = _compare(tmp_path, _floats(*values), _floats(*values))
    assert check.within_tolerance is None
    assert (check.problem, check.max_abs_error) == (None, None)
    assert check.remark == "every value is NaN or infinite, in the model's own output too"


def test_some_nan_on_both_sides_are_remarked(tmp_path: Path) -> None:
    check = _compare(tmp_path, _floats(1, _NAN, _INF), _floats(1, _NAN, _INF))
    assert check.within_tolerance is True
    assert check.remark == "2 of 3 values are NaN or infinite, in the model's own output too"
    assert _compare(tmp_path, _floats(1, 2), _floats(1, 2)).remark is None


def test_nan_on_one_side_stays_wrong_where_nothing_is_finite(tmp_path: Path) -> None:
    check = _compare(tmp_path, _floats(1, 2), _floats(_NAN, _NAN))
    assert (check.within_tolerance, check.remark) == (False, None)
    assert str(check.problem).startswith("2 of 2 values")


def test_a_cosine_of_one_is_met_by_equal_outputs_alone(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal(1000).astype("float32")
    assert _compare(tmp_path, values, values, cosine_similarity=1.0).within_tolerance
    assert _compare(tmp_path, values, values).cosine_similarity == 1.0
    near = values.copy()
    # The angle's square is 1e-13: far more than what processors differ in when they add up.
    near[0] += np.float32(1e-5)
    check = _compare(tmp_path, near, values, cosine_similarity=1.0)
    assert 0.999999999999 < (check.cosine_similarity or 0) < 1
    assert check.within_tolerance is False
