"""Lines that QNN was seen to log: on a phone, in Qualcomm's simulator, and by its compiler."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.backends.qnn.diagnostics import COMPILER_FAILURES
from etdeploy.bench.diagnosis import run_error
from etdeploy.core.errors import EtdeployError
from etdeploy.devices.base import Capabilities, RunOutcome
from tests.support.bench_values import make_recipe

# How ExecuTorch ends each of them, and then the runner.
_PHONE_END = """
E 00:00:00.188565 executorch:QnnManager.cpp:154] Fail to configure Qnn device
E 00:00:00.188596 executorch:QnnExecuTorchBackend.cpp:54] Fail to initialize Qnn Manager
E 00:00:00.188605 executorch:method.cpp:106] Init failed for backend QnnBackend: 0x1
etdeploy-runner: error: method forward cannot be loaded: Internal
"""
PHONE_SHARED = """
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
_HERE_END = """
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
HERE_SHARED = """
[ERROR] [Qnn ExecuTorch]:  <E> Shared weights buffer isn't supported on this platform

[ERROR] [Qnn ExecuTorch]:  <E> Fail to create context from binary with err 1000

[ERROR] [Qnn ExecuTorch]:  <E> Failed to create context from binary with err 0x3e8

[ERROR] [Qnn ExecuTorch]: Can't create context from binary. Error 1000.
E 00:00:00.094473 executorch:QnnManager.cpp:270] Fail to configure Qnn context
"""
_COMPILER_END = """\
[ERROR] [Qnn ExecuTorch]:  <E> Failed to finalize graph (id: 1) with err 1002
[ERROR] [Qnn ExecuTorch]: Failed to finalize Qnn Graph with error: 1002
[ERROR] [Qnn ExecuTorch]: Fail to compile QNN graph
AssertionError: Failed to generate Qnn context binary.
"""
# As a report has it (executorch 17782), after lines of another project's with the same failure.
_TOO_LARGE = """\
[ERROR] fa_alloc.cc:2425::ERROR:graph requires estimated allocation of 2309576 KB, limit is 2097152 KB
[ERROR] graph_prepare.cc:838::ERROR:error during serialize: memory usage too large
"""  # noqa: E501
# From the README of ExecuTorch's own language models.
_NO_PROCESS = """\
[ERROR] [Qnn ExecuTorch]: QnnDsp <E> Failed to find available PD for contextId 1 on deviceId 0 \
coreId 0 with context size estimate 4025634048
[ERROR] [Qnn ExecuTorch]: QnnDsp <E> context create from binary failed on contextId 1
"""
_NOT_WRITTEN = """\
[ERROR] [Qnn ExecuTorch]: graph_prepare.cc:6004:ERROR:couldn't insert overall len
[ERROR] [Qnn ExecuTorch]: QnnDsp <E> Graph executorch serialization failed
"""
_VTCM = """\
 <E> "_dec_block_0_norm1_1_InstanceNormalization" generated: Requires 0x2400000 bytes of TCM, which is \
