"""Lines that Qualcomm's libraries were seen to write on phones, and what is told of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.backends.qnn.diagnostics import qnn_cause
from etdeploy.bench.diagnosis import run_error
from etdeploy.devices.base import RunOutcome
from tests.support.bench_values import make_recipe

# How ExecuTorch ends each of them, and then the runner.
_END = """
E 00:00:00.188565 executorch:QnnManager.cpp:154] Fail to configure Qnn device
E 00:00:00.188596 executorch:QnnExecuTorchBackend.cpp:54] Fail to initialize Qnn Manager
E 00:00:00.188605 executorch:method.cpp:106] Init failed for backend QnnBackend: 0x1
etdeploy-runner: error: method forward cannot be loaded: Internal
"""
SHARED = """
[ERROR] [Qnn ExecuTorch]:  <E> Shared weights buffer isn't supported on this platform
[ERROR] [Qnn ExecuTorch]:  <E> Fail to create context from binary with err 1000
"""
MISMATCH = """
[INFO] [Qnn ExecuTorch]: create QNN Logger with log_level 2
[WARNING] [Qnn ExecuTorch]:  <W> Initializing HtpProvider

[ERROR] [Qnn ExecuTorch]:  <E> Stub lib id mismatch: expected (v2.28.2.241116104011_103376), detected (v2.25.17.241017130936_18858)

[ERROR] [Qnn ExecuTorch]:  <E> Unable to load Remote symbols 1008

[WARNING] [Qnn ExecuTorch]:  <W> Function not called, PrepareLib isn't loaded!
"""  # noqa: E501
NO_STUB = """
W   <W> Failed in loading stub: dlopen failed: library "libQnnHtpV79Stub.so" not found
W   <W> Failed to create transport instance: 4000
E   <E> Failed to create transport for device, error: 4000
E   <E> Failed to load skel, error: 4000
E   <E> Transport layer setup failed: 14001
"""
# Only the errors are shown.
TRANSPORT = """
[INFO] [Qnn ExecuTorch]: Caching: Caching is in RESTORE MODE.
[INFO] [Qnn ExecuTorch]: QnnContextCustomProtocol expected magic number: 0x5678abcd but get: 0x2000000
[ERROR] [Qnn ExecuTorch]: QnnDsp <E> Failed to create transport for device, error: 4000

[ERROR] [Qnn ExecuTorch]: QnnDsp <E> Failed to load skel, error: 4000

[ERROR] [Qnn ExecuTorch]: QnnDsp <E> Transport layer setup failed: 14001
"""  # noqa: E501
SKEL = """
[ERROR] [Qnn ExecuTorch]:  <E> DspTransport.openSession qnn_open failed, 0x80000406
[ERROR] [Qnn ExecuTorch]:  <E> IDspTransport: Unable to load lib 0x80000406
[ERROR] [Qnn ExecuTorch]:  <E> DspTransport failed,cannot open session, error 0x00000009
[ERROR] [Qnn ExecuTorch]:  <E> Unable to load Skel Library. transportStatus: 9
[ERROR] [Qnn ExecuTorch]: Failed to create device_handle for Backend ID 6, error=1008
"""
DEVICE = "[ERROR] [Qnn ExecuTorch]: Failed to create device_handle for Backend ID 6, error=14001\n"
VTCM = """
[ERROR] [Qnn ExecuTorch]: QnnDsp <E> Request feature vtcm size with value 8388608 unsupported

[ERROR] [Qnn ExecuTorch]: QnnDsp <E> Failed to create context from binary with err 0x138d

[ERROR] [Qnn ExecuTorch]: Can't create context from binary. Error 5005.
"""
NEWER = """
[ERROR] [Qnn ExecuTorch]: QnnDsp <E> Failed to create context from binary with err 0x1388

