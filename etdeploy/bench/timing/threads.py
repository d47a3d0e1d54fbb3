"""How many threads the runner's pool gets, from what the device reports; all pure."""

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
class Threads:
    """What the runner is told.

    Attributes:
        numbers: How many, 0 for ExecuTorch's choice; several for a sweep.
        reason: Why; None where the recipe says how many.
        swept: Whether the recipe asks for a sweep.
        notes: What a reader of the times has to know.
    """

    numbers: tuple[int, ...]
    reason: str | None = None
    swept: bool = False
    notes: tuple[str, ...] = ()


def choose_threads(
    wanted: int | str | Sequence[int], state: DeviceState, *, has_pool: bool = True
) -> Threads:
    """How many threads a recipe's `runtime.threads` gives on a device.

    Args:
        wanted: As the recipe has it.
        state: Of the device, before the run.
        has_pool: Whether there is a thread pool in the runner.
    """
    if isinstance(wanted, int):
        return Threads((wanted,))
    if not has_pool:
        return Threads((0,), "nothing in the program uses threads, so the runner has no pool")
    if isinstance(wanted, str):
        number, reason = performance_cores(state)
        return Threads((number,), reason)
    return Threads(tuple(wanted), swept=True)


def compared_with_cores(threads: Threads, state: DeviceState, taken: int) -> Threads:
    """The same, with a note where ExecuTorch's own choice is not one for each performance core.

    Args:
        threads: As chosen.
        state: Of the device, before the run.
        taken: How many ExecuTorch's pool had.
    """
    number, reason = performance_cores(state)
    if threads != Threads((0,)) or number in (0, taken):
        return threads
    both = f"[{min(number, taken)}, {max(number, taken)}]"
    note = (
        f"ExecuTorch chose {count(taken, 'thread')}; the device has {count(number, 'core')} for "
        f"them: {reason}. Take those (--set runtime.threads=auto), or see which number is faster "
        f"(--set 'runtime.threads={both}')."
    )
    return replace(threads, notes=(note,))


def performance_cores(state: DeviceState) -> tuple[int, str]:
    """How many cores are worth a thread, and why; 0 where the device does not tell.

    Slower cores make the others wait: a model on a Pixel 6 took 6.7 ms with the four faster cores,
    and 79 ms with all eight (https://github.com/pytorch/executorch/pull/5811). Of a core that is
    several processors, one counts: they share what computes.
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
    """The clusters of performance cores, and how they were told apart."""
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
    """The clusters on which a program may run, each with the number of its cores."""
    processors = [(cluster, _allowed(cluster.cpus, state)) for cluster in state.clusters]
    # The first processor of a core may be in another cluster, where each has its own.
    cores = [
        (cluster, allowed if cluster.cores is None else _allowed(cluster.cores, state))
        for cluster, allowed in processors
    ]
    # Second processors count where all first ones are forbidden.
    counted = cores if any(number for _, number in cores) else processors
    return [(cluster, number) for cluster, number in counted if number]


def _allowed(cpus: Sequence[int], state: DeviceState) -> int:
    usable = state.usable_cpus
    return len(cpus if usable is None else set(cpus).intersection(usable))
