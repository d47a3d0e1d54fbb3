"""Tells that time passes while a device works for minutes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from etdeploy.bench.units import long_time
from etdeploy.core.progress import Progress

_EVERY_S = 1.0


@contextmanager
def telling_time(progress: Progress, what: str, length_s: float) -> Iterator[None]:
    """Reports each second of the block how long it has lasted, from a thread of its own.

    Args:
        progress: Called with a text and the fraction that is over, at most 1.
        what: The beginning of the text.
        length_s: How long the block is expected to last; nothing is reported for 0.
    """
    if not length_s:
        yield
        return
    over = threading.Event()
    began_s = time.monotonic()

    def tell() -> None:
        while not over.wait(_EVERY_S):
            passed_s = min(time.monotonic() - began_s, length_s)
            progress(f"{what}: {long_time(passed_s)} of {long_time(length_s)}", passed_s / length_s)

    thread = threading.Thread(target=tell, name="telling time", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
