"""How failures of the worker read, and the exceptions that etdeploy explains."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.core.diagnostics import Diagnosis
from etdeploy.core.processes.process import Outcome
from etdeploy.export.diagnostics import LOWERING_FAILURES
from etdeploy.export.protocol import ExportFailure, parse_progress, progress_line
from etdeploy.export.run import crash_error, failure_error
from etdeploy.export.worker.failures import (
    exception_text,
    failed_kernel,
    failed_pass,
    named_operator,
    runtime_refusal,
    user_remedy,
)

LOG = Path("/logs/export.log")
# Exceptions as they were met, whole.
TEXTS = Path(__file__).parents[2] / "data/export/messages"
EXPLAINED = Diagnosis("the model is too large", "Quantize it.")


def test_a_failure_at_a_line_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    failure = ExportFailure(
        kind="data-dependent",
        message="torch.export cannot trace the model",
        operator="Tensor.__bool__",
        file=str(tmp_path / "model.py"),
        line=19,
        code="if x.sum() > 0:",
        remedy="Use torch.where.",
    )
    error = failure_error(failure, LOG)
    assert error.exit_code == 3
    assert str(error) == (
        "model.py:19: torch.export cannot trace the model (operator Tensor.__bool__)\n"
        "    if x.sum() > 0:\n"
        "  what to do: Use torch.where.\n"
        "  log: /logs/export.log"
    )


def test_the_diagnosis_of_the_backend_comes_first() -> None:
    failure = ExportFailure(kind="lowering", message="AssertionError", file="/m.py", line=3)
    error = failure_error(failure, LOG, EXPLAINED)
    crash = crash_error(Outcome(("worker",), -11, "", "", 1.0), LOG, EXPLAINED)
    for found in (error, crash):
        assert (found.message, found.remedy) == (EXPLAINED.cause, EXPLAINED.remedy)
    assert error.place == "/m.py:3"


def test_a_model_that_cannot_do_what_is_requested_is_a_usage_error() -> None:
    error = failure_error(ExportFailure(kind="speech", message="no", file="r.yaml:1:8"), LOG)
    assert (error.exit_code, error.place) == (2, "r.yaml:1:8")


def test_an_operator_is_named_once() -> None:
    failure = ExportFailure(kind="operator", message="aten::foo", operator="aten::foo")
    assert failure_error(failure, LOG).message == "aten::foo"


@pytest.mark.parametrize(
    ("exit_code", "facts"),
    [(-9, ("SIGKILL", "memory")), (-11, ("SIGSEGV", "native code")), (7, ("exit code 7",))],
)
def test_a_worker_that_describes_no_failure(exit_code: int, facts: tuple[str, ...]) -> None:
    error = crash_error(Outcome((), exit_code, "", "", 1.0), LOG)
    assert not [fact for fact in facts if fact not in error.message]
    assert error.remedy
    assert error.log == LOG


@pytest.mark.parametrize(
    ("line", "step"),
    [
        (progress_line("lowering to xnnpack", 0.7), ("lowering to xnnpack", 0.7)),
        ("::progress 7 far", ("far", 1.0)),
        *((line, None) for line in ("", "hello", "::progress", "::progress x y", "::progress 1")),
    ],
)
def test_progress_lines(line: str, step: tuple[str, float] | None) -> None:
    assert parse_progress(line) == step


@pytest.mark.parametrize(
    ("name", "kind", "operator", "tensor"),
    [
        ("complex_dtypes", "operator", "aten::abs", None),
        ("complex_autograd", "operator", "aten::view_as_complex", None),
        ("data_dependent_size", "data-dependent", "aten::slice", None),
        ("constant_written", "lowering", None, "lifted_tensor_0"),
    ],
)
def test_an_exception_of_lowering_is_known(
    name: str, kind: str, operator: str | None, tensor: str | None
) -> None:
    text = (TEXTS / f"{name}.txt").read_text()
    found = LOWERING_FAILURES.diagnose(text)
    assert found is not None
    facts = found.facts
    assert (facts["kind"], facts.get("tensor")) == (kind, tensor)
    assert (facts.get("operator") or named_operator(text)) == operator
    assert found.remedy


@pytest.mark.parametrize(
    ("text", "cause", "kind"),
    [
        (
            "Operator torch._ops.aten._linalg_svd.default is not in Core ATen opset",
            "operator aten::_linalg_svd",
            "operator",
        ),
        ("s0 must have a finite upper bound", "largest one: s0 must", "dynamic-shapes"),
        (
            "Node aten_linear_default with op <EdgeOpOverload: aten.linear.default>: schema = "
            "aten::linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor was not "
            "decomposed or delegated.",
            "no kernel",
            "operator",
        ),
    ],
)
def test_a_cause_has_the_names_of_the_exception(text: str, cause: str, kind: str) -> None:
    found = LOWERING_FAILURES.diagnose(text)
    assert found is not None
    assert cause in found.cause
    assert found.facts["kind"] == kind


def test_names_in_an_exception_of_a_graph() -> None:
    text = "An error occurred when running the 'LiftScalars' pass after the following passes: ['A']"
    assert failed_pass(text) == "LiftScalars"
    assert failed_pass("An error occurred") is None
    assert named_operator("with op <EdgeOpOverload: aten.linear.default>") == "aten::linear"
    assert named_operator("no such thing") is None
    assert LOWERING_FAILURES.diagnose("no such thing") is None


def test_a_heading_is_joined_with_the_line_below_it() -> None:
    text = exception_text(ValueError((TEXTS / "complex_dtypes.txt").read_text()))
    assert text.startswith("ValueError: These operators")
    assert "Operator: <EdgeOpOverload: aten.abs.default>" in text


# As torch 2.13 words them.
@pytest.mark.parametrize(
    ("error", "helps"),
    [
        (AssertionError("Torch not compiled with CUDA enabled"), "map_location='cpu'"),
        (RuntimeError("Found no NVIDIA driver on your system."), "map_location='cpu'"),
        (TypeError("Net.forward() missing 1 required positional argument: 'x'"), "the arguments"),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x9 and 8x8)"), "data types"),
        (RuntimeError("Tensor on device meta is not on the expected device cpu!"), "meta device"),
        (RuntimeError("view size is not compatible with input tensor's size"), "reshape()"),
        (ValueError("no such thing"), "in Python, without"),
    ],
)
def test_a_model_that_raises_has_a_remedy(error: Exception, helps: str) -> None:
    assert helps in (user_remedy(error, "model-raised") or "")


def test_the_remedies_of_a_factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    missing = [FileNotFoundError(2, "no", "data/none.pt"), FileNotFoundError(2, "no", "/a/b.pt")]
    remedy = user_remedy(missing[0], "factory-raised")
    assert remedy is not None
    assert f"data/none.pt was looked for in {tmp_path}," in remedy
    assert "Path(__file__).parent / 'data/none.pt'" in remedy
    assert user_remedy(missing[1], "factory-raised") is None
    assert user_remedy(ValueError("no such thing"), "factory-raised") is None
    operator = AttributeError("'_OpNamespace' 'my' object has no attribute 'double'")
    assert "export.custom_ops=" in (user_remedy(operator, "factory-raised") or "")


LOGGED = """[cpuinfo_utils.cpp:71] Reading file /sys/devices/soc0/image_version
[kernel_ops_util.cpp:394] Check failed (in.dim() == 3): Expect 3-D, but got, 5.
[method.cpp:1483] KernelCall failed at instruction 0:0 in operator aten::convolution.out: 0x12
"""


def test_the_first_line_that_the_runtime_logged_is_the_reason() -> None:
    reason = runtime_refusal("method->execute() failed with error 0x12", LOGGED)
    assert reason == "invalid argument (Check failed (in.dim() == 3): Expect 3-D, but got, 5.)"
    unlogged = "Failed to load method forward, error: 0x:1"
    assert runtime_refusal(unlogged) == f"internal error ({unlogged})"
    assert runtime_refusal(f"{unlogged}4") is None  # no such operator here
    assert failed_kernel(LOGGED) == "aten::convolution"
    assert failed_kernel("[XNNExecutor.cpp:169] Internal Error") is None
