"""When outputs and texts end the run with an error, and with which remedy."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pytest
import yaml

from etdeploy.bench.outputs import check_text
from etdeploy.bench.records.outputs import OutputCheck, TextCheck
from etdeploy.bench.records.stored import StoredRun
from etdeploy.bench.verdict import explain, require_match
from etdeploy.core.errors import MismatchError
from etdeploy.devices.base import Capabilities
from etdeploy.program.generation import ExpectedText, GreedyText, LogitNoise, NextToken
from etdeploy.recipe.sections.benchmark import Tolerance
from tests.support.bench_values import (
    FOLDER,
    UNCOMPARED,
    make_check,
    make_device,
    make_program,
    make_run,
)
from tests.support.facts import lacks
from tests.support.text_values import (
    make_expected,
    make_text_check,
    make_text_record,
    make_text_workload,
)

_WRONG = make_check(max_abs_error=0.5, cosine_similarity=0.91, within_tolerance=False)


def test_the_worst_output_is_named_with_its_limits() -> None:
    worse = make_check(name="output_1", max_abs_error=2.5, within_tolerance=False)
    run = make_run(outputs=(make_check(), _WRONG, worse))
    with pytest.raises(MismatchError) as raised:
        require_match(run)
    error = raised.value
    assert error.exit_code == 8
    assert not lacks(
        error.message,
        "output_1 ",
        "2.5 (tolerance 0.0001)",
        "1 (at least 0.9999)",
        "2 of 3",
    )
    assert error.log == run.record_path


def test_a_problem_is_worse_than_any_error() -> None:
    problem = make_check(name="output_2", within_tolerance=False, problem="no such output")
    with pytest.raises(MismatchError, match="output_2 "):
        require_match(make_run(outputs=(_WRONG, problem)))


@pytest.mark.parametrize("backend", ["portable", None])
def test_remedies_leave_out_what_is_the_case_already_or_what_a_finished_program_ignores(
    backend: str | None,
) -> None:
    run = make_run(outputs=(_WRONG,), program=make_program(backend=backend))
    with pytest.raises(MismatchError) as raised:
        require_match(run, Capabilities(is_here=True))
    remedy = str(raised.value.remedy)
    assert "export.backend" not in remedy
    assert "--device" not in remedy


def test_outputs_that_are_nan_on_both_sides_are_no_fault_of_the_device() -> None:
    require_match(make_run(outputs=(make_check(), UNCOMPARED)))
    with pytest.raises(MismatchError, match=r"output_0 .* 0\.5 "):
        require_match(make_run(outputs=(_WRONG, UNCOMPARED)))


def test_a_cosine_is_told_apart_from_its_limit() -> None:
    check = make_check(cosine_similarity=0.9999999999998, tolerance_cosine=1.0)
    assert "0.9999999999998 " in explain(check)


@pytest.mark.parametrize(
    "outputs",
    [
        (_WRONG, make_check(max_abs_error=3.0, tolerance_max_abs=10.0)),
        (make_check(cosine_similarity=0.9999999999998, tolerance_cosine=1.0,
                    within_tolerance=False),),
        (make_check(max_abs_error=2e-4, rms_error=1.1e-4, tolerance_rms=1e-4,
                    tolerance_cosine=None, cosine_similarity=0.994, within_tolerance=False),),
        (make_check(cosine_similarity=-1.0, within_tolerance=False),),
        (make_check(cosine_similarity=1e-7, within_tolerance=False),),
        (make_check(max_abs_error=1e-5 / 1.2, tolerance_max_abs=1e-9, within_tolerance=False),),
        (make_check(max_abs_error=1e10 / 1.2, within_tolerance=False),),
    ],
)  # fmt: skip
def test_with_the_limits_of_the_remedy_every_output_passes(
    outputs: tuple[OutputCheck, ...],
) -> None:
    with pytest.raises(MismatchError) as raised:
        require_match(make_run(outputs=outputs))
    given = dict(re.findall(r"tolerance\.(\w+)=(\S+)", str(raised.value.remedy)))
    assert given
    # As --set reads them.
    assert all(isinstance(yaml.safe_load(text), float) for text in given.values())
    for check in outputs:
        most = float(given.get("max_abs_error", check.tolerance_max_abs or 0.0))
        least = float(given.get("cosine_similarity", check.tolerance_cosine or -1.0))
        assert (check.max_abs_error or 0.0) <= most
        assert (check.cosine_similarity or -1.0) >= least


def test_an_error_within_its_limit_is_not_loosened() -> None:
    turned = make_check(cosine_similarity=0.9, within_tolerance=False)
    with pytest.raises(MismatchError) as raised:
        require_match(make_run(outputs=(turned,)))
    assert "tolerance.max_abs_error" not in str(raised.value.remedy)
    assert "tolerance.cosine_similarity=0.88" in str(raised.value.remedy)


EXPECTED = make_expected((10, 11, 12, 13), behind=(0.0, 0.0001, 0.5))


def _known(text: ExpectedText, count: int) -> list[dict[int, float]]:
    """The model's own logits, at as many positions."""
    choice = text.expected.tokens[0]
    return [dict.fromkeys(range(len(choice.sample)), 0.0)] * count


