"""Programs with several methods: one context on the HTP, and whether that has the weights once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.failures import fail

SHARING = "weight_sharing"


def shares(spec: ExportSpec) -> bool:
    """Whether the recipe requests that weights are stored once."""
    return bool(spec.options.get(SHARING))


@contextmanager
def explaining_partitions() -> Iterator[None]:
    """Explains what `QnnBackend.preprocess_multimethod` asserts (ExecuTorch 1.5.1).

    Raises:
        WorkerError: The methods do not have as many partitions each.
    """
    try:
        yield
    except AssertionError as error:
        if "the same number of partitions" not in str(error):
            raise
        raise fail(
            "lowering",
            "the methods have different numbers of partitions, and ExecuTorch compiles the first "
            "of all methods into one context, the second into another, and so on",
            remedy="Let every method use operators that the HTP takes, so that each is one "
            "partition; or export\nthe methods as programs of their own.",
        ) from error
