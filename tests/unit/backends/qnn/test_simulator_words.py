"""Lines that Qualcomm's simulator was seen to write on this machine, and what is told of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.bench.diagnosis import run_error
from etdeploy.devices.base import Capabilities, RunOutcome
from tests.support.bench_values import make_recipe

_END = """
E 00:00:00.012986 executorch:QnnExecuTorchBackend.cpp:92] Fail to initialize Qnn Manager
E 00:00:00.012994 executorch:method.cpp:128] Init failed for backend QnnBackend: 0x1
etdeploy-runner: error: method forward cannot be loaded: Error::Internal
"""
NO_COMPILER = """
[INFO] [Qnn ExecuTorch]: Creating new backend bundle.
[ERROR] [Qnn ExecuTorch]: Cannot Open QNN library libQnnHtp.so, with error: libQnnHtp.so: cannot open shared object file: No such file or directory
E 00:00:00.012950 executorch:QnnImplementation.cpp:152] Fail to start backend
"""  # noqa: E501
NO_READER = """
[WARNING] [Qnn ExecuTorch]: Qnn API version 2.38.0 is used. The version is tested against 2.27.0.
[ERROR] [Qnn ExecuTorch]: Cannot Open QNN library libQnnSystem.so, with error: libQnnSystem.so: cannot open shared object file: No such file or directory
E 00:00:00.282987 executorch:QnnBackendUnifiedRegistry.cpp:162] Fail to load Qnn system library
"""  # noqa: E501
# QNN 2.47 and 2.50, in place of 2.49.
OTHER_RELEASE = """
[ERROR] [Qnn ExecuTorch]:  <E> Failed to set scatter gather parameters: unknown custom config socModel 0

[ERROR] [Qnn ExecuTorch]:  <E> Failed to parse custom config: 14001

[ERROR] [Qnn ExecuTorch]:  <E> Failed to parse platform config: 14001

[ERROR] [Qnn ExecuTorch]: Failed to create device_handle for Backend ID 6, error=14001
E 00:00:00.638403 executorch:QnnBackendUnifiedRegistry.cpp:149] Fail to configure Qnn device
"""  # noqa: E501
# Programs of which some bytes were zeroed.
NO_CONTEXT = """
[WARNING] [Qnn ExecuTorch]: Failed to interpret QNN context binary. Error code 30010. Try verifying binary with online-prepare format.
[ERROR] [Qnn ExecuTorch]: Can't create dlc from binary. Error 1002.
"""  # noqa: E501
BAD_HEADER = """
[ERROR] [Qnn ExecuTorch]: graph.cc:3691::ERROR:bad header, code = -1

[ERROR] [Qnn ExecuTorch]:  <E> Failed to create graph 256 from buffer with err 5005

[ERROR] [Qnn ExecuTorch]:  <E> Failed to create context from binary with err 0x138d

[ERROR] [Qnn ExecuTorch]: Can't create context from binary. Error 5005.
"""
SHARED = """
[ERROR] [Qnn ExecuTorch]:  <E> Shared weights buffer isn't supported on this platform

[ERROR] [Qnn ExecuTorch]:  <E> Fail to create context from binary with err 1000

[ERROR] [Qnn ExecuTorch]:  <E> Failed to create context from binary with err 0x3e8

[ERROR] [Qnn ExecuTorch]: Can't create context from binary. Error 1000.
E 00:00:00.094473 executorch:QnnManager.cpp:270] Fail to configure Qnn context
"""
_READ = "the simulator cannot load the program (QNN error"


@pytest.mark.parametrize(
    ("log", "cause", "remedy"),
    [
        (NO_COMPILER, "libQnnHtp.so, which simulates the HTP, could not be loaded: libQnnHtp.so: "
                      "cannot open", "etdeploy doctor"),
        (NO_READER, "libQnnSystem.so, which simulates", "etdeploy doctor"),
        (OTHER_RELEASE, "(error 14001): the QNN that simulates is of another release",
         "unset QNN_SDK_ROOT\n"),
        (NO_CONTEXT, f"{_READ} 30010)", "etdeploy inspect"),
        (BAD_HEADER, f"{_READ} 5005)", "etdeploy inspect"),
        (SHARED, "the program's methods share weights, which QNN's libraries here do not",
         "xport "),
    ],
)  # fmt: skip
@pytest.mark.parametrize("finished", [False, True])
def test_what_is_told(log: str, cause: str, remedy: str, finished: bool) -> None:
    model = {"program": "m.pte"} if finished else {"example": "mlp"}
    here = Capabilities(is_here=True)
    error = run_error(
        RunOutcome(3, None, "", log + _END, 0.5),
        "timing", make_recipe(model=model), "host", Path("log"), here, 1,
    )  # fmt: skip
    assert cause in error.message
    assert error.remedy is not None
    assert remedy in error.remedy
    for of_phones in ("phone", "adb", "Push", "android"):
        assert of_phones not in error.message.split("\n")[0] + error.remedy
    assert ("etdeploy clean programs" in error.remedy) == (_READ in cause and not finished)


def test_the_same_lines_on_a_phone_are_about_the_phone() -> None:
    outcome = RunOutcome(3, None, "", OTHER_RELEASE + _END, 0.5)
    error = run_error(outcome, "timing", make_recipe(), "android:X", Path("log"))
    assert "the stub for the phone's HTP is missing" in error.message
