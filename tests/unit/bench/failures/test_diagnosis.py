"""What is said of a finished program, which no option of the recipe can export again."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.bench.diagnosis import run_error
from etdeploy.core.errors import RunError
from etdeploy.devices.base import RunOutcome
from tests.support.bench_values import make_recipe

_XNNPACK = "E 1 executorch:a.cpp:1] XNNPACKBackend::init Failed to initialize XNNPACK"


def _remedy(stderr: str, code: int = 5, signal: str | None = None) -> str:
    outcome = RunOutcome(code, signal, "", stderr, 1.0)
    recipe = make_recipe(model={"program": "model.pte"})
    return run_error(outcome, "timing", recipe, "android:X", Path("/out/stderr.txt")).remedy or ""


@pytest.mark.parametrize(
    ("stderr", "helps"),
    [
        ("Missing operator: [0] my::op.out", "for a backend that takes\nthe operator"),
        (_XNNPACK, "export the model\nagain without XNNPACK"),
        ("Backend FooBackend is not registered", "export the model again for another backend"),
        ("Backend FooBackend is not available.", "export the model again for another backend"),
        ("Backend QnnBackend is not registered", "export the model again for another backend"),
        ("etdeploy-runner: error: out of memory", "export a smaller model"),
        ("model.pte is no sound program", "with the runner's version of ExecuTorch"),
        ("Request feature vtcm size with value 8 unsupported", "again for this phone's SoC"),
        ("Unknown QNN BinaryInfo version 3", "Export the model\nagain with it"),
        ("Failed to interpret QNN context binary. Error code 1", "Export the model\nagain with it"),
        ("Can't create context from binary. Error 5000", "export the model again with it"),
    ],
)
def test_a_finished_program_has_to_be_exported_again(stderr: str, helps: str) -> None:
    remedy = _remedy(stderr)
    assert helps in remedy
    assert "and name the new file in\nmodel.program" in remedy
    assert "--set export." not in remedy
    assert "clean programs" not in remedy


@pytest.mark.parametrize(
    ("code", "signal"), [(137, "SIGKILL"), (139, "SIGSEGV"), (134, "SIGABRT"), (3, None)]
)
def test_a_finished_program_that_ends_badly(code: int, signal: str | None) -> None:
    remedy = _remedy("etdeploy-runner: error: odd", code, signal)
    assert "and name the new file in\nmodel.program" in remedy
    assert "export." not in remedy


def test_the_inputs_of_a_finished_program_are_made_again() -> None:
    remedy = _remedy("etdeploy-runner: error: method forward expects input 0", code=4)
    assert remedy == "Make its inputs again: etdeploy clean programs"


@pytest.mark.parametrize(
    "said", ["of 49152 logits, 7 are NaN", "the largest of 49152 logits is infinity"]
)
def test_logits_that_are_no_numbers_are_told_with_their_place(said: str) -> None:
    line = f"etdeploy-runner: error: point point-0: after 129 tokens, {said}"
    error = _error(line)
    assert "the logits after 129 tokens are not numbers" in error.message
    assert said in error.message
    assert "--set export.quantization=none" in (error.remedy or "")


_UNAVAILABLE = """\
E 00:00:00.004421 executorch:OpenvinoBackend.cpp:57] OpenVINO runtime not found (dlopen failed: \
libopenvino_c.so: cannot open shared object file: No such file or directory). Ensure \
'libopenvino_c.so' is on your library search path (set OPENVINO_LIB_PATH or LD_LIBRARY_PATH), or \
install with: pip install "openvino>=2025.1.0,<2026.0.0"
E 00:00:00.004433 executorch:method.cpp:90] Backend OpenvinoBackend is not available.
etdeploy-runner: backend OpenvinoBackend is linked, but not available
etdeploy-runner: error: method forward cannot be loaded: Error::NotFound
"""


def _error(stderr: str) -> RunError:
    outcome = RunOutcome(3, None, "", stderr, 1.0)
    return run_error(outcome, "timing", make_recipe(), "host", Path("/out/stderr.txt"))


def test_a_backend_that_cannot_be_used_is_not_called_missing() -> None:
    told = _error(_UNAVAILABLE)
    assert (
        "OpenvinoBackend is in the runner, but not available on this device: OpenVINO's library "
        "cannot be loaded (libopenvino_c.so: cannot open shared object file" in told.message
    )
    assert "unset OPENVINO_LIB_PATH" in (told.remedy or "")
    # A runner without ExecuTorch's log says it, too.
    silent = _error("etdeploy-runner: backend FooBackend is linked, but not available\n")
    assert "FooBackend is in the runner, but not available on this device" in silent.message
    assert "clean runners" not in (silent.remedy or "")


def test_a_c_library_that_is_too_old_is_named() -> None:
    stderr = "r: /lib/libc.so.6: version `GLIBC_2.38' not found (required by /r/libexecutorch.so)"
    outcome = RunOutcome(1, None, "", stderr, 0.1)
    error = run_error(outcome, "timing", make_recipe(), "ssh:pi", Path("/out/stderr.txt"))
    assert "it does not have GLIBC_2.38" in error.message
    assert "--target linux-aarch64-portable" in str(error.remedy)
