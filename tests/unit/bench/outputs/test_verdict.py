"""When a record's outputs end the run with an error, and what that says."""

from __future__ import annotations

import re

import pytest
import yaml

from etdeploy.bench.outputs.verdict import explain, require_match
from etdeploy.bench.records.outputs import OutputCheck
from etdeploy.core.errors import MismatchError
from etdeploy.devices.base import Capabilities
from tests.support.bench_values import (
    UNCOMPARED,
    make_check,
    make_device,
    make_program,
    make_run,
)

_WRONG = make_check(max_abs_error=0.5, cosine_similarity=0.91, within_tolerance=False)


def test_outputs_within_tolerance_pass() -> None:
    require_match(make_run())


def test_nothing_to_compare_passes() -> None:
    require_match(make_run(outputs=()))


def test_the_worst_output_is_named_with_its_limits() -> None:
    worse = make_check(name="output_1", max_abs_error=2.5, within_tolerance=False)
    run = make_run(outputs=(make_check(), _WRONG, worse))
    with pytest.raises(MismatchError) as raised:
        require_match(run)
    error = raised.value
    assert error.exit_code == 8
    assert error.message == (
        "output_1 (float32 [2, 4]) is not what the model gives: largest error 2.5 "
        "(tolerance 0.0001), cosine similarity 1 (at least 0.9999); 2 of 3 outputs differ"
    )
    assert error.log == run.record_path


def test_a_problem_is_worse_than_any_error() -> None:
    problem = make_check(name="output_2", within_tolerance=False, problem="no such output")
    with pytest.raises(MismatchError, match=r"output_2 .* no such output"):
        require_match(make_run(outputs=(_WRONG, problem)))


def test_remedies_name_what_can_be_tried() -> None:
    run = make_run(
        outputs=(_WRONG,),
        device=make_device("qemu"),
        program=make_program(quantization="int8_static"),
    )
    with pytest.raises(MismatchError) as raised:
        require_match(run)
    remedy = str(raised.value.remedy)
    assert "--set export.backend=portable --set export.quantization=none" in remedy
    assert "--device host" in remedy
    assert "--set benchmark.tolerance.max_abs_error=0.6" in remedy
    assert "--set benchmark.tolerance.cosine_similarity=0.892" in remedy
    assert str(run.folder / "outputs") in remedy


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


def test_explanation_of_integers_has_no_cosine() -> None:
    check = make_check(cosine_similarity=None, max_abs_error=0.0, tolerance_max_abs=0.0)
    assert explain(check) == "largest error 0 (tolerance 0)"


def test_outputs_that_are_nan_on_both_sides_are_no_fault_of_the_device() -> None:
    require_match(make_run(outputs=(make_check(), UNCOMPARED)))
    with pytest.raises(MismatchError, match=r"output_0 .* largest error 0\.5"):
        require_match(make_run(outputs=(_WRONG, UNCOMPARED)))


def test_a_cosine_is_told_apart_from_its_limit() -> None:
    check = make_check(cosine_similarity=0.9999999999998, tolerance_cosine=1.0)
    assert explain(check).endswith("cosine similarity 0.9999999999998 (at least 1)")


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
