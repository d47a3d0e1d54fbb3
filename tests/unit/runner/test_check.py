"""What a runner is missing for a program is named, each with its remedy."""

from __future__ import annotations

import pytest

from etdeploy.core.errors import CheckError
from etdeploy.program.model import Method
from etdeploy.runner.missing import check_program, require_runnable
from tests.support.runtime_values import make_method, make_program, make_runner

_PROGRAM = make_program(
    make_method(
        "forward",
        operators=("aten::add.out", "executorch_prim::add.Scalar"),
        delegates=("XnnpackBackend", "XnnpackBackend"),
    ),
    make_method("encode", operators=("aten::add.out", "my_ops::glu.out")),
)
_OPERATORS = ("aten::add.out", "executorch_prim::add.Scalar")


def test_runner_with_everything_passes() -> None:
    runner = make_runner((*_OPERATORS, "my_ops::glu.out"), ("XnnpackBackend",))
    assert check_program(_PROGRAM, runner) == ()
    require_runnable(_PROGRAM, runner)


def test_each_missing_operator_and_backend_is_named_once() -> None:
    missing = check_program(_PROGRAM, make_runner(("executorch_prim::add.Scalar",)))
    assert [(*m.what.split(), m.why.partition(" by ")[2]) for m in missing] == [
        ("backend", "XnnpackBackend", "method forward"),
        ("operator", "aten::add.out", "methods forward, encode"),
        ("operator", "my_ops::glu.out", "method encode"),
    ]


def test_a_kernel_of_another_release_of_etdeploy_is_named_as_such() -> None:
    program = make_program(make_method(operators=("etdeploy::later.out",)))
    [missing] = check_program(program, make_runner(_OPERATORS))
    assert "etdeploy::later.out" in missing.remedy
    assert "custom_ops" not in missing.remedy


def test_overload_counts() -> None:
    program = make_program(make_method(operators=("aten::add.Scalar_out",)))
    [missing] = check_program(program, make_runner(_OPERATORS))
    assert missing.what.split() == ["operator", "aten::add.Scalar_out"]


def test_error_names_all_and_the_way_out() -> None:
    with pytest.raises(CheckError) as raised:
        require_runnable(_PROGRAM, make_runner(_OPERATORS))
    error = raised.value
    assert error.exit_code == 5
    assert all(name in error.message for name in ("XnnpackBackend", "my_ops::glu.out", "encode"))
    assert all(name in str(error.remedy) for name in ("backend_xnnpack", "my_ops::"))


@pytest.mark.parametrize("backend_id", ["VulkanBackend", "MadeUpBackend"])
def test_backend_of_no_wheel_has_a_remedy(backend_id: str) -> None:
    program = make_program(make_method(delegates=(backend_id,)))
    (missing,) = check_program(program, make_runner())
    assert missing.what == f"backend {backend_id}"
    assert "export.backend=xnnpack" in missing.remedy


def test_who_builds_from_source_already_is_not_told_to() -> None:
    program = make_program(make_method(delegates=("QnnBackend",)))
    runner = make_runner().model_copy(update={"provider": "source"})
    (missing,) = check_program(program, runner)
    assert "runtime.provider" not in missing.remedy
    assert "clean builds runners" in missing.remedy


@pytest.mark.parametrize(
    "method",
    [
        make_method(delegates=("VulkanBackend",)),
        make_method(delegates=("MadeUpBackend",)),
        make_method(operators=("aten::add.out",)),
    ],
)
def test_a_finished_program_is_not_told_to_be_lowered_anew(method: Method) -> None:
    (missing,) = check_program(make_program(method), make_runner(), finished=True)
    assert "export." not in missing.remedy
