"""Outputs against the expected ones: equal, close, wrong, odd and unreadable."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from etdeploy.bench.outputs import Expectation, check_tensor, compare_outputs, compare_sizes
from etdeploy.bench.passes import Pass
from etdeploy.bench.records.outputs import OutputCheck
from etdeploy.bench.run_pass import PassResult
from etdeploy.bench.tolerance import estimate_step, limits_for
from etdeploy.program.folder import TensorFile
from etdeploy.program.generation import LogitNoise
from etdeploy.program.model import PlainValue
from etdeploy.program.quality import measure_distance
from etdeploy.recipe.sections.benchmark import Tolerance
from etdeploy.runner.protocol import RunnerOutput
from tests.support.bench_values import make_program_folder, make_results
from tests.support.facts import lacks

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


def test_rounding_is_within_and_an_error_is_not(tmp_path: Path) -> None:
    expected = _floats(100, -50, 25)
    assert _compare(tmp_path, expected + _floats(1e-3, 0, 0), expected).within_tolerance
    check = _compare(tmp_path, expected + _floats(1, 0, 0), expected)
    assert not check.within_tolerance
    assert check.max_abs_error == pytest.approx(1)
    assert check.tolerance_max_abs == pytest.approx(100 * 1e-4 + 1e-6)


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


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64", "bool"])
def test_integers_and_booleans_have_to_be_equal(tmp_path: Path, dtype: str) -> None:
    expected = np.array([0, 1, 1]).astype(dtype)
    actual = np.array([0, 1, 0]).astype(dtype)
    assert _compare(tmp_path, expected, expected).within_tolerance
    check = _compare(tmp_path, actual, expected)
    assert (check.within_tolerance, check.max_abs_error) == (False, 1)
    assert check.cosine_similarity is None
    assert _compare(tmp_path, actual, expected, max_abs_error=1.0).within_tolerance


def test_differences_of_integers_are_exact_at_both_ends() -> None:
    limits = np.iinfo("int64")
    far = measure_distance(np.array([limits.min]), np.array([limits.max]))
    assert far.max_abs_error == float(2**64 - 1)
    near = measure_distance(np.array([limits.max]), np.array([limits.max - 1]))
    assert near.max_abs_error == 1


@pytest.mark.parametrize(
    ("actual", "expected"),
    [((1, _NAN), (1, 2)), ((1, 2), (1, _NAN)), ((1, _INF), (1, -_INF)), ((1, _INF), (1, _NAN))],
)
def test_nan_and_infinity_on_one_side_are_a_problem(
    tmp_path: Path, actual: tuple[float, ...], expected: tuple[float, ...]
) -> None:
    check = _compare(tmp_path, _floats(*actual), _floats(*expected), max_abs_error=1e9)
    assert not check.within_tolerance
    assert str(check.problem).startswith("1 of 2 values")
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
    assert not lacks(shape.problem, "float32 [2, 3]", "float32 [3, 2]")
    dtype = _compare(tmp_path, np.zeros(2, "int32"), np.zeros(2, "float32"))
    assert not lacks(dtype.problem, "int32 [2]", "float32 [2]")


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
    assert [(c.name, c.problem is None) for c in checks] == [("hidden.0", True), ("mask", False)]


def test_missing_short_and_surplus_outputs_are_problems(tmp_path: Path) -> None:
    (tmp_path / "0.bin").write_bytes(bytes(8))
    (tmp_path / "1.bin").write_bytes(bytes(5))
    outputs = (_output(), _output("1.bin"), _output("2.bin"))
    checks = compare_outputs(outputs, tmp_path, _expectation(tmp_path, (2,), (2,), (2,)))
    assert [check.within_tolerance for check in checks] == [True, False, False]
    assert re.findall(r"\d\.bin|\b\d\b", str(checks[1].problem)) == ["1.bin", "5", "8"]
    assert "2.bin" in str(checks[2].problem)
    fewer = compare_outputs(outputs[:1], tmp_path, _expectation(tmp_path, (2,), (2,)))
    assert "did not return" in str(fewer[1].problem)
    more = compare_outputs(outputs[:2], tmp_path, _expectation(tmp_path, (2,)))
    assert [check.name for check in more] == ["output_0", "output_1"]
    assert "the model" in str(more[1].problem)


def test_other_kinds_and_types_are_problems(tmp_path: Path) -> None:
    expectation = _expectation(tmp_path, (2,))
    (number,) = compare_outputs((RunnerOutput(kind="Int", value=3),), tmp_path, expectation)
    assert "Int" in str(number.problem)
    strange = _expectation(tmp_path, (2,), dtype="float8_e5m2")
    (check,) = compare_outputs((_output(dtype="float8_e5m2"),), tmp_path, strange)
    assert "float8_e5m2" in str(check.problem)


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
    assert "every value is NaN" in str(check.remark)


def test_some_nan_on_both_sides_are_remarked(tmp_path: Path) -> None:
    check = _compare(tmp_path, _floats(1, _NAN, _INF), _floats(1, _NAN, _INF))
    assert (check.within_tolerance, check.max_abs_error, check.problem) == (True, 0, None)
    assert check.cosine_similarity == pytest.approx(1)
    assert str(check.remark).startswith("2 of 3 values are NaN")
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


Values = NDArray[Any]

_STEP = 2.0**-12


def _check(
    actual: Values, expected: Values, step: float | None = _STEP, **override: float
) -> OutputCheck:
    distance = measure_distance(actual, expected)
    limits = limits_for("float32", "int8_static", distance, Tolerance(**override), step)
    tensor = TensorFile(path="", dtype="float32", shape=expected.shape)
    return check_tensor("output_0", tensor, distance, limits, step)


def _rounded(values: Values) -> Values:
    """Real numbers, in steps, as an output that is quantized to 8 bits."""
    return (np.clip(np.rint(values), -128, 127) * _STEP).astype("float32")


def _logits(
    count: int = 1000, deviation: float = 4.2, offset: float = 0.0, seed: int = 0
) -> Values:
    random = np.random.default_rng(seed)
    return random.normal(offset, deviation, count)


def _noise(like: Values, share: float, seed: int = 1) -> Values:
    return np.random.default_rng(seed).normal(0, share * like.std(), like.shape)


def test_outputs_that_are_judged_as_bfloat16_may_have_its_8_bits_alone() -> None:
    expected = _logits().astype("float32")
    distance = measure_distance((expected * (1 + 2.0**-8)).astype("float32"), expected)
    for scheme, relative, cosine in (("fp16", 2e-2, 0.999), ("bf16", 6e-2, 0.995)):
        limits = limits_for("float32", scheme, distance, Tolerance())
        assert limits.max_abs_error == pytest.approx(relative * distance.largest, rel=0.01)
        assert limits.cosine_similarity == cosine


def test_logits_may_differ_by_twice_what_rounding_moves_them() -> None:
    expected = _logits().astype("float32")
    distance = measure_distance(expected, expected)
    plain = limits_for("float32", "8da4w", distance, Tolerance())
    noise = LogitNoise(max_error=plain.max_abs_error, min_cosine=0.99)
    limits = limits_for("float32", "8da4w", distance, Tolerance(), noise=noise)
    assert limits.max_abs_error == 2 * plain.max_abs_error
    assert limits.cosine_similarity == pytest.approx(0.96)
    small = LogitNoise(max_error=1e-9, min_cosine=1.0)
    assert limits_for("float32", "8da4w", distance, Tolerance(), noise=small) == plain
    own = Tolerance(max_abs_error=0.5)
    assert limits_for("float32", "8da4w", distance, own, noise=noise).max_abs_error == 0.5


@settings(deadline=None)
@given(
    count=st.integers(1, 2000),
    deviation=st.floats(0.2, 40),
    offset=st.floats(-50, 50),
    seed=st.integers(0, 2**32 - 1),
)
@example(count=1, deviation=0.2, offset=0.5, seed=0)
@example(count=1000, deviation=4.2, offset=0.0, seed=0)
def test_rounding_passes(count: int, deviation: float, offset: float, seed: int) -> None:
    values = _logits(count, deviation, offset, seed)
    check = _check(_rounded(values + _noise(values, 0.03, seed + 1)), _rounded(values))
    assert check.within_tolerance, check


def _permuted(values: Values) -> Values:
    return np.random.default_rng(3).permutation(values)


WRONG: dict[str, Callable[[Values], Values]] = {
    "permuted": _permuted,
    "zeroed": np.zeros_like,
    "sign flipped": lambda values: -values,
    "the next channel": lambda values: np.roll(values, 16),
    "reversed": lambda values: values[::-1].copy(),
    "noise": lambda values: np.random.default_rng(4).permutation(values[::-1]),
    "doubled": lambda values: 2 * values,
    "one value far off": lambda values: np.where(
        np.arange(values.size) == 7, values + 0.3 * np.abs(values).max(), values
    ),
    "many steps off": lambda values: values + 0.3 * np.abs(values).max(),
}


@pytest.mark.parametrize("kind", WRONG)
@settings(deadline=None, max_examples=30)
@given(count=st.integers(64, 2000), deviation=st.floats(4, 30), seed=st.integers(0, 2**32 - 1))
def test_wrong_outputs_fail(kind: str, count: int, deviation: float, seed: int) -> None:
    expected = _rounded(_logits(count, deviation, 0.0, seed))
    check = _check(WRONG[kind](expected).astype("float32"), expected)
    assert not check.within_tolerance, check


@pytest.mark.parametrize("kind", ["permuted", "the next channel", "reversed", "zeroed"])
def test_an_offset_hides_no_order(kind: str) -> None:
    """The cosine of these is above 0.995, and no error above 15 % of the largest value."""
    expected = _rounded(_logits(1000, 3.0, 100.0))
    assert _check(_rounded(_logits(1000, 3.0, 100.0)), expected).within_tolerance
    check = _check(WRONG[kind](expected), expected)
    assert not check.within_tolerance
    if kind != "zeroed":
        assert (check.cosine_similarity or 0) > 0.995


def test_limits_of_the_recipe_replace_those_that_they_are_about() -> None:
    expected = _rounded(_logits())
    shifted = _rounded(_logits() + 3)
    assert not _check(shifted, expected).within_tolerance
    assert not _check(shifted, expected, max_abs_error=1.0).within_tolerance
    loose = _check(shifted, expected, max_abs_error=1.0, cosine_similarity=0.5)
    assert loose.within_tolerance
    assert (loose.tolerance_rms, loose.tolerance_cosine) == (None, 0.5)
    exact = _check(_rounded(_logits() + 0.3), expected, max_abs_error=0.0)
    assert not exact.within_tolerance


@settings(deadline=None)
@given(scale=st.floats(1e-20, 1e20), seed=st.integers(0, 2**32 - 1))
def test_the_step_of_values_on_a_grid_is_found(scale: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    values = (random.integers(-20, 20, 400) * scale).astype("float32")
    other = (random.integers(-20, 20, 400) * scale).astype("float32")
    assert estimate_step(values, other) == pytest.approx(scale, rel=1e-4)


@settings(deadline=None)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(10, 100))
def test_values_off_a_grid_have_no_step(seed: int, count: int) -> None:
    random = np.random.default_rng(seed)
    values = random.standard_normal(count).astype("float32")
    assert estimate_step(values, values) is None
    grid = (random.integers(-20, 20, count) * 0.25).astype("float32")
    assume(np.unique(grid).size > 4)
    off = np.float32(0.25 / np.pi) * (np.arange(count) == 0)
    assert estimate_step(grid + off, grid) is None


@pytest.mark.parametrize("values", [(), (1.0,), (0.0, 0.0), (0.1, 0.3, 0.4), (np.nan, np.inf)])
def test_too_few_values_have_no_step(values: tuple[float, ...]) -> None:
    assert estimate_step(np.array(values), np.array(values)) is None


def test_more_values_than_a_quantization_has_are_no_grid() -> None:
    values = np.arange(1 << 18).astype("float32")
    assert estimate_step(values, values) is None


def test_steps_too_few_to_tell_zeros_are_remarked() -> None:
    expected = _rounded(_logits(1000, 0.4))
    check = _check(expected, expected)
    assert check.within_tolerance
    assert "zeros would pass" in str(check.remark)
    assert _check(np.zeros_like(expected), expected).within_tolerance
    assert _check(_rounded(_logits()), _rounded(_logits())).remark is None


_TIMING = Pass("timing", 0, 1, outputs=True)


def _result() -> PassResult:
    output = RunnerOutput(kind="Tensor", dtype="float32", shape=(2, 4), path="0.bin")
    results = make_results(outputs=(output,))
    return PassResult(_TIMING, results, 1.0, datetime.now(timezone.utc))


@pytest.mark.parametrize(
    ("backend", "scheme", "within"),
    [
        ("xnnpack", "none", False),
        ("qnn", "none", True),  # Qualcomm's HTP computes floats in 16 bits
        ("qnn", "fp16", True),
    ],
)
def test_a_backend_without_32_bit_floats_is_judged_so(
    tmp_path: Path, backend: str, scheme: str, within: bool
) -> None:
    program = tmp_path / "program"
    provenance = make_program_folder(program, backend=backend, quantization=scheme)
    wanted = np.linspace(0.5, 1.0, 8, dtype=np.float32)
    (program / "expected/0.bin").write_bytes(wanted.tobytes())
    given = tmp_path / _TIMING.outputs_folder
    given.mkdir()
    (given / "0.bin").write_bytes((wanted + np.float32(1e-3)).tobytes())
    found = compare_sizes({_TIMING.key: _result()}, tmp_path, program, provenance, Tolerance())
    assert [check.within_tolerance for check in found[""]] == [within]
