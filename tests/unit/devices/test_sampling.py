"""What was read of a device while a program ran."""

from __future__ import annotations

from etdeploy.devices.android.facts import sampled_state as sampled_on_android
from etdeploy.devices.base import CpuCluster, DeviceState, TimedState
from etdeploy.devices.sysfs import parse_samples, sampling_period_s

_CPU = "/sys/devices/system/cpu/cpufreq/policy0"
_TEXT = f"""{_CPU}/related_cpus:0 1
@100.25
@101.26
{_CPU}/scaling_max_freq:2000000
#end
@102.30
{_CPU}/scaling_max_freq:1200000
#end
@103.31
{_CPU}/scaling_ma"""


def test_readings_have_seconds_since_the_start_and_the_last_may_be_cut() -> None:
    def state(khz: int) -> DeviceState:
        return DeviceState(clusters=(CpuCluster(cpus=(0, 1), max_khz=khz),))

    assert parse_samples(_TEXT) == (
        TimedState(1.01, state(2000000)),
        TimedState(2.05, state(1200000)),
    )


def test_a_phones_services_add_what_the_files_do_not_tell() -> None:
    text = (
        f"{_CPU}/related_cpus:0\n{_CPU}/scaling_cur_freq:600000\n"
        "#battery\n  status: 3\n  temperature: 312\n  current now: -412\n#current\n"
        "#thermal\nThermal Status: 2\n"
    )
    state = sampled_on_android(text)
    assert state.clusters == (CpuCluster(cpus=(0,), current_khz=600000),)
    assert (state.battery_celsius, state.battery_milliamps) == (31.2, 412.0)
    assert state.thermal_status == "moderate"


def test_a_day_is_read_ever_more_seldom() -> None:
    seconds, readings = 0, 0
    while seconds < 86_400:
        seconds += sampling_period_s(readings)
        readings += 1
    assert [sampling_period_s(n) for n in (0, 599, 600, 1200)] == [1, 1, 10, 60]
    assert 2000 < readings < 3000
