"""What Qualcomm's libraries and ExecuTorch's QNN backend log, and what it means.

The lines come from reports in ExecuTorch's issues, and from backends/qualcomm/runtime of 1.5.
ExecuTorch shows only the errors (`<E>`), not the warnings. QNN logs several lines about one
failure: in each table, the first pattern that matches is nearest to the cause.
"""

from __future__ import annotations

from etdeploy.backends.base import NEW_FILE
from etdeploy.backends.qnn.facts import ADAPTOR_SDK, dotted
from etdeploy.backends.qnn.sdk import SDK_VARIABLE
from etdeploy.core.console import size
from etdeploy.core.diagnostics import FailurePattern, FailureTable

_BUILD_ID = r"\(v?(?P<{}>[\d.]+)\w*\)"
_MISMATCH = f"Stub lib id mismatch: expected {_BUILD_ID.format('expected')}, detected "
# The phone's own library is the one of the two that nobody can replace.
_OTHER_STUB = (
    "QNN {expected} loaded a stub of QNN {detected}: the phone has its own libraries, in /odm or "
    "/vendor, which take precedence over those that were pushed"
)
_MAJOR, _MINOR = ADAPTOR_SDK
_OLDER_MINORS = "|".join(map(str, range(_MINOR)))
_TOO_OLD = (
    rf"\(v?(?P<detected>(?:[0-{_MAJOR - 1}]\.\d+|{_MAJOR}\.(?:{_OLDER_MINORS}))\.[\d.]*)\w*\)"
)
# For an exported program, and for a finished one.
_AS_THE_PHONE = (
    "Export for the SoC that the phone reports: --set export.soc=auto",
    f"Export the model again for this phone's SoC, {NEW_FILE}.\n"
    "etdeploy inspect names the SoC that the old one was compiled for.",
)
_ONE_SDK = (
    "Use one SDK to export, to build and to run: etdeploy doctor shows it; then\n"
    "etdeploy clean programs runners",
    "Use one SDK to export, to build and to run: etdeploy doctor shows it. Export the model\n"
    f"again with it, {NEW_FILE}; then\n"
    "etdeploy clean runners",
)
_OWN_WORDS = "See the phone's own log: adb logcat -d | grep -i -e qnn -e adsprpc"

