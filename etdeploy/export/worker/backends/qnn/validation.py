"""What Qualcomm's compiler prints while it is asked about a node: why it refuses it."""

from __future__ import annotations

import re

_ERROR = re.compile(r"^\[ERROR\] \[Qnn ExecuTorch\]: *(?:<E>)? *(.+)$", re.MULTILINE)
# That a node was refused, or where in the compiler, but not why.
_HOLLOW = re.compile(
    r"validateOpConfig|validateNativeOps|Failed to validate op|validation failed|not well formed"
    r"|^Requested I/O|^Supported I/O|^Please refer"
)
# `[4294967295] has incorrect Rank 6.`: the number stands for every tensor.
_PREFIX = re.compile(r"^\[\d+\] (?:has )?")
_LONGEST = 160


def validation_reason(text: str) -> str | None:
    """Why the compiler refuses a node: `the HTP's compiler: incorrect Rank 6`; None if unsaid."""
    for found in _ERROR.finditer(text):
        line = _PREFIX.sub("", found[1].strip())
        if not _HOLLOW.search(line):
            sentence = line.partition(". ")[0].rstrip(".")
            return f"the HTP's compiler: {sentence[:_LONGEST]}"
    return None
