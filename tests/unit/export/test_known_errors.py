"""Exceptions as they were met, and what they mean: the texts are kept whole."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from etdeploy.export.worker.failures import (
    Meaning,
    exception_text,
    failed_kernel,
    failed_pass,
    lowering_meaning,
    named_operator,
    runtime_refusal,
    user_remedy,
)

TEXTS = Path(__file__).parents[2] / "data/export/messages"


@pytest.mark.parametrize(
    ("name", "kind", "operator", "tensor"),
    [
        ("complex_dtypes", "operator", "aten::abs", None),
        ("complex_autograd", "operator", "aten::view_as_complex", None),
        ("data_dependent_size", "data-dependent", "aten::slice", None),
        ("item", "data-dependent", "aten::item", None),
        ("constant_written", "lowering", None, "lifted_tensor_0"),
    ],
)
def test_a_text_that_was_met_is_known(
    name: str, kind: str, operator: str | None, tensor: str | None
) -> None:
    meaning = lowering_meaning((TEXTS / f"{name}.txt").read_text())
    assert meaning is not None
    assert (meaning.kind, meaning.operator, meaning.tensor) == (kind, operator, tensor)
    assert meaning.message
    assert meaning.remedy


def test_an_operator_that_the_backend_left_and_no_kernel_runs() -> None:
    meaning = lowering_meaning(
        "Node aten_linear_default with op <EdgeOpOverload: aten.linear.default>: schema = "
        "aten::linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor was not decomposed "
        "or delegated."
    )
    assert meaning is not None
    assert (meaning.kind, meaning.operator) == ("operator", "aten::linear")


def test_what_the_backend_knows_comes_first() -> None:
    own = Meaning("lowering", "own", "remedy")
    assert lowering_meaning("torch.complex64", ((re.compile("complex"), own),)) == own


def test_the_pass_that_failed_is_named() -> None:
    text = "An error occurred when running the 'LiftScalars' pass after the following passes: ['A']"
    assert failed_pass(text) == "LiftScalars"
    assert failed_pass("An error occurred") is None


def test_any_other_text_is_not() -> None:
    assert lowering_meaning("no such thing") is None
    assert named_operator("no such thing") is None


def test_a_heading_is_told_with_what_stands_under_it() -> None:
    text = exception_text(ValueError((TEXTS / "complex_dtypes.txt").read_text()))
    assert text.startswith(
        "ValueError: These operators are taking Tensor inputs with mismatched dtypes: Operator: "
        "<EdgeOpOverload: aten.abs.default>"
    )


# As torch 2.13 words them.
@pytest.mark.parametrize(
    ("error", "start"),
    [
        (AssertionError("Torch not compiled with CUDA enabled"), "Models are exported on the CPU"),
        (RuntimeError("Found no NVIDIA driver on your system."), "Models are exported on the CPU"),
        (
            TypeError("Net.forward() missing 1 required positional argument: 'x'"),
            "Compare the example inputs",
        ),
        (
            RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x9 and 8x8)"),
            "Compare the example inputs",
        ),
        (
            RuntimeError("Tensor on device meta is not on the expected device cpu!"),
            "Give the parameters values",
        ),
        (ValueError("no such thing"), "Call the module with the same inputs in Python"),
    ],
)
def test_a_model_that_raises_has_a_remedy(error: Exception, start: str) -> None:
    remedy = user_remedy(error, "model-raised")
    assert remedy is not None
    assert remedy.startswith(start)


def test_a_file_that_is_looked_for_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError) as caught:
        Path("data/none.pt").read_bytes()
    assert user_remedy(caught.value, "factory-raised") == (
        f"data/none.pt was looked for in {tmp_path}, the working folder. A file beside the model "
        "is\nPath(__file__).parent / 'data/none.pt'"
    )


def test_a_file_with_a_whole_path_is_just_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        (tmp_path / "none.pt").read_bytes()
    assert user_remedy(caught.value, "factory-raised") is None


def test_a_factory_that_raises_something_of_its_own_has_its_line_only() -> None:
    assert user_remedy(ValueError("no such thing"), "factory-raised") is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Failed to load method forward, error: 0x:1", "internal error"),
        ("loading method forward failed with error 0x12", "invalid argument"),
        ("Failed to load method forward, error: 0x:14", None),  # no such operator here
        ("something else", None),
    ],
)
def test_what_the_runtime_says_of_a_program_has_a_reason(text: str, reason: str | None) -> None:
    found = runtime_refusal(text)
    assert found == (reason and f"{reason} ({text})")


LOGGED = """[cpuinfo_utils.cpp:71] Reading file /sys/devices/soc0/image_version
[kernel_ops_util.cpp:394] Check failed (in.dim() == 3): Expect 3-D, but got, 5.
[method.cpp:1483] KernelCall failed at instruction 0:0 in operator aten::convolution.out: 0x12
"""


def test_the_first_line_that_the_runtime_logged_is_the_reason() -> None:
    text = "method->execute() failed with error 0x12"
    reason = "invalid argument (Check failed (in.dim() == 3): Expect 3-D, but got, 5.)"
    assert runtime_refusal(text, LOGGED) == reason
    assert failed_kernel(LOGGED) == "aten::convolution"
    assert failed_kernel("[XNNExecutor.cpp:169] Internal Error") is None