# Qualcomm's simulator says so, too.
SHARED_WEIGHTS = FailurePattern(
    r"Shared weights buffer isn't supported on this platform",
    "the program's methods share weights, which QNN's libraries here do not support; "
    "Qualcomm's simulator is among those",
    "Export it without: --set export.options.weight_sharing=false",
    f"Export the model again without weight sharing, {NEW_FILE}.",
)
PHONE_FAILURES = FailureTable(
    "QNN on a phone",
    7,
    (
        FailurePattern(
            _MISMATCH + _TOO_OLD,
            _OTHER_STUB,
            f"ExecuTorch needs QNN {dotted(ADAPTOR_SDK)} or newer: update the phone's system, "
            "whose QNN is older,\nor use a phone without its own libraries: "
            "adb shell ls /odm/lib64 /vendor/lib64",
        ),
        FailurePattern(
            _MISMATCH + _BUILD_ID.format("detected"),
            _OTHER_STUB,
            "Use the SDK of the phone's version to export, to build and to run:\n"
            f"export {SDK_VARIABLE}=/path/to/qairt/{{detected}}",
        ),
        SHARED_WEIGHTS,
        FailurePattern(
            r"Failed in loading stub: .*library \"(?P<name>libQnn\w+\.so)\" not found",
            "Qualcomm's library wants {name}, the stub for this phone's HTP, which the bundle does "
            "not have: the program was compiled for another HTP",
            *_AS_THE_PHONE,
        ),
        FailurePattern(
            r"Request feature vtcm size with value (?P<size>\d+) unsupported",
            "the program wants {size} bytes of the HTP's own memory (VTCM), and this phone's has "
            "less: it was compiled for another SoC",
            *_AS_THE_PHONE,
        ),
        FailurePattern(
            r"Cannot Open QNN library (?P<name>[^\s,]+), with error: (?P<reason>.+)",
            "Qualcomm's {name} could not be loaded: {reason}",
            f"Push it again: etdeploy clean --device {{device}}\n{_OWN_WORDS}",
        ),
        FailurePattern(
            r"(?P<message>Unknown QNN (?:Binary|Graph)Info version \d+)",
            "the program was compiled by a newer QNN than the runner was built with ({message})",
            *_ONE_SDK,
        ),
        FailurePattern(
            r"(?:Can't create context from binary\. Error|create context from binary with err) "
            r"(?:5000|0x1388)\b",
            "the phone's QNN libraries cannot load the program (QNN error 5000): a newer QNN "
            "compiled it, or it is for another SoC",
            "See what compiled it, and for what: etdeploy inspect PROGRAM.pte\n"
            f"The SDK that {SDK_VARIABLE} names must be as new; or export again with it: "
            "etdeploy clean programs",
            "See what compiled it, and for what: etdeploy inspect PROGRAM.pte\n"
            f"The SDK that {SDK_VARIABLE} names must be as new; or export the model again with "
            f"it,\n{NEW_FILE}.",
        ),
        FailurePattern(
            r"(?:openSession qnn_open failed|Unable to load Skel Library|Failed to load skel|"
            r"Failed to create transport|Unable to load Remote "
            r"symbols)[^\d\n]*(?P<code>0x[\da-f]+|\d+)",
            "the connection to the HTP could not be opened (QNN error {code}): its stub or its "
            "skel could not be loaded, their versions differ, or the phone does not let adb's user "
            "reach it",
            f"Push them again, from one whole SDK: etdeploy clean --device "
            f"{{device}}\n{_OWN_WORDS}",
        ),
        FailurePattern(
            r"(?:unknown custom config|error[=:] ?14001|failed: 14001)",
            "QNN rejects the configuration of its device (error 14001): the stub for the phone's "
            "HTP "
            "is missing, or the libraries have another layout than the headers that the runner was "
            "built with",
            *_ONE_SDK,
        ),
        FailurePattern(
            r"Failed to interpret QNN context binary\. Error code (?P<code>\d+)",
            "QNN finds no context binary in the program that it can read (error {code}): the "
            "libraries on the phone are older than the QNN that compiled it, or belong to a "
            "runtime for another backend",
            f"See what compiled it: etdeploy inspect PROGRAM.pte\n{_ONE_SDK[0]}",
            f"See what compiled it: etdeploy inspect PROGRAM.pte\n{_ONE_SDK[1]}",
        ),
        FailurePattern(
            r"[Bb]ackend QnnBackend is not registered",
            "the backend QnnBackend is not in the runner, which was built for other backends",
            "Build ExecuTorch with it, for the phone: --set runtime.provider=source "
            "--target android-arm64\nor lower to another: --set export.backend=xnnpack",
            "Build ExecuTorch with it, for the phone: --set runtime.provider=source "
            f"--target android-arm64\nor export the model again for another backend, {NEW_FILE}.",
        ),
    ),
)


_UNREADABLE = (
    "the simulator cannot load the program (QNN error {code}): a newer QNN compiled it, or the "
    "file is damaged",
    "See what compiled it: etdeploy inspect PROGRAM.pte\n"
    "and what simulates here: etdeploy doctor\n"
    "Export it again: etdeploy clean programs",
    "See what compiled it: etdeploy inspect PROGRAM.pte\n"
    "and what simulates here: etdeploy doctor\n"
    f"Copy the file again, or export the model again with that QNN, {NEW_FILE}.",
)
SIMULATOR_FAILURES = FailureTable(
    "QNN simulator",
    7,
    (
        SHARED_WEIGHTS,
        FailurePattern(
            r"Cannot Open QNN library (?P<name>[^\s,]+), with error: (?P<reason>.+)",
            "Qualcomm's {name}, which simulates the HTP, could not be loaded: {reason}",
            "See what is wrong with it: etdeploy doctor",
        ),
        FailurePattern(
            r"Failed to interpret QNN context binary\. Error code (?P<code>\d+)", *_UNREADABLE
        ),
        FailurePattern(r"Can't create context from binary\. Error (?P<code>\d+)", *_UNREADABLE),
        # The delegate is built with the headers of one QNN; the layout of this differs in others.
        FailurePattern(
            r"unknown custom config|error[=:] ?14001|failed: 14001",
            "QNN rejects the configuration of its device (error 14001): the QNN that simulates is "
            "of another release than ExecuTorch's delegate works with",
            f"Use the release that works:\nunset {SDK_VARIABLE}\n{{install}}",
        ),
    ),
)
_SMALLER = (
    "Make it smaller: 8-bit or 4-bit weights (--set export.quantization=int8_static or 16a4w), a\n"
    "smaller batch or input, or two models in separate programs."
)
_OVER_LIMIT = "a part of the model needs {size} on the HTP, and one context there has "
_AT_ONCE = (
    "Let the operator see less at a time: a norm or a softmax over fewer elements, a smaller\n"
    "input, fewer channels; or compile for a SoC with more VTCM."
)
_OTHER_SHAPE = (
    "Try another precision, since it compiles other kernels: --set export.quantization=int8_static;"
    "\nor --set export.backend=xnnpack"
)
# What may also be printed of a node that then runs on the CPU counts only beside one of these.
_IF_FAILED = (
    r"\A(?=[\s\S]*(?:Failed to generate Qnn context binary|Fail to compile QNN graph))[\s\S]*?"
)
_BYTES_PER_KB = 1024


