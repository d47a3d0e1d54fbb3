"""What kinds of work the time of an inference goes to."""

from __future__ import annotations

from collections.abc import Iterable

from etdeploy.profile.calls import Call
from etdeploy.runner.etdump import outside_share

COPY, INDEX_PUT, VIEWS, REST, RUNTIME = "copy_", "index_put", "views", "rest", "runtime"
# Work that only moves values.
MOVING = (COPY, INDEX_PUT, VIEWS)
# Changes of the layout that are not called `..._copy`; an in-place `copy_` writes to a buffer.
_VIEWS = frozenset({"clone", "_clone_dim_order", "et_view", "contiguous"})
_NO_VIEWS = frozenset({"_to_copy"})  # changes the data type


def kind_of(name: str) -> str:
    """The kind of a kernel by its name in full: `copy_`, `index_put`, `views` or `rest`."""
    base = name.rpartition("::")[2].partition(".")[0]
    if base in ("copy", "copy_"):
        return COPY
    if base in ("index_put", "index_put_"):
        return INDEX_PUT
    is_view = base in _VIEWS or (base.endswith("_copy") and base not in _NO_VIEWS)
    return VIEWS if is_view else REST


def outside_delegates(calls: Iterable[Call], inference_ms: float) -> float:
    """Share of an inference that is in no delegate, from 0 to 1, as records have it."""
    delegated = (call.total_ms for call in calls if call.depth == 0 and call.delegate)
    return outside_share(inference_ms, sum(delegated))


def shares_of(calls: Iterable[Call], inference_ms: float) -> dict[str, float]:
    """Shares of an inference from 0 to 1, as `Profile.shares` has them; their sum is 1.

    Args:
        calls: All of them; a delegate's nodes are in its calls.
        inference_ms: The time of an inference.
    """
    times: dict[str, float] = {}
    for call in calls:
        if call.depth == 0:
            kind = call.delegate or kind_of(call.name)
            times[kind] = times.get(kind, 0.0) + call.total_ms
    # Rounding of the clock can make the parts longer than the whole.
    whole_ms = max(inference_ms, sum(times.values()))
    delegates = sorted(times.keys() - {COPY, INDEX_PUT, VIEWS, REST})
    named = [*delegates, COPY, INDEX_PUT, VIEWS, REST]
    shares = {name: times.get(name, 0.0) / whole_ms if whole_ms else 0.0 for name in named}
    return {**shares, RUNTIME: max(0.0, 1.0 - sum(shares.values())) if whole_ms else 0.0}
