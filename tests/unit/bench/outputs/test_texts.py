"""Texts of a device against those of the eager model."""

from __future__ import annotations

import pytest

from etdeploy.bench.outputs.texts import check_text, common, enough_tolerance
from etdeploy.bench.outputs.verdict import require_match
from etdeploy.bench.records.stored import StoredRun
from etdeploy.core.errors import MismatchError
from etdeploy.recipe.model import Tolerance
from tests.support.bench_values import FOLDER, make_device, make_program
from tests.support.text_values import (
    make_expected,
    make_text_check,
    make_text_record,
    make_text_workload,
)

EXPECTED = make_expected((10, 11, 12, 13), behind=(0.0, 0.0001, 0.5))


def _checked(*ids: int, quantization: str | None = None, **limits: float):  # type: ignore[no-untyped-def]
    tolerance = Tolerance.model_validate(limits)
    return check_text("text_0", ids, EXPECTED, quantization, tolerance)


def test_equal_texts_are_right() -> None:
    found = _checked(10, 11, 12, 13)
    assert (found.within_tolerance, found.equal_tokens, found.parting) == (True, 4, None)
    assert (found.gap, found.tolerance_gap, found.original_ids) == (None, None, None)


def test_a_token_that_is_nearly_as_probable_is_right_and_the_rest_is_not_compared() -> None:
    # The candidates after the first are 100 and 200 more; logits are at most 10.
    found = _checked(10, 11, 112, 99)
    assert (found.within_tolerance, found.equal_tokens, found.gap) == (True, 2, 0.0001)
    assert found.tolerance_gap == pytest.approx(2 * (1e-6 + 1e-4 * 10))
    assert found.parting == (
        "token 3 of 4 is 112 in place of 12, whose logit is 0.0001 larger (0.002 is within "
        "tolerance)"
    )
    assert (found.as_output.problem, found.as_output.remark) == (None, found.parting)


def test_a_token_that_is_less_probable_is_wrong() -> None:
    found = _checked(10, 211, 12, 13)
    assert (found.within_tolerance, found.gap, found.gap_is_exact) == (False, 0.5, True)
    assert (found.as_output.problem, found.as_output.remark) == (found.parting, None)
    # Logits of a quantised program may be farther off: a twentieth of the largest.
    assert _checked(10, 211, 12, 13, quantization="8da4w").within_tolerance


def test_a_token_of_which_nothing_is_known_is_no_less_wrong() -> None:
    found = _checked(10, 7, 12, 13)
    assert (found.within_tolerance, found.gap, found.gap_is_exact) == (False, 0.5, False)
    assert found.parting is not None
    assert "whose logit is at least 0.5 larger" in found.parting


def test_a_first_token_of_which_nothing_is_known_says_nothing() -> None:
    assert _checked(7, 7, 12, 13, quantization="8da4w").within_tolerance is None
    assert _checked(10, 7, 12, 13, quantization="8da4w").within_tolerance


def test_the_recipes_limit_counts_for_each_of_both_logits() -> None:
    assert _checked(10, 211, 12, 13, max_abs_error=0.25).within_tolerance
    assert _checked(10, 211, 12, 13, max_abs_error=0.24).within_tolerance is False


@pytest.mark.parametrize("ids", [(10, 11), (10, 11, 12, 13, 14)])
def test_a_text_of_another_length_is_wrong(ids: tuple[int, ...]) -> None:
    found = _checked(*ids)
    assert found.within_tolerance is False
    assert found.parting == f"it has {len(ids)} tokens in place of 4"


def test_a_quantised_text_is_judged_by_the_quantised_model() -> None:
    expected = make_expected((10, 20, 12), quantized=(10, 11, 12))
    found = check_text("text_0", (10, 11, 12), expected, "8da4w", Tolerance())
    assert (found.within_tolerance, found.expected_ids) == (True, (10, 11, 12))
    assert (found.original_ids, found.original_equal_tokens) == ((10, 20, 12), 1)


def test_common_tokens() -> None:
    assert (common((1, 2, 3), (1, 2, 4)), common((1, 2), (1, 2, 3)), common((), (1,))) == (2, 2, 0)


def test_a_wrong_text_ends_the_run_with_what_to_do() -> None:
    wrong = make_text_check(
        token_ids=(10, 99), expected_ids=(10, 11), equal_tokens=1, gap=0.5, tolerance_gap=0.002,
        within_tolerance=False,
    )  # fmt: skip
    workload = make_text_workload().model_copy(update={"texts": (make_text_check(), wrong)})
    record = make_text_record(
        workload=workload, device=make_device("qemu"), files={"text": "text.json"},
        program=make_program(method="decode", quantization="8da4w"),
    )  # fmt: skip
    with pytest.raises(MismatchError) as raised:
        require_match(StoredRun(FOLDER, record))
    assert raised.value.message == (
        "text_0 (int64 [2]) is not what the model gives: token 2 of 2 is 99 in place of 11, whose "
        "logit is 0.5 larger (0.002 is within tolerance)"
    )
    assert raised.value.remedy == (
        "See whether the backend is the cause: --set export.backend=portable "
        "--set export.quantization=none\n"
        "See whether the device is the cause: --device host\n"
        "If the difference is acceptable, allow it: --set benchmark.tolerance.max_abs_error=0.3\n"
        f"What the device generated is in {FOLDER / 'text.json'}"
    )


def test_no_tolerance_is_named_where_none_is_known_to_be_enough() -> None:
    wrong = make_text_check(gap=0.5, gap_is_exact=False, within_tolerance=False)
    assert enough_tolerance([wrong]) is None
    assert enough_tolerance([make_text_check()]) is None
