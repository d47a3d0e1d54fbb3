"""The memory pass, from what the runner read and what the program's file says."""

from __future__ import annotations

from etdeploy.bench.records.performance import Memory, MemoryPoint, WeightsKind
from etdeploy.program.model import Method, Program
from etdeploy.runner.protocol import RunnerMemory, RunnerResults

# With less, what the allocator takes for other things would decide.
_LEAST_WEIGHTS_BYTES = 1 << 20
# Of the weights. Packed weights can be half as large as those of the file, and with several
# delegates only some of them may be copied.
_COPIED = 0.25
# The kernel maps pages around one that is touched, and the program's tables are in the file too.
_IN_FILE = 0.1


def memory_of(results: RunnerResults, program: Program, method: Method) -> Memory:
    """The memory pass as the record has it.

    Args:
        results: Of the memory pass.
        program: That ran.
        method: Of the program, that ran.
    """
    peak_rss_bytes = results.peak_rss_bytes or None
    read = results.memory
    if read is None:
        return Memory(peak_rss_bytes=peak_rss_bytes, planned_bytes=method.planned_memory_bytes)
    return Memory(
        peak_rss_bytes=peak_rss_bytes,
        peak_pss_bytes=read.peak_pss_bytes,
        peak_footprint_bytes=read.peak_footprint_bytes,
        before_load_rss_bytes=read.before_load.rss_bytes,
        after_load_rss_bytes=read.after_load.rss_bytes,
        planned_bytes=method.planned_memory_bytes,
        program_resident_bytes=read.program_resident_bytes,
        weights=_weights(read, method.planned_memory_bytes, weights_bytes(program, method)),
        points=tuple(
            MemoryPoint(seconds=seconds, rss_bytes=rss, pss_bytes=pss)
            for seconds, rss, pss in read.points
        ),
    )


def weights_bytes(program: Program, method: Method) -> int:
    """Constants, and what the method's delegates were given, most of which is weights."""
    return program.constant_bytes + sum(d.size_bytes for d in method.delegates)


def _weights(read: RunnerMemory, planned_bytes: int, size_bytes: int) -> WeightsKind | None:
    """Where the weights are: in pages of the file, or in memory that was allocated for them.

    Only what is allocated while the method is loaded counts: later come a delegate's activations.
    The planned memory is not: ExecuTorch's Module allocates it then, too, and sets it to zero, so
    that all of it is resident (extension/module/module.cpp of 1.5.1).
    """
    before, after = read.before_load.anonymous_bytes, read.after_load.anonymous_bytes
    resident = read.program_resident_bytes
    if size_bytes < _LEAST_WEIGHTS_BYTES or before is None or after is None or resident is None:
        return None
    copied = after - before - planned_bytes >= _COPIED * size_bytes
    in_file = resident >= _IN_FILE * size_bytes
    if copied and in_file:
        return WeightsKind.BOTH
    if copied:
        return WeightsKind.LOADED
    return WeightsKind.MAPPED if in_file else None
