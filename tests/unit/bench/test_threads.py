"""How many threads are chosen, and a sweep of several numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from etdeploy.bench.run_pass import PassResult
from etdeploy.bench.starts import (
    fastest,
    fastest_threads,
    promote_fastest,
    select_starts,
    thread_records,
)
from etdeploy.bench.threads import (
    ThreadCounts,
    choose_threads,
    note_core_count,
    performance_cores,
)
from etdeploy.devices.base import CpuCluster, DeviceState
from tests.support.bench_values import make_pass, make_results
from tests.support.facts import lacks


def _results(starts: Mapping[int, Sequence[float]]) -> dict[str, PassResult]:
    """The starts with each number of threads, from the times of their only inferences."""
    found = {}
    for number in range(max(map(len, starts.values()))):
        for threads, times_ms in starts.items():
            made = make_pass(number + 1, make_results((times_ms[number],), threads=threads))
            step = replace(made.step, threads=threads, swept=True, outputs=number == 0)
            found[step.key] = replace(made, step=step)
    return found


def test_the_fastest_is_that_with_the_smallest_median() -> None:
    assert fastest(_results({1: (8.0, 8.1), 2: (4.0, 4.2), 4: (4.4, 4.3)})) == 2
    assert fastest(_results({4: (4.0,), 2: (4.0,)})) == 2
    assert fastest({"timing": make_pass(1, make_results())}) is None


def test_the_fastest_becomes_what_the_record_is_about(tmp_path: Path) -> None:
    results = _results({1: (8.0, 8.1), 2: (4.0, 4.2)})
    for result in results.values():
        (tmp_path / result.file).write_text(result.file)
        if result.outputs:
            (tmp_path / result.outputs).mkdir()
    now = promote_fastest(results, 2, tmp_path)
    assert list(now) == ["timing.threads-1", "timing", "timing.threads-1.2", "timing.2"]
    assert all((tmp_path / result.file).is_file() for result in now.values())
    assert (tmp_path / "timing.2.json").read_text() == "timing.threads-2.2.json"
    assert sorted(p.name for p in tmp_path.glob("outputs*")) == ["outputs", "outputs.threads-1"]
    assert select_starts(now, "").latency.samples == (4.0, 4.2)
    records = thread_records(now)
    assert [(r.threads, r.latency_ms.median, len(r.runs)) for r in records] == [
        (1, 8.05, 2), (2, 4.1, 2),
    ]  # fmt: skip


def test_why_it_was_chosen_and_what_may_be_as_fast() -> None:
    clear = fastest_threads(_results({1: (8.0, 8.1), 2: (4.0, 4.2)}), 2, ())
    assert (clear.numbers, clear.reason, clear.notes) == ((2,), "the fastest of 1, 2", ())
    close = fastest_threads(_results({1: (8.0, 8.1), 2: (4.0, 4.4), 4: (4.3, 4.5)}), 2, ())
    [note] = close.notes
    assert note.startswith("4 threads ")
    single = fastest_threads(_results({1: (8.0,), 2: (4.0,)}), 2, ())
    assert single.notes == ()


def test_wrong_outputs_with_another_number_are_told() -> None:
    [note] = fastest_threads(_results({1: (8.0, 8.1), 2: (4.0, 4.2)}), 2, (1, 2)).notes
    assert "With 1 thread " in note
    assert "outputs.threads-1" in note


def _state(*clusters: CpuCluster, **changes: Any) -> DeviceState:
    return DeviceState(clusters=clusters, **changes)


def _cluster(first: int, number: int, **facts: Any) -> CpuCluster:
    return CpuCluster(cpus=tuple(range(first, first + number)), **facts)


# Capacities are capacity-dmips-mhz of the kernel's device trees times the highest frequency.
PIXEL_6 = (
    _cluster(0, 4, capacity=161, hardware_max_khz=1_803_000),
    _cluster(4, 2, capacity=498, hardware_max_khz=2_253_000),
    _cluster(6, 2, capacity=1024, hardware_max_khz=2_802_000),
)
RK3588 = (
    _cluster(0, 4, capacity=397, hardware_max_khz=1_800_000),
    _cluster(4, 2, capacity=1024, hardware_max_khz=2_400_000),
    _cluster(6, 2, capacity=1024, hardware_max_khz=2_400_000),
)
RASPBERRY_PI_5 = (_cluster(0, 4, capacity=1024, hardware_max_khz=2_400_000),)
# An old kernel reports frequencies only.
RK3399 = (
    _cluster(0, 4, hardware_max_khz=1_416_000),
    _cluster(4, 2, hardware_max_khz=1_800_000),
)
# Each processor has a policy of its own; the maxima of good ones differ a little.
DESKTOP = tuple(
    CpuCluster(cpus=(cpu,), hardware_max_khz=5_000_000 + 50_000 * (cpu % 4), cores=(cpu % 4,))
    if cpu < 4
    else CpuCluster(cpus=(cpu,), hardware_max_khz=5_000_000 + 50_000 * (cpu % 4), cores=())
    for cpu in range(8)
)
SERVER = (_cluster(0, 64, capacity=1024, cores=tuple(range(32))),)


@pytest.mark.parametrize(
    ("clusters", "number", "reason"),
    [
        (PIXEL_6, 4, "performance cores, which have at least 45 % of the strongest"),
        (RK3588, 4, "performance cores, which have at least 45 % of the strongest"),
        (RASPBERRY_PI_5, 4, "all cores that the runner may use"),
        (RK3399, 2, "performance cores, which have at least 79 % of the highest frequency"),
        (SERVER, 32, "all cores that the runner may use"),
        ((), 0, "does not report its processors, so ExecuTorch chose"),
        # Half of the clusters say nothing: then none is left out.
        ((_cluster(0, 4), _cluster(4, 2, capacity=1024)), 6, "all cores that the runner may use"),
    ],
)
def test_performance_cores_of_known_devices(
    clusters: tuple[CpuCluster, ...], number: int, reason: str
) -> None:
    found, why = performance_cores(_state(*clusters))
    assert found == number
    assert reason in why


def test_a_core_of_two_processors_counts_once_also_in_policies_of_their_own() -> None:
    assert performance_cores(_state(*DESKTOP))[0] == 4


def test_what_the_runner_may_not_use_does_not_count() -> None:
    assert performance_cores(_state(*PIXEL_6, usable_cpus=(0, 1, 2, 3, 4, 5)))[0] == 2
    # An app in the background has the little ones only.
    assert performance_cores(_state(*PIXEL_6, usable_cpus=(0, 1, 2)))[0] == 3
    assert performance_cores(_state(*SERVER, usable_cpus=(0, 1, 32, 33)))[0] == 2
    assert performance_cores(_state(*SERVER, usable_cpus=(40, 41)))[0] == 2
    assert performance_cores(_state(*PIXEL_6, usable_cpus=()))[0] == 0


@pytest.mark.parametrize(("quota", "number"), [(2.0, 2), (1.5, 1), (0.5, 1), (200.0, 32)])
def test_a_container_gets_the_time_of_so_many(quota: float, number: int) -> None:
    found, why = performance_cores(_state(*SERVER, cpu_quota=quota))
    assert found == number
    assert ("control group" in why) == (quota < 32)


def test_what_the_recipe_asks_for() -> None:
    state = _state(*PIXEL_6)
    assert choose_threads(0, state) == ThreadCounts((0,))
    assert choose_threads(3, state) == ThreadCounts((3,))
    assert choose_threads("auto", state).numbers == (4,)
    assert choose_threads("auto", state).reason
    assert choose_threads((1, 2, 4), state) == ThreadCounts((1, 2, 4), swept=True)


@pytest.mark.parametrize("wanted", ["auto", (1, 2)])
def test_without_a_pool_there_is_nothing_to_choose(wanted: Any) -> None:
    chosen = choose_threads(wanted, _state(*PIXEL_6), has_pool=False)
    assert (chosen.numbers, chosen.swept) == ((0,), False)
    assert "has no pool" in str(chosen.reason)


def test_executorchs_own_choice_is_compared_with_the_cores() -> None:
    state, left = _state(*PIXEL_6), ThreadCounts((0,))
    [note] = note_core_count(left, state, 8).notes
    assert not lacks(note, "8 threads", "4 cores", "'runtime.threads=[4, 8]'")
    assert note_core_count(left, state, 4) == left
    assert note_core_count(ThreadCounts((8,)), state, 8) == ThreadCounts((8,))
    assert note_core_count(left, DeviceState(), 8) == left
