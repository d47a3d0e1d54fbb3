"""How failures of the worker read, and the lines that it reports progress with."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.core.diagnostics import Diagnosis
from etdeploy.core.processes.process import Outcome
from etdeploy.export.failure import crash_error, failure_error
from etdeploy.export.protocol import ExportFailure, parse_progress, progress_line

LOG = Path("/logs/export.log")


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


def test_a_file_elsewhere_keeps_its_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    failure = ExportFailure(kind="weights", message="no", file=str(tmp_path / "w.pt"))
    assert failure_error(failure, LOG).place == str(tmp_path / "w.pt")


def test_what_the_backend_makes_of_the_output_comes_first() -> None:
    failure = ExportFailure(
        kind="lowering", message="AssertionError: no binary", file="/m.py", line=3
    )
    error = failure_error(failure, LOG, Diagnosis("the model is too large", "Quantise it."))
    assert (error.message, error.remedy) == ("the model is too large", "Quantise it.")
    assert str(error).startswith("/m.py:3: ")


def test_what_is_asked_of_the_model_and_does_not_fit_it_is_no_failed_export() -> None:
    failure = ExportFailure(
        kind="speech", message="the model has no chat template", file="r.yaml:1:8"
    )
    error = failure_error(failure, LOG)
    assert (error.exit_code, error.place) == (2, "r.yaml:1:8")


def test_a_crash_that_the_backend_explains() -> None:
    outcome = Outcome(("worker",), -11, "", "", 1.0)
    error = crash_error(outcome, LOG, Diagnosis("the model is too large", "Quantise it."))
    assert (error.message, error.remedy) == ("the model is too large", "Quantise it.")


def test_an_operator_is_named_once() -> None:
    failure = ExportFailure(
        kind="operator", message="aten::foo has no kernel", operator="aten::foo"
    )
    assert failure_error(failure, LOG).message == "aten::foo has no kernel"


@pytest.mark.parametrize(
    ("exit_code", "message"),
    [
        (-9, "the export process was killed (SIGKILL); the usual cause is that memory ran out"),
        (
            -11,
            "the export process crashed (SIGSEGV), in native code of PyTorch, ExecuTorch or an "
            "extension that the model uses",
        ),
        (
            7,
            "the export process ended with code 7 without saying why; code that the model imports "
            "may have ended it",
        ),
    ],
)
def test_a_worker_that_could_not_say_why(exit_code: int, message: str) -> None:
    error = crash_error(Outcome((), exit_code, "", "", 1.0), LOG)
    assert error.message == message
    assert error.remedy
    assert error.log == LOG


def test_progress_lines_come_back_as_they_went() -> None:
    assert parse_progress(progress_line("lowering to xnnpack", 0.7)) == ("lowering to xnnpack", 0.7)


@pytest.mark.parametrize("line", ["", "hello", "::progress", "::progress x y", "::progress 1"])
def test_other_lines_are_not_progress(line: str) -> None:
    assert parse_progress(line) is None


def test_a_fraction_stays_between_0_and_1() -> None:
    assert parse_progress("::progress 7 far") == ("far", 1.0)
