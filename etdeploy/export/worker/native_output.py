"""What native code prints while it works: its reasons for failing are nowhere else."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_STREAMS = (1, 2)


@contextmanager
def overheard() -> Iterator[Callable[[], str]]:
    """Collects all that this process prints meanwhile, and prints it afterwards.

    C++ writes to the descriptors, so these are exchanged. Their new file keeps what is written,
    while a pipe would have to be read by another thread, which native code could keep from running.

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
