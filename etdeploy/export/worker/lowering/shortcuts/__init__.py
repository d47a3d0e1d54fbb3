"""Work that lowering repeats, done once or left out; the program stays the same, byte for byte."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from etdeploy.export.worker.lowering.shortcuts.remembered import (
    code_when_wanted,
    dtypes_checked_once,
    origins_shared,
    results_remembered,
    shapes_of_quantisation,
    tensors_shared,
)

# Objects between two looks for garbage. Python's 700 are a small part of one step's graph.
_COLLECTED_AFTER = 50_000


@contextmanager
def shortcuts() -> Iterator[None]:
    """While the block runs, this process lowers without the repetitions."""
    with ExitStack() as stack:
        stack.enter_context(rarely_collected())
        stack.enter_context(code_when_wanted())
        stack.enter_context(results_remembered())
        stack.enter_context(shapes_of_quantisation())
        stack.enter_context(dtypes_checked_once())
        stack.enter_context(origins_shared())
        stack.enter_context(tensors_shared())
        yield


@contextmanager
def rarely_collected() -> Iterator[None]:
    """Looks for garbage less often, and not among what was there before."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECTED_AFTER, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