[ERROR] [Qnn ExecuTorch]: Can't create context from binary. Error 5000.
"""
NO_BINARY = (
    "[WARNING] [Qnn ExecuTorch]: Failed to interpret QNN context binary. Error code 30010. Try "
    "verifying binary with online-prepare format.\n"
)
UNKNOWN = """
[WARNING] [Qnn ExecuTorch]: Unknown QNN BinaryInfo version 3.
[ERROR] [Qnn ExecuTorch]: Failed to retrieve backend binary info from QNN context binary.
"""
LIBRARY = (
    "[ERROR] [Qnn ExecuTorch]: Cannot Open QNN library libQnnHtp.so, with error: dlopen failed: "
    'library "libc++.so.1" not found: needed by libQnnHtp.so\n'
)
NOT_LINKED = "E 00:00:00.1 executorch:method.cpp:95] Backend QnnBackend is not registered.\n"


def _told(stderr: str) -> tuple[str, str]:
    outcome = RunOutcome(3, None, "", stderr + _END, 1.0, timed_out=False)
    recipe = make_recipe(export={"backend": "qnn"})
    error = run_error(outcome, "timing", recipe, "android:X", Path("/out/stderr.txt"))
    assert error.remedy
    for text in (error.message.splitlines()[0], error.remedy):
        assert "{" not in text
    return error.message.splitlines()[0], error.remedy


@pytest.mark.parametrize(
    ("stderr", "cause", "remedy"),
    [
        (SHARED, "the program's methods share weights", "options.weight_sharing=false"),
        (NO_STUB, "wants libQnnHtpV79Stub.so, the stub for this phone's HTP", "export.soc=auto"),
        (TRANSPORT, "(QNN error 4000)", "etdeploy clean --device android:X"),
        (SKEL, "(QNN error 0x80000406)", "adb logcat -d | grep -i -e qnn -e adsprpc"),
        (DEVICE, "(error 14001)", "etdeploy clean programs runners"),
        (VTCM, "wants 8388608 bytes of the HTP's own memory", "export.soc=auto"),
        (NEWER, "a newer QNN compiled it", "etdeploy inspect"),
        (NO_BINARY, "no context binary in the program that it can read (error 30010)", "inspect"),
        (UNKNOWN, "(Unknown QNN BinaryInfo version 3)", "etdeploy clean programs runners"),
        (LIBRARY, "libQnnHtp.so could not be loaded: dlopen failed: library", "clean --device"),
        (NOT_LINKED, "QnnBackend is not in the runner", "--set runtime.provider=source"),
    ],
)
def test_each_is_told_with_its_cause_and_what_helps(stderr: str, cause: str, remedy: str) -> None:
    message, told = _told(stderr)
    assert cause in message
    assert remedy in told


def test_two_versions_are_both_named_and_an_old_phone_cannot_be_followed() -> None:
    message, remedy = _told(MISMATCH)
    assert "QNN 2.28.2.241116104011 loaded a stub of QNN 2.25.17.241017130936" in message
    assert "/odm or /vendor" in message
    assert remedy.startswith("ExecuTorch needs QNN 2.37 or newer: update the phone's system")


def test_the_sdk_of_the_phones_own_version_is_taken_where_it_is_new_enough() -> None:
    newer = MISMATCH.replace("v2.25.17.241017130936_18858", "v2.40.0.251030114326_188120")
    _, remedy = _told(newer)
    assert remedy.endswith("export QNN_SDK_ROOT=/path/to/qairt/2.40.0.251030114326")


def test_what_a_sound_run_says_is_no_cause() -> None:
    assert qnn_cause("[INFO] [Qnn ExecuTorch]: create QNN Logger with log_level 1\n") is None
    assert qnn_cause("[WARNING] [Qnn ExecuTorch]: QnnDsp <W> Initializing HtpProvider\n") is None


def test_what_a_phone_says_stays_short_and_harmless() -> None:
    odd = "[ERROR] Cannot Open QNN library libQnnHtp.so, with error: \x1b[31m" + "x" * 1000
    message, _ = _told(odd)
    assert "\x1b" not in message
    assert len(message) < 400
