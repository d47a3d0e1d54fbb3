"""What Qualcomm's compiler prints while it is asked about a node: why it refuses it."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_STREAMS = (1, 2)
_ERROR = re.compile(r"^\[ERROR\] \[Qnn ExecuTorch\]: *(?:<E>)? *(.+)$", re.MULTILINE)
# That a node was refused, or where in the compiler, but not why.
_HOLLOW = re.compile(
    r"validateOpConfig|validateNativeOps|Failed to validate op|validation failed|not well formed"
    r"|^Requested I/O|^Supported I/O|^Please refer"
)
# `[4294967295] has incorrect Rank 6.`: the number stands for every tensor.
_PREFIX = re.compile(r"^\[\d+\] (?:has )?")
_LONGEST = 160


@contextmanager
def overheard() -> Iterator[Callable[[], str]]:
    """Collects all that this process prints meanwhile, and prints it afterwards.

    The compiler prints from C++, so the descriptors are exchanged. Their new file keeps what is
    written, while a pipe would have to be read by another thread, which the compiler could keep
    from running.

    Returns:
        Gives the text, once the block has ended.
    """
    said: list[bytes] = []
    with tempfile.TemporaryFile() as file:
        kept = [os.dup(stream) for stream in _STREAMS]
        try:
            for stream in _STREAMS:
                os.dup2(file.fileno(), stream)
            yield lambda: b"".join(said).decode(errors="replace")
        finally:
            for stream, original in zip(_STREAMS, kept, strict=True):
                os.dup2(original, stream)
                os.close(original)
            file.seek(0)
            said.append(file.read())
            with os.fdopen(os.dup(_STREAMS[0]), "wb") as output:
                output.write(said[0])


def validation_reason(text: str) -> str | None:
    """Why the compiler refuses a node: `the HTP's compiler: incorrect Rank 6`; None if unsaid."""
    for found in _ERROR.finditer(text):
        line = _PREFIX.sub("", found[1].strip())
        if not _HOLLOW.search(line):
            sentence = line.partition(". ")[0].rstrip(".")
            return f"the HTP's compiler: {sentence[:_LONGEST]}"
    return None
