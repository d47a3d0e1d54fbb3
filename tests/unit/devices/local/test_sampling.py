"""This machine's state, read while a program runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.devices import sysfs as constants
from etdeploy.devices.base import CpuCluster
from etdeploy.devices.local.device import Samples, sampled


def write(folder: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")


def test_files_are_read_again_and_the_constant_ones_once(tmp_path: Path) -> None:
    policy, zone = "devices/system/cpu/cpufreq/policy0", "class/thermal/thermal_zone0"
    write(tmp_path, {f"{policy}/related_cpus": "0 1", f"{policy}/scaling_max_freq": "3000000"})
    write(tmp_path, {f"{zone}/type": "x86_pkg_temp", f"{zone}/temp": "51000"})
    samples = Samples(tmp_path)
    samples.read()
    write(tmp_path, {f"{policy}/scaling_max_freq": "2000000", f"{zone}/temp": "91000"})
    samples.read()
    first, second = samples.states
    assert first.state.clusters == (CpuCluster(cpus=(0, 1), max_khz=3000000),)
    assert second.state.clusters == (CpuCluster(cpus=(0, 1), max_khz=2000000),)
    assert second.state.temperatures_celsius == {"x86_pkg_temp": 91.0}
    assert 0 <= first.seconds <= second.seconds


def test_of_many_only_some_are_read(tmp_path: Path) -> None:
    for n in range(128):
        write(tmp_path, {f"devices/system/cpu/cpufreq/policy{n}/related_cpus": str(n)})
        write(tmp_path, {f"devices/system/cpu/cpufreq/policy{n}/scaling_cur_freq": "1000"})
    for n in range(60):
        zone = f"class/thermal/thermal_zone{n}"
        write(tmp_path, {f"{zone}/type": f"cpu-{n}" if n > 50 else f"modem{n}"})
        write(tmp_path, {f"{zone}/temp": "40000"})
    samples = Samples(tmp_path)
    samples.read()
    [sample] = samples.states
    assert len(sample.state.clusters) == constants.MAX_SAMPLED
    assert sorted(sample.state.temperatures_celsius) == [f"cpu-{n}" for n in range(51, 60)]


def test_a_machine_that_tells_nothing_gets_no_thread(tmp_path: Path) -> None:
    with sampled(tmp_path) as samples:
        assert not samples.any
    assert samples.states == ()


def test_a_reading_is_taken_while_the_block_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "SAMPLING_PERIODS_S", {0: 0.001})
    write(tmp_path, {"class/thermal/thermal_zone0/temp": "40000"})
    with sampled(tmp_path) as samples:
        while not samples.states:
            pass
    assert samples.states[0].state.temperatures_celsius == {"thermal_zone0": 40.0}