def _checked(*ids: int, quantization: str | None = None, **limits: float) -> TextCheck:
    """The verdict where the device's logits are the model's, as far as they are compared."""
    tolerance = Tolerance.model_validate(limits)
    logits = _known(EXPECTED, len(ids))
    return check_text("text_0", ids, EXPECTED, quantization, tolerance, logits=logits)


# Of a vocabulary of 20: each token's logit rises evenly, and the last one's is the largest.
RISING = tuple(i / 2 for i in range(20))
BROKEN = dict.fromkeys(range(5, 8), RISING[::-1])
FOLLOWED = ExpectedText(
    prompt_ids=(1,),
    original=GreedyText(
        tokens=(NextToken(ids=(19, 18), behind=(0, 0.5), largest=9.5, best=9.5, sample=RISING),) * 8
    ),
)


def _followed(
    wrong: Mapping[int, Sequence[float]], noise: LogitNoise | None = None, **limits: float
) -> TextCheck:
    """The verdict where the device has other logits at some of the eight positions."""
    logits = [wrong.get(i, RISING) for i in range(8)]
    return check_text(
        "text_0",
        [max(range(20), key=list(each).__getitem__) for each in logits],
        FOLLOWED.model_copy(update={"noise": noise}),
        "8da4w",
        Tolerance.model_validate(limits),
        logits=[dict(enumerate(each)) for each in logits],
    )


def test_every_position_is_compared_also_after_another_token() -> None:
    tie = (*RISING[:18], 9.3, 9.2)
    right = _followed({0: tie})
    assert (right.within_tolerance, right.equal_tokens, right.compared_tokens) == (True, 0, 8)
    assert right.gap == 0.5
    assert right.max_logit_error == pytest.approx(0.3)
    # From the sixth on, the logits are those of another text.
    broken = _followed({0: tie} | BROKEN)
    assert (broken.within_tolerance, broken.wrong_token) == (False, 6)
    assert broken.max_logit_error == 9.5
    assert broken.min_cosine == pytest.approx(-1)
    assert broken.as_output.problem is not None
    assert "token 6 of 8" in broken.as_output.problem


def test_logits_that_are_all_a_little_off_are_wrong_and_a_shift_is_not() -> None:
    # 5 % of the largest is 0.475.
    rough = [value + 0.45 * (-1) ** i * 2 * (i % 3 - 1) for i, value in enumerate(RISING)]
    small = [value * 0.01 for value in RISING]
    shifted = [value + 0.4 for value in RISING]
    assert _followed({3: shifted}).within_tolerance
    assert _followed({3: small}).within_tolerance is False
    assert _followed({3: rough}).wrong_token == 4


