"""What Qualcomm's libraries and ExecuTorch's QNN backend log on a phone, and what it means.

The lines come from reports in ExecuTorch's issues, and from backends/qualcomm/runtime of 1.5.
ExecuTorch shows only the errors (`<E>`), not the warnings.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from etdeploy.backends.base import NEW_FILE
from etdeploy.backends.qnn.kits.package import get_package
from etdeploy.backends.qnn.kits.sdk import VARIABLE
from etdeploy.backends.qnn.versions import ADAPTOR_SDK, dotted, version_numbers
from etdeploy.core.console import size
from etdeploy.core.diagnostics import Diagnosis, FailurePattern, FailureTable

_BUILD_ID = r"\(v?(?P<{}>[\d.]+)\w*\)"
_MISMATCH = re.compile(
    f"Stub lib id mismatch: expected {_BUILD_ID.format('expected')}, "
    f"detected {_BUILD_ID.format('detected')}"
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
# QNN logs several lines about one failure: the first pattern that matches is nearest to the cause.
_FAILURES = FailureTable(
    "QNN on a phone",
    7,
    (
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
            r"Cannot Open QNN library (?P<name>[^\s,]+), with error: (?P<why>.+)",
            "Qualcomm's {name} could not be loaded: {why}",
            f"Push it again: etdeploy clean --device {{device}}\n{_OWN_WORDS}",
        ),
        FailurePattern(
            r"(?P<what>Unknown QNN (?:Binary|Graph)Info version \d+)",
            "the program was compiled by a newer QNN than the runner was built with ({what})",
            *_ONE_SDK,
        ),
        FailurePattern(
            r"(?:Can't create context from binary\. Error|create context from binary with err) "
            r"(?:5000|0x1388)\b",
            "the phone's QNN libraries cannot load the program (QNN error 5000): a newer QNN "
            "compiled it, or it is for another SoC",
            "See what compiled it, and for what: etdeploy inspect PROGRAM.pte\n"
            f"The SDK that {VARIABLE} names must be as new; or export again with it: "
            "etdeploy clean programs",
            "See what compiled it, and for what: etdeploy inspect PROGRAM.pte\n"
            f"The SDK that {VARIABLE} names must be as new; or export the model again with it,\n"
            f"{NEW_FILE}.",
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


def qnn_cause(text: str) -> Diagnosis | None:
    """What QNN's lines in a runner's log mean; None where none is known."""
    mismatch = _MISMATCH.search(text)
    if mismatch:
        return _other_stub(mismatch["expected"], mismatch["detected"])
    return _FAILURES.diagnose(text)


def _other_stub(expected: str, detected: str) -> Diagnosis:
    """The phone's own library is the one of the two that nobody can replace."""
    cause = (
        f"QNN {expected} loaded a stub of QNN {detected}: the phone has its own libraries, in "
        "/odm or /vendor, which take precedence over those that were pushed"
    )
    least = dotted(ADAPTOR_SDK)
    if version_numbers(detected)[:2] >= ADAPTOR_SDK:
        return Diagnosis(
            cause,
            f"Use the SDK of the phone's version to export, to build and to run:\n"
            f"export {VARIABLE}=/path/to/qairt/{detected}",
        )
    return Diagnosis(
        cause,
        f"ExecuTorch needs QNN {least} or newer: update the phone's system, whose QNN is older,\n"
        "or use a phone without its own libraries: adb shell ls /odm/lib64 /vendor/lib64",
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
# The first pattern that matches is nearest to the cause.
_SIMULATOR_FAILURES = FailureTable(
    "QNN simulator",
    7,
    (
        SHARED_WEIGHTS,
        FailurePattern(
            r"Cannot Open QNN library (?P<name>[^\s,]+), with error: (?P<why>.+)",
            "Qualcomm's {name}, which simulates the HTP, could not be loaded: {why}",
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
            f"Use the release that works:\nunset {VARIABLE}\n{get_package()}",
        ),
    ),
)


def simulator_cause(text: str) -> Diagnosis | None:
    """What lines in a runner's log on this machine mean; None where none is known."""
    return _SIMULATOR_FAILURES.diagnose(text)


_FAILED = re.compile(r"Failed to generate Qnn context binary|Fail to compile QNN graph")
_SMALLER = (
    "Make it smaller: 8-bit or 4-bit weights (--set export.quantization=int8_static or 16a4w), a\n"
    "smaller batch or input, or two models, each a program of its own."
)
_OTHER_SHAPE = (
    "Try another precision, since it compiles other kernels: --set export.quantization=int8_static;"
    "\nor --set export.backend=xnnpack"
)
_AT_ONCE = (
    "Let the operator see less at a time: a norm or a softmax over fewer elements, a smaller\n"
    "input, fewer channels; or compile for a SoC with more VTCM."
)
_BYTES_PER_KB = 1024


def compiler_cause(text: str) -> Diagnosis | None:
    """Why a graph was not compiled; None where the compiler did not fail, or said nothing known."""
    for pattern, cause in _KNOWN:
        if found := pattern.search(text):
            return cause(found)
    if not _FAILED.search(text):
        return None
    for pattern, cause in _WITH_FAILURE:
        if found := pattern.search(text):
            return cause(found)
    return None


def _too_large(found: re.Match[str]) -> Diagnosis:
    wanted, limit = (int(number) * _BYTES_PER_KB for number in found.groups())
    return _over_limit(size(wanted), f"at most {size(limit)}")


def _no_process(found: re.Match[str]) -> Diagnosis:
    return _over_limit(size(int(found[1])), "4 GB of addresses, of which about 3.7 GB are free")


def _over_limit(wanted: str, limit: str) -> Diagnosis:
    return Diagnosis(
        f"a part of the model needs {wanted} on the HTP, and one context there has {limit}",
        _SMALLER,
    )


def _not_written(found: re.Match[str]) -> Diagnosis:
    return Diagnosis(
        f"the compiled part of the model is too large to be written ({found[1].strip()}): a "
        "context binary has at most 2 GB",
        _SMALLER,
    )


def _vtcm(found: re.Match[str]) -> Diagnosis:
    wanted, has = (size(int(number, 16)) for number in (found["wanted"], found["has"]))
    name = found["name"]
    return Diagnosis(
        f"the operator {name} needs {wanted} of the HTP's own memory (VTCM) at once, and the SoC "
        f"has {has}",
        _AT_ONCE,
    )


def _untiled(found: re.Match[str]) -> Diagnosis:
    return Diagnosis(
        f"an operator needs {size(int(found[1]))} of the HTP's own memory (VTCM) at once, and "
        "Qualcomm's compiler finds no way to split it",
        _AT_ONCE,
    )


def _bias(found: re.Match[str]) -> Diagnosis:
    return Diagnosis(
        "Qualcomm's compiler fails at a layer of 16-bit floats whose result is split into parts, "
        f"as nn.MultiheadAttention does with a batch of one: {found[1].strip()}",
        "Quantise the model (--set export.quantization=int8_static), or give it a batch of two "
        "or more; or\nuse three linear layers for query, key and value in place of one.",
    )


def _at_node(found: re.Match[str]) -> Diagnosis:
    return Diagnosis(
        f"Qualcomm's compiler fails at the operator {found[1]}: {found[2].strip()}", _OTHER_SHAPE
    )


def _first_error(found: re.Match[str]) -> Diagnosis:
    return Diagnosis(f"Qualcomm's compiler failed: {found[1].strip()}", _OTHER_SHAPE)


_Words = tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Diagnosis]], ...]
# Lines that stand for one failure only, the nearest to the cause first.
_KNOWN: _Words = (
    (re.compile(r"graph requires estimated allocation of (\d+) KB, limit is (\d+) KB"), _too_large),
    (re.compile(r"Failed to find available PD .*context size estimate (\d+)"), _no_process),
    (
        re.compile(
            r'"(?P<name>\S+)" generated: Requires (?P<wanted>0x[\da-f]+) bytes of TCM, which is '
            r"greater than the TCM size of (?P<has>0x[\da-f]+)"
        ),
        _vtcm,
    ),
    (re.compile(r"not sufficiently tiled to fit in TCM\. Requires (\d+) bytes"), _untiled),
    (re.compile(r"ERROR:(.*(?:memory usage too large|couldn't insert overall len))"), _not_written),
    (re.compile(r"ERROR:(genNopWithScaleParams.*mismatched scale and bias[^\n]*)"), _bias),
)
# What may also be printed of a node that then runs on the CPU.
_WITH_FAILURE: _Words = (
    (re.compile(r'<E> "(\S+)" generated: ([^\n]+)'), _at_node),
    (re.compile(r"\.cc:\d+::?ERROR:([^\n]+)"), _first_error),
)
