"""How many threads a recipe's `runtime.threads` gives on a device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from etdeploy.core.console import count
from etdeploy.devices.base import CpuCluster, DeviceState

# Of the strongest processor's capacity, as the kernel computes it from a device's tree. Little
# cores reach up to 39 % (RK3588), middle ones 48 % and more (Cortex-A76 in Google's Tensor).
LEAST_CAPACITY = 0.45
# Of the highest frequency, where no capacity is reported. Little cores and Intel's efficient ones
# reach up to 78 % (RK3399), middle ones 80 % and more.
LEAST_FREQUENCY = 0.79
# The recipe's bound.
_MOST = 256


@dataclass(frozen=True)
class ThreadCounts:
    """Numbers of threads: 0 for ExecuTorch's choice, several for a sweep.

    `reason` is None if the recipe has the number; `notes` are for the record.
    """

    numbers: tuple[int, ...]
    reason: str | None = None
    swept: bool = False
    notes: tuple[str, ...] = ()


EXECUTORCH_CHOICE = ThreadCounts((0,))


def choose_threads(
    requested: int | str | Sequence[int], state: DeviceState, *, has_pool: bool = True
) -> ThreadCounts:
    """Return how many threads a recipe's `runtime.threads` gives on a device."""
    if isinstance(requested, int):
        return ThreadCounts((requested,))
    if not has_pool:
        return ThreadCounts((0,), "nothing in the program uses threads, so the runner has no pool")
    if isinstance(requested, str):
        number, reason = performance_cores(state)
        return ThreadCounts((number,), reason)
    return ThreadCounts(tuple(requested), swept=True)


def note_core_count(threads: ThreadCounts, state: DeviceState, used: int) -> ThreadCounts:
    """Add a note if ExecuTorch's own choice is not one thread for each performance core."""
    number, reason = performance_cores(state)
    if threads != EXECUTORCH_CHOICE or number in (0, used):
        return threads
    both = f"[{min(number, used)}, {max(number, used)}]"
    note = (
        f"ExecuTorch chose {count(used, 'thread')}; the device has {count(number, 'core')} for "
        f"them: {reason}. Use those (--set runtime.threads=auto), or measure which number is "
        f"faster (--set 'runtime.threads={both}')."
    )
    return replace(threads, notes=(note,))


def performance_cores(state: DeviceState) -> tuple[int, str]:
    """Return how many cores should have a thread, and why; 0 if the device reports none.

    Slower cores make the others wait: a model on a Pixel 6 took 6.7 ms with the four faster cores,
    and 79 ms with all eight (https://github.com/pytorch/executorch/pull/5811). A core with several
    hardware threads counts once.
    """
    usable = _usable(state)
    if not usable:
        return 0, "the device does not report its processors, so ExecuTorch chose"
    strong, reason = _strong([cluster for cluster, _ in usable])
    number = sum(cores for cluster, cores in usable if cluster in strong)
    if state.cpu_quota is not None and state.cpu_quota < number:
        number = max(1, math.floor(state.cpu_quota))
        reason += f", limited to the time of {state.cpu_quota:g} by a control group"
    return min(number, _MOST), reason


def _strong(clusters: Sequence[CpuCluster]) -> tuple[list[CpuCluster], str]:
    """The clusters of performance cores, and how they were identified."""
    known = (
        ([c.capacity for c in clusters], LEAST_CAPACITY, "of the strongest one's capacity"),
        ([c.hardware_max_khz or c.max_khz for c in clusters], LEAST_FREQUENCY,
         "of the highest frequency"),
    )  # fmt: skip
    for values, least, of in known:
        numbers = [value for value in values if value]
        if len(numbers) < len(clusters) or len(set(numbers)) == 1:
            continue
        limit = least * max(numbers)
        strong = [c for c, value in zip(clusters, numbers, strict=True) if value >= limit]
        if len(strong) < len(clusters):
            return strong, f"performance cores, which have at least {100 * least:.0f} % {of}"
        break
    return list(clusters), "all cores that the runner may use"


def _usable(state: DeviceState) -> list[tuple[CpuCluster, int]]:
    """The clusters that a program may use, each with its number of cores."""
    processors = [(cluster, _allowed(cluster.cpus, state)) for cluster in state.clusters]
    # A core's first hardware thread may be in another cluster.
    cores = [
        (cluster, allowed if cluster.cores is None else _allowed(cluster.cores, state))
        for cluster, allowed in processors
    ]
    # Second hardware threads count only if all first ones are forbidden.
    counted = cores if any(number for _, number in cores) else processors
    return [(cluster, number) for cluster, number in counted if number]


def _allowed(cpus: Sequence[int], state: DeviceState) -> int:
    usable = state.usable_cpus
    return len(cpus if usable is None else set(cpus).intersection(usable))
