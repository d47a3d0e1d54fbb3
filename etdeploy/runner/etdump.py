"""How much of a trace's time is in delegates and in kernels, read without ExecuTorch's Inspector.

The Inspector takes seconds and needs torch; this takes milliseconds, so that a record can have it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from etdeploy.core.flatbuffer import CorruptError, FlatBuffer, FlatbufferTable

_EXECUTE, _DELEGATE_CALL = "Method::execute", "DELEGATE_CALL"
_KERNEL = "native_call_"
# A size stands before the FlatBuffer.
_PREFIX_BYTES = 4
# Slots: executorch/devtools/etdump/etdump_schema_flatcc.fbs
_RUNS, _EVENTS, _PROFILED = 1, 3, 0
_NAME, _START, _END = 0, 6, 7


@dataclass(frozen=True)
class Kernel:
    """An operator that no delegate runs, without its namespace: `mean.out`."""

    name: str
    calls: int
    ms: float


@dataclass(frozen=True)
class TraceSummary:
    """Calls of a method in a trace, with the part of their time that is in delegates' calls."""

    calls: int
    total_ms: float
    delegated_ms: float
    kernels: tuple[Kernel, ...] = ()

    @property
    def outside(self) -> float:
        """Share of the time outside of delegates, from 0 to 1."""
        return outside_share(self.total_ms, self.delegated_ms)


def outside_share(total_ms: float, delegated_ms: float) -> float:
    """Share of a method's time outside of its delegates' calls, from 0 to 1.

    The times are those of `Method::execute` and `DELEGATE_CALL`.
    """
    return min(1.0, max(0.0, 1.0 - delegated_ms / total_ms)) if total_ms > 0 else 0.0


def read_summary(data: bytes) -> TraceSummary:
    """The calls in an ETDump, whose clock counts nanoseconds on Linux, Android and Apple's systems.

    Raises:
        CorruptError: The data is not an ETDump, or was cut off.
    """
    content = memoryview(data)[_PREFIX_BYTES:]
    if bytes(content[4:8]) != b"ED00" or int.from_bytes(data[:4], "little") > len(content):
        raise CorruptError("this is not a whole ETDump")
    times: dict[str, list[int]] = defaultdict(list)
    for run in FlatBuffer(content).root().tables(_RUNS):
        for each in _profiled(run):
            name = bytes(each.content(_NAME)).decode(errors="replace")
            if name in (_EXECUTE, _DELEGATE_CALL) or name.startswith(_KERNEL):
                times[name].append(max(0, each.uint64(_END) - each.uint64(_START)))
    executed, delegated = times.pop(_EXECUTE, []), times.pop(_DELEGATE_CALL, [])
    kernels = (
        Kernel(name.removeprefix(_KERNEL), len(each), sum(each) / 1e6)
        for name, each in times.items()
    )
    return TraceSummary(len(executed), sum(executed) / 1e6, sum(delegated) / 1e6, tuple(kernels))


def _profiled(run: FlatbufferTable) -> Iterator[FlatbufferTable]:
    return (each for event in run.tables(_EVENTS) if (each := event.table(_PROFILED)))
