"""How the end of a runner or of an app is explained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from etdeploy.bench.diagnosis import app_error, last_lines, run_error
from etdeploy.core.errors import RunError
from etdeploy.devices.base import Capabilities, RunOutcome
from etdeploy.recipe.load import load_recipe
from tests.support.bench_values import make_recipe
from tests.support.facts import lacks

_LOG = Path("/out/run/runner.stderr.txt")
_OWN = "etdeploy-runner: error: "
_TEXT: dict[str, Any] = {"model": {"hf": "some/model"}}
_FINISHED: dict[str, Any] = {"model": {"program": "model.pte"}}
_NEW_FILE = ("model.program", "new file")


def _ended(code: int | None, stderr: str = "", signal: str | None = None) -> RunOutcome:
    return RunOutcome(code, signal, "", stderr, 1.0, timed_out=code is None)


def _error(
    outcome: RunOutcome | str, name: str = "timing", iterations: int | None = None, **sections: Any
) -> tuple[str, str]:
    """The message and the remedy for an ending, or for the last lines of a runner."""
    if isinstance(outcome, str):
        outcome = _ended(5, outcome)
    error = run_error(
        outcome, name, make_recipe(**sections), "android:X", _LOG, iterations=iterations
    )
    assert (error.exit_code, error.place, error.log) == (7, "android:X", _LOG)
    assert error.remedy
    return error.message, error.remedy


def test_a_kill_is_for_lack_of_memory_unless_it_is_known_not_to_be() -> None:
    killed = _ended(137, signal="SIGKILL")
    message, remedy = _error(replace(killed, out_of_memory=False))
    assert "memory ran out" not in message
    assert "smaller" not in remedy
    assert "memory ran out" in _error(replace(killed, out_of_memory=True))[0]
    message, _ = _error(replace(killed, timed_out=True))
    assert "took longer than" in message
    assert "memory" not in message


@pytest.mark.parametrize(
    ("name", "iterations", "sections", "facts", "remedies"),
    [
        (
            "timing", None, {"benchmark": {"timeout_s": 30.0, "iterations": 500}},
            ["30 s", "so many iterations"],
            ["benchmark.timeout_s=60", "benchmark.iterations=50"],
        ),
        (
            "timing", 1, {"benchmark": {"timeout_s": 60, "iterations": 100}},
            ["60 s", "too slow on this device"],
            ["benchmark.timeout_s=120"],
        ),
        (
            "timing", 9, _TEXT,
            ["so many tokens"],
            ["benchmark.timeout_s=", "benchmark.iterations=1",
             "'benchmark.generation.new_tokens=[16]'"],
        ),
        (
            "generation", 9, _TEXT,
            ["so many tokens"], ["benchmark.timeout_s=", "--max-new-tokens 16"],
        ),
    ],
)  # fmt: skip
def test_the_remedy_of_a_time_limit_is_more_time_or_less_work(
    name: str, iterations: int | None, sections: Any, facts: list[str], remedies: list[str]
) -> None:
    message, remedy = _error(_ended(None), name, iterations, **sections)
    assert not lacks(message, *facts)
    assert not lacks(remedy, *remedies)
    settings = remedy.replace("'", "").split()
    assert len([each for each in settings if "=" in each or each.startswith("--max")]) == len(
        remedies
    )
    if sections is _TEXT:
        assert load_recipe("llm-xnnpack", [each for each in settings if "=" in each])


_UNAVAILABLE = """\
E 00:00:00.004421 executorch:OpenvinoBackend.cpp:57] OpenVINO runtime not found (dlopen failed: \
libopenvino_c.so: cannot open shared object file: No such file or directory). Ensure \
'libopenvino_c.so' is on your library search path (set OPENVINO_LIB_PATH or LD_LIBRARY_PATH), or \
install with: pip install "openvino>=2025.1.0,<2026.0.0"
E 00:00:00.004433 executorch:method.cpp:90] Backend OpenvinoBackend is not available.
etdeploy-runner: backend OpenvinoBackend is linked, but not available
etdeploy-runner: error: method forward cannot be loaded: Error::NotFound
"""


@pytest.mark.parametrize(
    ("code", "stderr", "cause", "remedy", "absent"),
    [
        (
            4,
            "E 00:00:00.001 executorch:method.cpp:724] Missing operator: [0] my::op.out\n"
            f"{_OWN}method forward cannot be loaded: OperatorMissing\n",
            "no kernel for my::op.out",
            "etdeploy clean runners", "?",
        ),
        (
            4, "E executorch:method.cpp:95] Backend QnnBackend is not registered.\n",
            "QnnBackend is not in", "export.backend=xnnpack", "?",
        ),
        (4, f"{_OWN}out of memory\n", "memory ran out", "quantization", "?"),
        (
            4, f"{_OWN}cannot write outputs/0.bin: No space left on device\n",
            "storage is full", "clean --device android:X", "?",
        ),
        (
            4, "ld.so: error while loading shared libraries: libfoo.so.1: cannot open\n",
            "library libfoo.so.1", "clean runners", "?",
        ),
        (
            4, 'CANNOT LINK EXECUTABLE "x": library "libfoo.so" not found\n',
            "library libfoo.so", "clean runners", "?",
        ),
        (4, "sh: ./x: not executable: Exec format error\n", "processor", "--target", "?"),
        (
            4, f"{_OWN}method forward expects input 0 of float32 [2], got 'x'\n",
            "expects input 0 of float32", "etdeploy clean programs", "?",
        ),
        (
            5, f"{_OWN}method forward failed: InvalidState\nterminating\n",
            "forward failed: InvalidState", "export.backend=portable", "?",
        ),
        (
            3, f"{_OWN}point point-0: after 129 tokens, of 49152 logits, 7 are NaN",
            "logits after 129 tokens", "export.quantization=none", "runners",
        ),
        (
            3, f"{_OWN}point point-0: after 129 tokens, the largest of 49152 logits is infinity",
            "logits after 129 tokens", "export.quantization=none", "runners",
        ),
        (
            3, _UNAVAILABLE,
            "OpenvinoBackend is in the runner, but not available on this device: OpenVINO's "
            "library cannot be loaded (libopenvino_c.so: cannot open",
            "unset OPENVINO_LIB_PATH", "runners",
        ),
        # A runner without ExecuTorch's log says it, too.
        (
            3, "etdeploy-runner: backend FooBackend is linked, but not available\n",
            "FooBackend is in the runner, but not available", "See the log", "clean runners",
        ),
        (
            1, "r: /lib/libc.so.6: version `GLIBC_2.38' not found (required by /r/libexecutorch)",
            "does not have GLIBC_2.38", "linux-aarch64-portable", "runners",
        ),
    ],
)  # fmt: skip
def test_last_words_are_understood(
    code: int, stderr: str, cause: str, remedy: str, absent: str
) -> None:
    message, told = _error(_ended(code, stderr))
    assert f"exit code {code}" in message
    assert message.count(cause) == 1
    assert remedy in told
    assert absent not in told


@pytest.mark.parametrize(
    ("stderr", "code", "signal", "helps"),
    [
        ("Missing operator: [0] my::op.out", 5, None, "takes\nthe operator"),
        (
            "E 1 executorch:a.cpp:1] XNNPACKBackend::init Failed to initialize XNNPACK",
            5, None, "without XNNPACK",
        ),
        ("Backend FooBackend is not registered", 5, None, "another backend"),
        ("Backend FooBackend is not available.", 5, None, "another backend"),
        ("Backend QnnBackend is not registered", 5, None, "another backend"),
        (f"{_OWN}out of memory", 5, None, "a smaller model"),
        ("model.pte is no sound program", 5, None, "version of ExecuTorch"),
        ("Request feature vtcm size with value 8 unsupported", 5, None, "this phone's SoC"),
        ("Unknown QNN BinaryInfo version 3", 5, None, "again with it"),
        ("Failed to interpret QNN context binary. Error code 1", 5, None, "again with it"),
        ("Can't create context from binary. Error 5000", 5, None, "again with it"),
        (f"{_OWN}odd", 137, "SIGKILL", ""),
        (f"{_OWN}odd", 139, "SIGSEGV", ""),
        (f"{_OWN}odd", 134, "SIGABRT", ""),
        (f"{_OWN}odd", 3, None, ""),
    ],
)  # fmt: skip
def test_a_finished_program_has_to_be_exported_again(
    stderr: str, code: int, signal: str | None, helps: str
) -> None:
    _, remedy = _error(_ended(code, stderr, signal), **_FINISHED)
    assert not lacks(remedy, helps, *_NEW_FILE)
    assert "--set export." not in remedy
    assert "clean programs" not in remedy


def test_remedies_for_a_crash_leave_out_what_is_the_case() -> None:
    crash = _ended(139, signal="SIGSEGV")
    recipe = make_recipe(export={"backend": "portable"})
    assert "--device host" in str(run_error(crash, "timing", recipe, "qemu", _LOG).remedy)
    here = run_error(crash, "timing", recipe, "host", _LOG, Capabilities(is_here=True))
    assert "--device" not in str(here.remedy)
    assert "export.backend" not in str(here.remedy)


def test_last_lines_are_few_short_and_harmless() -> None:
    chatter = "I 00:00:00.003633 executorch:cpuinfo_utils.cpp:71] Reading file\n" * 20
    lines = last_lines("first\n" * 20 + chatter + "\n\n" + "x" * 1000 + "\n\x1b[31mred\n")
    assert len(lines) == 8
    assert len(lines[-2]) == 300
    assert lines[-1] == " [31mred"


def _app_error(
    outcome: RunOutcome, device: str = "ios:1", launches: tuple[str, ...] = ("app",)
) -> RunError:
    capabilities = Capabilities.model_validate({"launches": launches})
    return app_error(outcome, "timing", make_recipe(), device, Path("log"), capabilities)


_NO_KERNEL = _ended(1, "[0] Missing operator: [0] mine::op.out")
_NO_ROOM = replace(_ended(1, "no room for the weights"), out_of_memory=True)


@pytest.mark.parametrize(
    ("outcome", "device", "message", "remedies", "absent"),
    [
        (
            _NO_KERNEL, "android:1", "no kernel for mine::op.out",
            ["export.backend=", "app.runtime=source", "leave out --as app"], "runners",
        ),
        # There is no ExecuTorch from source for iPhones, nor a runner.
        (_NO_KERNEL, "ios:1", "no kernel for mine::op.out", [], "app.runtime"),
        (_ended(None), "ios:1", "took longer than", [], "leave out --as app"),
        (_ended(1, "what"), "ios:1", "exit code 1", ["--device host", "--as app and --app"], "?"),
        (_NO_ROOM, "ios:1", "memory ran out\n  | no room", ["model smaller"], "?"),
    ],
)  # fmt: skip
def test_a_failed_app_is_explained_with_what_an_app_can_do(
    outcome: RunOutcome, device: str, message: str, remedies: list[str], absent: str
) -> None:
    launches = ("process", "app") if device == "android:1" else ("app",)
    error = _app_error(outcome, device, launches)
    assert error.message.startswith("the app ")
    assert message in error.message
    assert not lacks(str(error.remedy), *remedies)
    assert absent not in str(error.remedy)