greater than the TCM size of 0x800000!
"""  # noqa: E501
# QNN 2.49: a layer norm over four million elements.
_UNTILED = """\
[ERROR] [Qnn ExecuTorch]: tcm_migration.cc:2402::ERROR:Operator named q::*InputSlice \
(0x6867900000002) not sufficiently tiled to fit in TCM. Requires 16777216 bytes
[ERROR] [Qnn ExecuTorch]: tcm_migration.cc:1824::ERROR:Inside TCMMigration::run() function: \
scan_input_graph() call failed
"""
# QNN 2.49: nn.MultiheadAttention, in 16-bit floats.
_BIAS = """\
[ERROR] [Qnn ExecuTorch]: fp16_conv_activations.cc:219::ERROR:genNopWithScaleParamsFP16/BF16 \
mismatched scale and bias dimensions: bias dim 48 scale dim 3 do not match and cannot broadcast
[ERROR] [Qnn ExecuTorch]: graph_prepare.cc:4093::ERROR:Oops: const evaluation failed for op
"""
# In executorch 12537.
_AT_NODE = """\
[ERROR] [Qnn ExecuTorch]: graph_prepare.cc:1574::ERROR:Op 0x10cb0000001a preparation failed \
with err:-1
[ERROR] [Qnn ExecuTorch]:  <E> "aten_relu_default" generated: could not create op
"""
_REFUSED_NODE = "[ERROR] [Qnn ExecuTorch]:  <E> Failed to validate op aten_add with error 0xc26\n"


def _phone_error(stderr: str) -> EtdeployError:
    outcome = RunOutcome(3, None, "", stderr + _PHONE_END, 1.0, timed_out=False)
    recipe = make_recipe(export={"backend": "qnn"})
    return run_error(outcome, "timing", recipe, "android:X", Path("/out/stderr.txt"))


@pytest.mark.parametrize(
    ("stderr", "cause", "remedy"),
    [
        (PHONE_SHARED, "share weights", "options.weight_sharing=false"),
        (NO_STUB, "libQnnHtpV79Stub.so", "export.soc=auto"),
        (TRANSPORT, "(QNN error 4000)", "etdeploy clean --device android:X"),
        (SKEL, "(QNN error 0x80000406)", "adb logcat -d | grep -i"),
        (DEVICE, "(error 14001)", "clean programs runners"),
        (OTHER_RELEASE, "the phone's HTP is", "clean programs runners"),
        (VTCM, "8388608 bytes", "export.soc=auto"),
        (NEWER, "a newer QNN", "etdeploy inspect"),
        (NO_BINARY, "(error 30010)", "etdeploy inspect"),
        (UNKNOWN, "BinaryInfo version 3", "clean programs runners"),
        (LIBRARY, "libQnnHtp.so could not", "clean --device"),
        (NOT_LINKED, "QnnBackend", "runtime.provider=source"),
        # The phone's own libraries: too old to follow, and new enough.
        (MISMATCH, "QNN 2.28.2.241116104011", "QNN 2.37 or newer"),
        (MISMATCH, "QNN 2.25.17.241017130936", "adb shell ls"),
        (MISMATCH.replace("v2.25.17.241017130936_18858", "v2.40.0.251030114326_188120"),
         "QNN 2.40.0.251030114326", "export QNN_SDK_ROOT=/path/to/qairt/2.40.0.251030114326"),
        (MISMATCH.replace("v2.25.17.241017130936_18858", "v2.37.0.250724175447_124859"),
         "QNN 2.37.0.250724175447", "/path/to/qairt/2.37.0.250724175447"),
        (MISMATCH.replace("v2.25.17.241017130936_18858", "v2.3.1.1"), "QNN 2.3.1.1", "QNN 2.37"),
    ],
)  # fmt: skip
def test_failures_on_a_phone(stderr: str, cause: str, remedy: str) -> None:
    error = _phone_error(stderr)
    assert error.remedy
    assert cause in error.message.splitlines()[0]
    assert remedy in error.remedy
    assert "{" not in error.message.splitlines()[0] + error.remedy


def test_text_of_a_phone_is_cut_and_printable() -> None:
    odd = "[ERROR] Cannot Open QNN library libQnnHtp.so, with error: \x1b[31m" + "x" * 1000
    message = _phone_error(odd).message.splitlines()[0]
    assert "\x1b" not in message
    assert len(message) < 400


@pytest.mark.parametrize(
    ("log", "cause", "remedy"),
    [
        (NO_COMPILER, "libQnnHtp.so, which simulates", "etdeploy doctor"),
        (NO_READER, "libQnnSystem.so, which", "etdeploy doctor"),
        (OTHER_RELEASE, "(error 14001): the QNN", "unset QNN_SDK_ROOT\n"),
        (NO_CONTEXT, "(QNN error 30010)", "etdeploy inspect"),
        (BAD_HEADER, "(QNN error 5005)", "etdeploy inspect"),
        (HERE_SHARED, "share weights", "xport "),
    ],
)
@pytest.mark.parametrize("finished", [False, True])
def test_failures_in_the_simulator(log: str, cause: str, remedy: str, finished: bool) -> None:
    model = {"program": "m.pte"} if finished else {"example": "mlp"}
    here = Capabilities(is_here=True)
    error = run_error(
        RunOutcome(3, None, "", log + _HERE_END, 0.5),
        "timing", make_recipe(model=model), "host", Path("log"), here, 1,
    )  # fmt: skip
    first = error.message.split("\n")[0]
    assert cause in first
    assert error.remedy is not None
    assert remedy in error.remedy
    assert not [of for of in ("phone", "adb", "Push", "android") if of in first + error.remedy]
    exports_again = log in (NO_CONTEXT, BAD_HEADER) and not finished
    assert ("etdeploy clean programs" in error.remedy) == exports_again


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        (_TOO_LARGE, ("2.4 GB", "2.1 GB")),
        (_NO_PROCESS, ("4.0 GB", "3.7 GB")),
        (_NOT_WRITTEN, ("(couldn't insert overall len)", "2 GB")),
        (_VTCM, ("_dec_block_0_norm1_1_InstanceNormalization", "37.7 MB", "8.4 MB")),
        (_UNTILED, ("16.8 MB", "VTCM")),
        (_BIAS, ("nn.MultiheadAttention", ": genNopWithScaleParamsFP16/BF16", "scale dim 3")),
        (_AT_NODE, ("aten_relu_default: could not create op",)),
        ("[ERROR] [Qnn ExecuTorch]: graph_prepare.cc:1471::ERROR:Graph prepare failed with err:2\n",
         (": Graph prepare failed with err:2",)),
    ],
)  # fmt: skip
def test_failures_of_the_compiler(text: str, facts: tuple[str, ...]) -> None:
    found = COMPILER_FAILURES.diagnose(_REFUSED_NODE + text + _COMPILER_END)
    assert found is not None
    assert not [fact for fact in facts if fact not in found.cause]
    assert found.remedy


@pytest.mark.parametrize("text", ["", _REFUSED_NODE, _AT_NODE, _COMPILER_END])
def test_lines_of_a_working_compile_are_no_cause(text: str) -> None:
    assert COMPILER_FAILURES.diagnose(text) is None