def _size(text: str) -> str:
    return size(int(text, 0))


def _size_of_kb(text: str) -> str:
    return size(int(text) * _BYTES_PER_KB)


COMPILER_FAILURES = FailureTable(
    "Qualcomm's compiler",
    3,
    (
        FailurePattern(
            r"graph requires estimated allocation of (?P<size>\d+) KB, limit is (?P<limit>\d+) KB",
            f"{_OVER_LIMIT}at most {{limit}}",
            _SMALLER,
            formats={"size": _size_of_kb, "limit": _size_of_kb},
        ),
        FailurePattern(
            r"Failed to find available PD .*context size estimate (?P<size>\d+)",
            f"{_OVER_LIMIT}4 GB of addresses, of which about 3.7 GB are free",
            _SMALLER,
            formats={"size": _size},
        ),
        FailurePattern(
            r'"(?P<name>\S+)" generated: Requires (?P<size>0x[\da-f]+) bytes of TCM, which is '
            r"greater than the TCM size of (?P<limit>0x[\da-f]+)",
            "the operator {name} needs {size} of the HTP's own memory (VTCM) at once, and the "
            "SoC has {limit}",
            _AT_ONCE,
            formats={"size": _size, "limit": _size},
        ),
        FailurePattern(
            r"not sufficiently tiled to fit in TCM\. Requires (?P<size>\d+) bytes",
            "an operator needs {size} of the HTP's own memory (VTCM) at once, and Qualcomm's "
            "compiler cannot split it",
            _AT_ONCE,
            formats={"size": _size},
        ),
        FailurePattern(
            r"ERROR:(?P<reason>.*(?:memory usage too large|couldn't insert overall len))",
            "the compiled part of the model is too large to be written ({reason}): a context "
            "binary has at most 2 GB",
            _SMALLER,
            formats={"reason": str.strip},
        ),
        FailurePattern(
            r"ERROR:(?P<reason>genNopWithScaleParams.*mismatched scale and bias[^\n]*)",
            "Qualcomm's compiler fails at a layer of 16-bit floats whose result is split into "
            "parts, as nn.MultiheadAttention does with a batch of one: {reason}",
            "Quantize the model (--set export.quantization=int8_static), or give it a batch of two "
            "or more; or\nuse three linear layers for query, key and value in place of one.",
            formats={"reason": str.strip},
        ),
        FailurePattern(
            _IF_FAILED + r'<E> "(?P<name>\S+)" generated: (?P<reason>[^\n]+)',
            "Qualcomm's compiler fails at the operator {name}: {reason}",
            _OTHER_SHAPE,
            formats={"reason": str.strip},
        ),
        FailurePattern(
            _IF_FAILED + r"\.cc:\d+::?ERROR:(?P<reason>[^\n]+)",
            "Qualcomm's compiler failed: {reason}",
            _OTHER_SHAPE,
            formats={"reason": str.strip},
        ),
    ),
)
# In ExecuTorch's lowering for QNN, by the text of the exception.
QNN_LOWERING_FAILURES = FailureTable(
    "Lowering to QNN",
    3,
    (
        FailurePattern(
            r"running the 'DecomposeFloorDivide' pass",
            "ExecuTorch's QNN backend cannot divide integers by a number with //",
            "Write it as torch.div(x, 2, rounding_mode='floor'), or divide in floats.",
            facts={"kind": "operator", "operator": "aten::floor_divide"},
        ),
        FailurePattern(
            r"QNN graph I/O does not match the delegated program signature",
            "QNN's graph has other inputs and outputs than its part of the model: a value in it is "
            "input or output twice, or depends on no input",
            "Let the model return each value once, and nothing that is constant; the log names "
            "both lists.",
            facts={"kind": "lowering"},
        ),
        FailurePattern(
            r"Failed to initialize QNN backend",
            "Qualcomm's compiler does not start",
            "etdeploy doctor shows which one is used; see the log for its own lines. Code 14001 "
            "there\nmeans that ExecuTorch's adaptor was built for another version of it.",
            facts={"kind": "lowering"},
        ),
    ),
)
