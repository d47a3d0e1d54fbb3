"""Outputs of Android's own tools, as devices print them."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.devices.adb.errors import AdbGoneError
from etdeploy.devices.adb.exec import parse_marked
from etdeploy.devices.adb.server import ServerDevice, parse_devices
from etdeploy.devices.android.facts import (
    android_facts,
    android_identity,
    android_state,
    parse_getprop,
    parse_temperatures,
    parse_thermal_status,
)
from etdeploy.devices.android.layout import (
    parse_df,
    parse_digests,
    parse_exit_code,
    parse_sizes,
    parse_survey,
)
from etdeploy.devices.base import Bundle, BundleFile, CpuCluster, DeviceState
from etdeploy.devices.local.facts import local_state, oom_kills
from etdeploy.devices.signals import signal_of
from etdeploy.targets.android import soc_name

DATA = Path(__file__).parents[2] / "data" / "android"


def facts_output(properties: str) -> str:
    return (
        f"{(DATA / properties).read_text()}"
        "#meminfo\nMemTotal:       11534336 kB\nMemFree:          312345 kB\n"
        "#nproc\n8\n#boot_id\n5d1c2f6e-0b4a-4f0e-9d3c-2f1a0c9b8e7d\n"
    )


def test_facts_of_a_phone() -> None:
    facts = android_facts("android:A1", "USB", facts_output("getprop.txt"))
    assert facts
    assert (facts.name, facts.kind, facts.target) == ("android:A1", "android", "android-arm64")
    assert (facts.manufacturer, facts.model, facts.soc) == ("example", "EX-S928B", "SM8650")
    assert (facts.os, facts.abi, facts.cpu_count) == ("Android 14 (API 34)", "arm64-v8a", 8)
    assert facts.memory_bytes == 11534336 * 1024
    assert str(facts.fingerprint).startswith("example/e3q")


def test_facts_of_a_device_that_tells_little() -> None:
    facts = android_facts("android:A1", "TCP", "[ro.product.cpu.abi]: [x86_64]\n")
    assert facts
    assert facts.target == "android-x86_64"
    assert (facts.model, facts.os, facts.soc, facts.cpu_count) == (None, None, None, None)


def test_an_abi_without_a_target_gives_no_facts() -> None:
    assert android_facts("android:A1", "TCP", "[ro.product.cpu.abi]: [armeabi-v7a]\n") is None


def test_properties_may_be_empty_or_go_over_lines() -> None:
    properties = parse_getprop((DATA / "getprop.txt").read_text())
    assert properties["sys.multi.line"] == "first\nsecond"
    assert properties["vendor.empty"] == ""


def test_a_phone_is_known_by_its_own_serial_number() -> None:
    assert android_identity("10.0.0.7:5555", facts_output("getprop.txt")) == "android-R5CX1234ABC"


def test_emulators_share_a_serial_number_and_are_told_apart_by_their_boot() -> None:
    identity = android_identity("emulator-5554", facts_output("getprop-emulator.txt"))
    assert identity == "android-5d1c2f6e-0b4a-4f0e-9d3c-2f1a0c9b8e7d"


def test_a_device_that_tells_nothing_is_known_by_its_connection() -> None:
    assert android_identity("10.0.0.7:5555", "") == "android-10.0.0.7:5555"


def test_state_of_a_phone() -> None:
    battery = (DATA / "dumpsys-battery.txt").read_text()
    thermal = (DATA / "dumpsys-thermalservice.txt").read_text()
    state = android_state(
        f"#battery\n{battery}#thermal\n{thermal}#loadavg\n3.14 2.71 1.41 2/99 7\n"
    )
    assert (state.battery_percent, state.battery_celsius, state.charging) == (87, 28.7, True)
    assert (state.thermal_status, state.load_average) == ("light", 3.14)
    # The sensors of now, not the cached ones; without those that are not there.
    assert state.temperatures_celsius == {
        "CPU0": 41.2,
        "CPU1": 40.1,
        "GPU0": 38.6,
        "battery": 28.7,
        "skin": 36.4,
    }


@pytest.mark.parametrize(
    "output",
    ["", "#battery\nCan't find service: battery\n#thermal\nCan't find service: thermalservice\n"],
)
def test_state_of_a_device_that_tells_nothing(output: str) -> None:
    state = android_state(output)
    assert state == DeviceState()


def test_cached_temperatures_serve_where_there_are_no_others() -> None:
    text = (DATA / "dumpsys-thermalservice-cached.txt").read_text()
    assert parse_temperatures(text) == {"battery": 24.0}
    assert parse_thermal_status(text) == "none"
    assert parse_thermal_status("Thermal Status: 9\n") is None


@pytest.mark.parametrize(
    ("model", "platform", "expected"),
    [
        ("SM8650", None, "SM8650"),
        ("SM8750P", None, "SM8750"),
        ("sm8550-AC", "kalama", "SM8550"),
        ("SXR2230P", None, "SXR2230P"),
        ("Tensor G4", "zumapro", "Tensor G4"),
        ("unknown", "pineapple", "SM8650"),
        (None, "lahaina", "SM8350"),
        ("", "mt6983", "mt6983"),
        ("unknown", "", None),
    ],
)
def test_names_of_chips(model: str | None, platform: str | None, expected: str | None) -> None:
    assert soc_name(model, platform) == expected


def test_devices_of_an_adb_server() -> None:
    text = (
        "R5CX1234ABC            device usb:1-4 product:e3q model:EX_S928B device:e3q "
        "transport_id:3\n"
        "emulator-5554          offline transport_id:1\n"
        "10.0.0.7:5555          unauthorized transport_id:2\n"
        "0123456789             no permissions (missing udev rules? user is in the plugdev "
        "group); see [http://developer.android.com/tools/device.html] usb:1-3 transport_id:9\n"
        "\n"
    )
    assert parse_devices(text) == [
        ServerDevice("R5CX1234ABC", "device", "EX_S928B"),
        ServerDevice("emulator-5554", "offline"),
        ServerDevice("10.0.0.7:5555", "unauthorized"),
        ServerDevice("0123456789", "no permissions"),
    ]


def test_the_marker_gives_the_exit_code() -> None:
    result = parse_marked(b"text without newlinem-1:139\n", "m-1")
    assert (result.exit_code, result.output) == (139, "text without newline")


def test_lines_of_an_old_shells_terminal_are_put_right() -> None:
    assert parse_marked(b"a\r\nb\r\nm-1:0\r\n", "m-1").output == "a\nb\n"


@pytest.mark.parametrize("output", [b"", b"half of the out", b"m-1:", b"m-1:x\n"])
def test_without_the_marker_the_shell_did_not_end(output: bytes) -> None:
    with pytest.raises(AdbGoneError, match="ended in the middle"):
        parse_marked(output, "m-1")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "Filesystem     1K-blocks    Used Available Use% Mounted on\n"
            "/dev/block/dm-44 233871340 9271340 224600000   4% /data\n",
            224600000 * 1024,
        ),
        (
            "Filesystem           1K-blocks      Used Available Use% Mounted on\n"
            "/dev/block/bootdevice/by-name/userdata\n"
            "                      52429152  50000000   2429152  96% /data\n",
            2429152 * 1024,
        ),
        ("df: /data/local/tmp: Permission denied\n", None),
        ("", None),
    ],
)
def test_free_room(text: str, expected: int | None) -> None:
    assert parse_df(text) == expected


def sha(letter: str) -> str:
    return letter * 64


def file(letter: str, path: str, executable: bool = False) -> BundleFile:
    return BundleFile(
        source="x", path=path, sha256=sha(letter), size_bytes=1, executable=executable
    )


SURVEY = f"""#df
Filesystem 1K-blocks Used Available Use% Mounted on
tmpfs 100 50 50 50% /data
#store
{sha("a")} 10 101 755 2026-01-01 10:00:00.5 2026-01-01 10:00:01.5
{sha("b")} 20 102 644 2026-01-01 10:00:00.5 2026-01-01 10:00:09.5
stat: '*': No such file or directory
#stamps
{sha("a")} 10 101 755 2026-01-01 10:00:00.5 2026-01-01 10:00:01.5
{sha("b")} 20 102 644 2026-01-01 10:00:00.5 2026-01-01 10:00:01.5
#links
101 bin/a runner
102 b
"""


def test_a_survey_tells_what_is_untouched() -> None:
    survey = parse_survey(SURVEY)
    assert survey.free_bytes == 50 * 1024
    assert survey.is_sound(sha("a"), executable=True)
    # Its change time differs, so somebody wrote to it.
    assert not survey.is_sound(sha("b"), executable=False)
    assert not survey.is_sound(sha("c"), executable=False)


def test_a_content_that_cannot_be_executed_is_not_sound_for_a_program() -> None:
    stamp = f"{sha('a')} 10 101 644 x y"
    survey = parse_survey(f"#store\n{stamp}\n#stamps\n{stamp}\n")
    assert survey.is_sound(sha("a"), executable=False)
    assert not survey.is_sound(sha("a"), executable=True)


def test_a_survey_tells_whether_the_bundles_paths_lead_to_its_contents() -> None:
    survey = parse_survey(SURVEY)
    good = Bundle(files=(file("a", "bin/a runner"), file("b", "b")), command=("b",))
    swapped = Bundle(files=(file("b", "bin/a runner"), file("a", "b")), command=("b",))
    more = Bundle(files=(*good.files, file("a", "another")), command=("b",))
    assert survey.is_laid_out(good)
    assert not survey.is_laid_out(swapped)
    assert not survey.is_laid_out(more)


def test_digests_count_only_where_they_are_the_names() -> None:
    output = f"{sha('a')}  {sha('a')}\n{sha('c')}  {sha('b')}\nsha256sum: x: No such file\n"
    assert parse_digests(output) == {sha("a")}


def test_sizes_and_exit_codes() -> None:
    assert parse_sizes("200\tstore\n4\truns\n") == {"store": 204800, "runs": 4096}
    assert parse_exit_code("Segmentation fault \nexit code 139\n") == 139
    assert parse_exit_code("cd: no such folder\n") is None


@pytest.mark.parametrize(
    ("code", "name"), [(139, "SIGSEGV"), (134, "SIGABRT"), (135, "SIGBUS"), (1, None), (255, None)]
)
def test_signals_have_the_numbers_of_linux(code: int, name: str | None) -> None:
    assert signal_of(code) == name


CPUFREQ = """cpufreq/policy0/related_cpus:0 1 2 3
cpufreq/policy4/related_cpus:4-6
cpufreq/policy7/related_cpus:7
cpufreq/policy0/scaling_governor:schedutil
cpufreq/policy4/scaling_governor:performance
cpufreq/policy0/scaling_cur_freq:1132800
cpufreq/policy4/scaling_cur_freq:<unknown>
cpufreq/policy0/scaling_min_freq:364800
cpufreq/policy0/scaling_max_freq:2265600
cpu0/cpufreq/related_cpus:0 1 2 3
cpu0/cpufreq/scaling_governor:schedutil
cpu0/cpufreq/scaling_cur_freq:1132800
cpu0/cpufreq/scaling_min_freq:364800
cpu0/cpufreq/scaling_max_freq:2265600
"""


def test_clusters_of_cores_with_governor_and_frequencies() -> None:
    assert android_state(f"#cpufreq\n{CPUFREQ}").clusters == (
        CpuCluster(
            cpus=(0, 1, 2, 3),
            governor="schedutil",
            current_khz=1132800,
            min_khz=364800,
            max_khz=2265600,
        ),
        CpuCluster(cpus=(4, 5, 6), governor="performance"),
        CpuCluster(cpus=(7,)),
    )


@pytest.mark.parametrize("text", ["", "sh: cd: /sys/devices/system/cpu: Permission denied\n"])
def test_a_device_without_cpufreq_has_no_clusters(text: str) -> None:
    assert android_state(f"#cpufreq\n{text}").clusters == ()


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


def test_state_of_this_machine(tmp_path: Path) -> None:
    zones = tmp_path / "class/thermal"
    battery = tmp_path / "class/power_supply/BAT0"
    for number, (kind, milli) in enumerate([("x86_pkg_temp", "51000"), ("acpitz", "")]):
        zone = zones / f"thermal_zone{number}"
        zone.mkdir(parents=True)
        (zone / "type").write_text(f"{kind}\n")
        (zone / "temp").write_text(milli)
    battery.mkdir(parents=True)
    (battery / "capacity").write_text("64\n")
    (battery / "status").write_text("Discharging\n")
    state = local_state(tmp_path)
    assert state.temperatures_celsius == {"x86_pkg_temp": 51.0}
    assert (state.battery_percent, state.charging, state.battery_celsius) == (64, False, None)
