"""What this machine says of itself."""

from __future__ import annotations

from pathlib import Path

from etdeploy.devices.base import CpuCluster
from etdeploy.devices.local.device import local_state, oom_kills


def test_clusters_of_this_machine(tmp_path: Path) -> None:
    for folder in ("cpufreq/policy0", "cpu1/cpufreq"):
        policy = tmp_path / "devices/system/cpu" / folder
        policy.mkdir(parents=True)
        (policy / "related_cpus").write_text("0 1\n")
        (policy / "scaling_governor").write_text("powersave\n")
        (policy / "scaling_max_freq").write_text("3000000\n")
    assert local_state(tmp_path).clusters == (
        CpuCluster(cpus=(0, 1), governor="powersave", max_khz=3000000),
    )


def test_kills_for_want_of_memory_are_counted(tmp_path: Path) -> None:
    vmstat = tmp_path / "vmstat"
    vmstat.write_text("nr_free_pages 99\noom_kill 3\noom_kill_x 4\n")
    assert oom_kills(vmstat) == 3
    assert oom_kills(tmp_path / "nothing") is None
