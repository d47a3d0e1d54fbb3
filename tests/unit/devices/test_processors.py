"""Clusters of processors, from the files of Linux."""

from __future__ import annotations

import pytest

from etdeploy.devices.base import CpuCluster
from etdeploy.devices.sysfs import (
    parse_clusters,
    parse_power_saving,
    parse_throttle_events,
    parse_usable_cpus,
)

PHONE = """cpufreq/policy0/related_cpus:0 1 2 3
cpufreq/policy0/cpuinfo_max_freq:2016000
cpufreq/policy0/scaling_max_freq:1800000
cpufreq/policy4/related_cpus:4-6
cpufreq/policy7/related_cpus:7
cpu0/cpu_capacity:325
cpu4/cpu_capacity:828
cpu7/cpu_capacity:1024
online:0-5,7
"""


def cores(*siblings: str) -> str:
    return "".join(
        f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list:{text}\n"
        for cpu, text in enumerate(siblings)
    )


def test_a_phone_has_capacities_and_leaves_out_what_is_offline() -> None:
    assert parse_clusters(PHONE) == (
        CpuCluster(
            cpus=(0, 1, 2, 3), max_khz=1800000, hardware_max_khz=2016000, capacity=325
        ),
        CpuCluster(cpus=(4, 5), capacity=828),
        CpuCluster(cpus=(7,), capacity=1024),
    )  # fmt: skip


def test_processors_without_frequencies_are_grouped_by_capacity() -> None:
    capacities = "".join(f"cpu{n}/cpu_capacity:{446 if n < 4 else 1024}\n" for n in range(6))
    alone = cores(*(str(n) for n in range(6)))
    assert parse_clusters(capacities + alone + "online:0-4\n") == (
        CpuCluster(cpus=(0, 1, 2, 3), capacity=446, cores=(0, 1, 2, 3)),
        CpuCluster(cpus=(4,), capacity=1024, cores=(4,)),
    )
    assert parse_clusters("online:0-1\n") == (CpuCluster(cpus=(0, 1)),)


@pytest.mark.parametrize("siblings", [("0,2", "1,3", "0,2", "1,3"), ("0-1", "0-1", "2-3", "2-3")])
def test_two_processors_of_a_core_count_once(siblings: tuple[str, ...]) -> None:
    [cluster] = parse_clusters(cores(*siblings))
    assert cluster.cores is not None
    assert len(cluster.cores) == 2
    policies = "".join(f"cpufreq/policy{n}/related_cpus:{n}\n" for n in range(4))
    each = parse_clusters(cores(*siblings) + policies)
    assert [cpu for one in each for cpu in one.cores or ()] == list(cluster.cores)
    assert len(each) == 4


def test_processors_that_a_process_may_use() -> None:
    assert parse_usable_cpus("Name:\tsh\nCpus_allowed_list:\t0-2,7\n") == (0, 1, 2, 7)
    assert parse_usable_cpus("") is None


@pytest.mark.parametrize(
    ("driver", "governor", "preference", "saves"),
    [
        ("cpufreq-dt", "schedutil", "", False),
        ("cpufreq-dt", "powersave", "", True),
        ("intel_pstate", "powersave", "balance_performance", False),
        ("intel_pstate", "powersave", "power", True),
        ("amd-pstate-epp", "powersave", "balance_power", False),
        ("intel_pstate", "performance", "performance", False),
    ],
)
def test_a_governor_that_saves_power(
    driver: str, governor: str, preference: str, saves: bool
) -> None:
    text = (
        f"cpufreq/policy0/scaling_governor:{governor}\ncpufreq/policy0/scaling_driver:{driver}\n"
        f"cpufreq/policy0/energy_performance_preference:{preference}\n"
    )
    assert parse_power_saving(text) is saves
    assert parse_power_saving("") is None


def test_an_intel_processor_counts_how_often_it_throttles() -> None:
    text = "".join(
        f"cpu{n}/thermal_throttle/{kind}_throttle_count:{count}\n"
        for n, kind, count in ((0, "core", 3), (0, "package", 7), (1, "core", 0), (1, "package", 7))
    )
    assert parse_throttle_events(text) == 7
    assert parse_throttle_events("online:0\n") is None
