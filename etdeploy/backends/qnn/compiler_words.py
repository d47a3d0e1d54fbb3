"""What Qualcomm's compiler prints when it cannot compile a graph, and what it means.

The lines are those of QNN 2.49, which compiled such graphs here, and of reports in the issues of
ExecuTorch and of Qualcomm's own projects.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from etdeploy.backends.causes import Cause
from etdeploy.core.console import size

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


def compiler_cause(text: str) -> Cause | None:
    """Why a graph was not compiled; None where the compiler did not fail, or said nothing known.

    Args:
        text: All that the export printed.
    """
    for pattern, cause in _KNOWN:
        if found := pattern.search(text):
            return cause(found)
    if not _FAILED.search(text):
        return None
    for pattern, cause in _WITH_FAILURE:
        if found := pattern.search(text):
            return cause(found)
    return None


def _too_large(found: re.Match[str]) -> Cause:
    wanted, limit = (int(number) * _BYTES_PER_KB for number in found.groups())
    return _over_limit(size(wanted), f"at most {size(limit)}")


def _no_process(found: re.Match[str]) -> Cause:
    return _over_limit(size(int(found[1])), "4 GB of addresses, of which about 3.7 GB are free")


def _over_limit(wanted: str, limit: str) -> Cause:
    return Cause(
        f"a part of the model needs {wanted} on the HTP, and one context there has {limit}",
        _SMALLER,
    )


def _not_written(found: re.Match[str]) -> Cause:
    return Cause(
        f"the compiled part of the model is too large to be written ({found[1].strip()}): a "
        "context binary has at most 2 GB",
        _SMALLER,
    )


def _vtcm(found: re.Match[str]) -> Cause:
    wanted, has = (size(int(number, 16)) for number in (found["wanted"], found["has"]))
    name = found["name"]
    return Cause(
        f"the operator {name} needs {wanted} of the HTP's own memory (VTCM) at once, and the SoC "
        f"has {has}",
        _AT_ONCE,
    )


def _untiled(found: re.Match[str]) -> Cause:
    return Cause(
        f"an operator needs {size(int(found[1]))} of the HTP's own memory (VTCM) at once, and "
        "Qualcomm's compiler finds no way to split it",
        _AT_ONCE,
    )


def _bias(found: re.Match[str]) -> Cause:
    return Cause(
        "Qualcomm's compiler fails at a layer of 16-bit floats whose result is split into parts, "
        f"as nn.MultiheadAttention does with a batch of one: {found[1].strip()}",
        "Quantise the model (--set export.quantization=int8_static), or give it a batch of two "
        "or more; or\nuse three linear layers for query, key and value in place of one.",
    )


def _at_node(found: re.Match[str]) -> Cause:
    return Cause(
        f"Qualcomm's compiler fails at the operator {found[1]}: {found[2].strip()}", _OTHER_SHAPE
    )


def _first_error(found: re.Match[str]) -> Cause:
    return Cause(f"Qualcomm's compiler failed: {found[1].strip()}", _OTHER_SHAPE)


_Words = tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Cause]], ...]
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