def test_what_rounding_alone_does_to_a_model_is_within_tolerance() -> None:
    rough = [value + 0.45 * (-1) ** i * 2 * (i % 3 - 1) for i, value in enumerate(RISING)]
    as_rough = LogitNoise(max_error=0.6, min_cosine=0.98)
    right = _followed({3: rough}, noise=as_rough)
    assert (right.within_tolerance, right.tolerance_logit) == (True, 1.2)
    assert right.tolerance_cosine == pytest.approx(0.92)
    assert _followed(BROKEN, noise=as_rough).wrong_token == 6
    # Where rounding does little, the scheme's own tolerance holds.
    calm = LogitNoise(max_error=0.01, min_cosine=1.0)
    assert _followed({3: rough}, noise=calm).wrong_token == 4


def test_a_token_that_is_nearly_as_probable_is_right() -> None:
    # The candidates after the first are 100 and 200 more; logits are at most 10.
    found = _checked(10, 11, 112, 13)
    assert (found.within_tolerance, found.equal_tokens, found.gap) == (True, 2, 0.0001)
    assert found.gap_is_exact
    assert found.tolerance_gap == pytest.approx(2 * (1e-6 + 1e-4 * 10))
    assert re.findall(r"[\d.]+", str(found.parting)) == ["3", "4", "112", "12", "0.0001", "0.002"]
    assert (found.as_output.problem, found.as_output.remark) == (None, found.parting)


def test_a_token_of_which_nothing_is_known_is_no_less_wrong() -> None:
    found = _checked(10, 7, 12, 13)
    assert (found.within_tolerance, found.gap, found.gap_is_exact) == (False, 0.5, False)
    right = _checked(10, 7, 12, 13, quantization="8da4w")
    assert (right.within_tolerance, right.gap_is_exact) == (True, False)
    assert "at least 0.5" in str(right.parting)


def test_the_recipes_limit_counts_for_each_of_both_logits() -> None:
    assert _checked(10, 211, 12, 13, max_abs_error=0.25).within_tolerance
    assert _checked(10, 211, 12, 13, max_abs_error=0.24).within_tolerance is False


@pytest.mark.parametrize("ids", [(10, 11), (10, 11, 12, 13, 14)])
def test_a_text_of_another_length_is_wrong(ids: tuple[int, ...]) -> None:
    found = _checked(*ids)
    assert found.within_tolerance is False
    assert found.parting == f"it has {len(ids)} tokens in place of 4"


def test_a_quantized_text_is_judged_by_the_quantized_model() -> None:
    expected = make_expected((10, 20, 12), quantized=(10, 11, 12))
    logits = _known(expected, 3)
    found = check_text("text_0", (10, 11, 12), expected, "8da4w", Tolerance(), logits=logits)
    assert (found.within_tolerance, found.expected_ids) == (True, (10, 11, 12))
    assert (found.original_ids, found.original_equal_tokens) == ((10, 20, 12), 1)


def test_a_wrong_text_ends_the_run_with_what_to_do() -> None:
    wrong = make_text_check(
        token_ids=(10, 99), expected_ids=(10, 11), equal_tokens=1, gap=0.5, tolerance_gap=0.002,
        wrong_token=2, max_logit_error=0.25, within_tolerance=False,
    )  # fmt: skip
    workload = make_text_workload().model_copy(update={"texts": (make_text_check(), wrong)})
    record = make_text_record(
        workload=workload, device=make_device("qemu"), files={"text": "text.json"},
        program=make_program(method="decode", quantization="8da4w"),
    )  # fmt: skip
    with pytest.raises(MismatchError) as raised:
        require_match(StoredRun(FOLDER, record))
    assert not lacks(raised.value.message, "text_0 (int64 [2])", "token 2 of 2", "0.25 (0.001 is")
    backend, device, tolerance, place = str(raised.value.remedy).splitlines()
    assert backend.split()[-3::2] == ["export.backend=portable", "export.quantization=none"]
    assert device.endswith("--device host")
    assert tolerance.endswith("--set benchmark.tolerance.max_abs_error=0.3")
    assert place.endswith(str(FOLDER / "text.json"))
