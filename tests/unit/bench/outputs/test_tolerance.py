"""The limits of outputs on a grid: rounding passes, what is wrong does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from etdeploy.bench.outputs.tolerance import estimate_step, limits_for
from etdeploy.bench.records.outputs import OutputCheck
from etdeploy.bench.sizes import judged
from etdeploy.program.distance import measure_distance
from etdeploy.program.folder import TensorFile
from etdeploy.recipe.model import Tolerance

Values = NDArray[Any]

_STEP = 2.0**-12


def _check(
    actual: Values, expected: Values, step: float | None = _STEP, **override: float
) -> OutputCheck:
    distance = measure_distance(actual, expected)
    limits = limits_for("float32", "int8_static", distance, Tolerance(**override), step)
    tensor = TensorFile(path="", dtype="float32", shape=expected.shape)
    return judged("output_0", tensor, distance, limits, step)


def _rounded(values: Values) -> Values:
    """Real numbers, in steps, as an output that is quantised to 8 bits."""
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


def test_one_step_in_a_fifth_of_few_values_is_rounding() -> None:
    """What int8 MobileNetV3-small with random weights gives: 28 values, 19 % one step off."""
    expected = np.rint(_logits())
    random = np.random.default_rng(2)
    off = np.where(random.random(1000) < 0.193, random.choice([-1, 1], 1000), 0)
    check = _check(_rounded(expected + off), _rounded(expected))
    assert check.max_abs_error == _STEP
    assert (check.cosine_similarity or 1) < 0.995
    assert check.within_tolerance
    assert check.tolerance_cosine is None


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


def test_more_values_than_a_quantisation_has_are_no_grid() -> None:
    values = np.arange(1 << 18).astype("float32")
    assert estimate_step(values, values) is None


def test_steps_too_few_to_tell_zeros_are_remarked() -> None:
    expected = _rounded(_logits(1000, 0.4))
    check = _check(expected, expected)
    assert check.within_tolerance
    assert "zeros would pass" in str(check.remark)
    assert _check(np.zeros_like(expected), expected).within_tolerance
    assert _check(_rounded(_logits()), _rounded(_logits())).remark is None
