"""An Android device over both transports, against a real adbd."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from adb_shell.exceptions import UsbReadFailedError, UsbWriteFailedError

from etdeploy.core import cancel
from etdeploy.core.errors import DeviceError, Interrupted
from etdeploy.devices.adb.server import ServerTransport
from etdeploy.devices.adb.stream import Timeouts
from etdeploy.devices.adb.wire import tcp_transport, usb_transport
from etdeploy.devices.android.device import AndroidDevice
from etdeploy.devices.android.link import AndroidLink
from etdeploy.devices.base import Bundle, CpuCluster, Device, ProcessLaunch
from etdeploy.devices.bundles import bundle_digest
from etdeploy.devices.registry import list_devices, open_device
from etdeploy.devices.remote.shell import check_output
from tests.support.adbd import (
    AdbServer,
    AndroidRoot,
    MakeAndroid,
    adb_server,
    android_arm64,
    android_x86_64,
    make_android,
    no_adb_server,
)
from tests.support.adbd_root import ARM64, X86_64, Flavour
from tests.support.bundles import compile_program, make_bundle, of_size
from tests.support.processes import eventually
from tests.support.reached import Reached, no_request_left, reached, wait_until_empty
from tests.support.streams import awaited, is_whole, talked, was_talk

pytestmark = pytest.mark.integration

__all__ = [
    "adb_server",
    "android_arm64",
    "android_x86_64",
    "make_android",
    "no_adb_server",
    "no_request_left",
    "reached",
]

STORE = "data/local/tmp/etdeploy/store"


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_program(tmp_path_factory.mktemp("program"), "gcc", "-static")


@pytest.fixture
def bundle(program: Path, tmp_path: Path) -> Bundle:
    data = tmp_path / "data.bin"
    data.write_bytes(os.urandom(300_000))
    empty = tmp_path / "empty.bin"
    empty.write_bytes(b"")
    files = {"fate": program, "inputs/it's 0.bin": data, "inputs/copy.bin": data, "empty": empty}
    return make_bundle(files, environment={"GREETING": "from {bundle} it's"})


def test_facts_and_state_are_the_devices_own(reached: Reached) -> None:
    facts = reached.device.facts()
    assert facts.name == reached.root.spec
    assert (facts.target, facts.abi) == ("android-x86_64", "x86_64")
    assert (facts.model, facts.soc, facts.os) == ("EX-S928B", "SM8650", "Android 14 (API 34)")
    assert facts.cpu_count == os.cpu_count()
    assert facts.connection in ("adb server", "TCP")
    state = reached.device.state()
    assert (state.battery_percent, state.battery_celsius, state.charging) == (87, 28.7, True)
    assert (state.thermal_status, state.temperatures_celsius["skin"]) == ("light", 36.4)


def test_the_state_has_governor_and_frequencies_of_each_cluster(reached: Reached) -> None:
    reached.root.give_sys(
        {
            "devices/system/cpu/cpufreq/policy0/related_cpus": "0 1",
            "devices/system/cpu/cpufreq/policy0/scaling_governor": "walt",
            "devices/system/cpu/cpufreq/policy0/scaling_cur_freq": "600000",
            "devices/system/cpu/cpufreq/policy2/related_cpus": "2",
            "devices/system/cpu/cpufreq/policy2/scaling_max_freq": "2800000",
        }
    )
    assert reached.device.state().clusters == (
        CpuCluster(cpus=(0, 1), governor="walt", current_khz=600000),
        CpuCluster(cpus=(2,), max_khz=2800000),
    )


_SYS = {
    "devices/system/cpu/cpufreq/policy0/related_cpus": "0 1",
    "devices/system/cpu/cpufreq/policy0/cpuinfo_max_freq": "2000000",
    "devices/system/cpu/cpufreq/policy0/scaling_cur_freq": "600000",
    "devices/system/cpu/cpufreq/policy0/scaling_max_freq": "2000000",
    "devices/system/cpu/cpufreq/policy4/related_cpus": "4",
    "devices/system/cpu/cpufreq/policy4/scaling_cur_freq": "2800000",
    "class/thermal/thermal_zone0/type": "cpu-0-0",
    "class/thermal/thermal_zone0/temp": "41000",
    "class/power_supply/battery/type": "Battery",
    "class/power_supply/battery/status": "Discharging",
    "class/power_supply/battery/current_now": "-612000",
    "class/power_supply/battery/voltage_now": "4100000",
    "class/power_supply/usb/type": "USB",
    "class/power_supply/usb/current_now": "500000",
}


def test_the_state_is_read_while_a_program_runs(reached: Reached, bundle: Bundle) -> None:
    reached.root.give_sys(_SYS)
    lowered = {
        "devices/system/cpu/cpufreq/policy0/scaling_max_freq": "1200000",
        "class/thermal/thermal_zone0/temp": "71000",
    }
    reached.device.push(bundle)
    with reached.device.open_run(bundle, "r1") as run:
        timer = threading.Timer(1.7, reached.root.write_sys, [lowered])
        timer.start()
        outcome = run.run(["sleep", "4600"], 20)
        timer.join()
        assert outcome.exit_code == 0
        first, *_, last = outcome.states
        assert 0.9 < first.seconds < 1.7
        assert 2.9 < last.seconds < outcome.seconds
        assert first.state.temperatures_celsius == {"cpu-0-0": 41.0}
        assert last.state.temperatures_celsius == {"cpu-0-0": 71.0}
        assert (last.state.battery_milliamps, last.state.battery_volts) == (612.0, 4.1)
        assert [cluster.cpus for cluster in first.state.clusters] == [(0, 1), (4,)]
        limits = [each.state.clusters[0].max_khz for each in (first, last)]
        assert limits == [2000000, 1200000]
        assert reached.root.wait_for_processes(0, "toybox 1")
        # What was read does not pass for that of the next program.
        assert run.run(["exit", "0"], 20).states == ()


def test_nothing_to_read_disturbs_no_program(reached: Reached, bundle: Bundle) -> None:
    reached.root.give_sys({"class/thermal/thermal_zone0/type": "cpu-0-0"})
    reached.device.push(bundle)
    with reached.device.open_run(bundle, "r1") as run:
        outcome = run.run(["sleep", "2500"], 20)
        assert (outcome.exit_code, outcome.stdout) == (0, "out sleep\n")


def test_the_state_has_power_and_memory(reached: Reached) -> None:
    battery = {"type": "Battery", "status": "Charging", "current_now": "458000"}
    reached.root.give_sys({f"class/power_supply/battery/{k}": v for k, v in battery.items()})
    state = reached.device.state()
    assert (state.battery_milliamps, state.battery_volts) == (-458.0, 4.231)
    assert (state.screen_on, state.power_saving) == (True, False)
    assert state.available_memory_bytes
    assert state.usable_cpus


def test_the_identity_is_the_same_on_every_way(
    android_x86_64: AndroidRoot, adb_server: AdbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    adb_server.connect(android_x86_64)
    through_server = open_device(android_x86_64.spec)
    monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", "1")
    directly = open_device(android_x86_64.spec)
    assert through_server.facts().connection != directly.facts().connection
    assert through_server.identity == directly.identity
    directly.close()


def test_a_push_is_verified_has_modes_and_is_not_repeated(reached: Reached, bundle: Bundle) -> None:
    texts: list[str] = []
    report = reached.device.push(bundle, lambda text, _=None: texts.append(text))
    contents = {f.sha256: f for f in bundle.files}
    assert (report.pushed_files, report.kept_files) == (3, 0)
    assert report.pushed_bytes == sum(f.size_bytes for f in contents.values())
    assert "pushing fate" in texts
    for file in contents.values():
        there = reached.root.path(f"{STORE}/{file.sha256}")
        assert there.read_bytes() == Path(file.source).read_bytes()
        assert there.stat().st_mode & 0o777 == (0o755 if file.executable else 0o644)
    again = reached.device.push(bundle)
    assert (again.pushed_files, again.pushed_bytes, again.kept_files) == (0, 0, 3)
    assert wait_until_empty(reached.root.path(INCOMING))


@pytest.mark.parametrize("damage", ["content", "truncated", "gone"])
def test_what_was_tampered_with_is_pushed_again(
    reached: Reached, bundle: Bundle, damage: str
) -> None:
    reached.device.push(bundle)
    victim = reached.root.path(f"{STORE}/{bundle.files[1].sha256}")
    before = victim.stat()
    if damage == "content":
        with victim.open("r+b") as file:
            file.write(b"\0\0\0\0")
        # Even with the date set back.
        os.utime(victim, ns=(before.st_atime_ns, before.st_mtime_ns))
    elif damage == "truncated":
        os.truncate(victim, 1000)
    else:
        victim.unlink()
    report = reached.device.push(bundle)
    assert (report.pushed_files, report.kept_files) == (1, 2)
    assert victim.read_bytes() == Path(bundle.files[1].source).read_bytes()


def test_a_lost_mode_is_restored_without_a_transfer(reached: Reached, bundle: Bundle) -> None:
    reached.device.push(bundle)
    program = reached.root.path(f"{STORE}/{bundle.files[0].sha256}")
    program.chmod(0o644)
    assert reached.device.push(bundle).pushed_files == 0
    assert program.stat().st_mode & 0o777 == 0o755


def test_a_bundle_folder_that_leads_elsewhere_is_made_again(
    reached: Reached, bundle: Bundle
) -> None:
    reached.device.push(bundle)
    (folder,) = reached.root.path("data/local/tmp/etdeploy/bundles").iterdir()
    (folder / "fate").unlink()
    (folder / "fate").symlink_to("/system/bin/sh")
    reached.device.push(bundle)
    with reached.device.open_run(bundle, "r") as run:
        assert run.run(["exit", "5"], 20).exit_code == 5


def test_a_device_without_sha256sum_is_read_back(reached: Reached, bundle: Bundle) -> None:
    reached.root.hide_tool("sha256sum")
    assert reached.device.push(bundle).pushed_files == 3
    assert reached.device.push(bundle).pushed_files == 0


def test_no_room_is_told_before_anything_goes(reached: Reached, tmp_path: Path) -> None:
    bundle = make_bundle({"big": of_size(tmp_path, 80 << 20)}, ("big",))
    with pytest.raises(DeviceError) as caught:
        reached.device.push(bundle)
    assert "83886080 bytes" in caught.value.message
    assert "/data/local/tmp" in caught.value.message
    assert f"clean --device {reached.root.spec}" in str(caught.value.remedy)
    assert not list(reached.root.path(STORE).iterdir())


def test_a_disk_that_fills_in_mid_push_leaves_nothing_half(
    reached: Reached, tmp_path: Path
) -> None:
    bundle = make_bundle({"big": of_size(tmp_path, 40 << 20)}, ("big",))
    filler = reached.root.path("data/local/tmp/filler")

    def fill(text: str, fraction: float | None = None) -> None:
        if not filler.exists() and fraction and fraction > 0.2:
            with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
                while file.write(bytes(1 << 20)):
                    pass

    with pytest.raises(DeviceError, match=r"big needs 41\.9 MB"):
        reached.device.push(bundle, fill)
    filler.unlink()
    assert wait_until_empty(reached.root.path(INCOMING))
    assert reached.device.push(bundle).pushed_files == 1


def test_a_device_that_goes_in_mid_push_is_named_and_the_rest_is_kept(
    reached: Reached, tmp_path: Path
) -> None:
    first, second = of_size(tmp_path, 1 << 20, "first"), of_size(tmp_path, 40 << 20, "second")
    bundle = make_bundle({"first": first, "second": second}, ("first",))

    def kill(text: str, fraction: float | None = None) -> None:
        if "second" in text and fraction and fraction > 0.3 and reached.root.is_up:
            reached.root.kill_adbd()

    with pytest.raises(DeviceError) as caught:
        reached.device.push(bundle, kill)
    assert "pushing second" in caught.value.message
    assert caught.value.place == reached.root.spec
    reached.come_back()
    assert wait_until_empty(reached.root.path(INCOMING))
    report = reached.device.push(bundle)
    assert (report.pushed_files, report.kept_files) == (1, 1)


INCOMING = "data/local/tmp/etdeploy/incoming"


def pushed_by_another_process(spec: str, bundle: Bundle, folder: Path) -> subprocess.Popen[bytes]:
    """A push that tells here when it is in the middle of a file, and stops there for a line."""
    bundle.save(folder / "bundle.json")
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from etdeploy.devices.base import Bundle\n"
        "from etdeploy.devices.registry import open_device\n"
        "def told(text, fraction=None):\n"
        "    if fraction and 0.3 < fraction < 1:\n"
        "        print(text, flush=True), sys.stdin.readline()\n"
        "open_device(sys.argv[1]).push(Bundle.load(Path(sys.argv[2])), told)\n"
    )
    argv = [sys.executable, "-c", code, spec, str(folder / "bundle.json")]
    pushing = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert pushing.stdout
    assert pushing.stdout.readline().startswith(b"pushing big")
    return pushing


def sent_to(reached: Reached) -> list[str]:
    """What lies there of files that are being sent."""
    found = reached.root.path(INCOMING).glob("*/*")
    return [path.name for path in found if path.name != "uses"]


def test_a_push_whose_process_was_killed_leaves_nothing(reached: Reached, tmp_path: Path) -> None:
    bundle = make_bundle({"big": of_size(tmp_path, 40 << 20)}, ("big",))
    pushing = pushed_by_another_process(reached.root.spec, bundle, tmp_path)
    assert sent_to(reached) == [bundle.files[0].sha256]
    pushing.kill()
    pushing.communicate()
    assert wait_until_empty(reached.root.path(INCOMING))
    # There is no room for it twice.
    assert reached.device.push(bundle).pushed_files == 1


def test_a_push_leaves_alone_what_another_is_sending(
    reached: Reached, bundle: Bundle, tmp_path: Path
) -> None:
    big = make_bundle({"big": of_size(tmp_path, 40 << 20)}, ("big",))
    pushing = pushed_by_another_process(reached.root.spec, big, tmp_path)
    # A clock that jumped, and a day without a byte, say nothing.
    for path in reached.root.path(INCOMING).rglob("*"):
        os.utime(path, (0, 0))
    reached.device.push(bundle)
    assert sent_to(reached) == [big.files[0].sha256]
    pushing.communicate(b"\n" * 1000)
    assert pushing.returncode == 0
    assert reached.device.push(big).pushed_files == 0
    assert wait_until_empty(reached.root.path(INCOMING))


@pytest.mark.parametrize("name", ["0123456789abcdef.1", "x"])
def test_what_restarted_devices_left_goes_with_the_next_push(
    reached: Reached, bundle: Bundle, name: str
) -> None:
    reached.device.push(bundle)
    left = reached.root.path(INCOMING) / name
    left.mkdir()
    (left / "part").write_bytes(bytes(50 << 20))
    reached.device.push(bundle)
    assert wait_until_empty(reached.root.path(INCOMING))


def named(folder: Path, name: str, mib: int) -> Bundle:
    return make_bundle({name: of_size(folder, mib << 20, name)}, (name,))


def test_a_full_device_makes_room_of_what_was_used_long_ago(
    reached: Reached, tmp_path: Path
) -> None:
    old, new = named(tmp_path, "old", 40), named(tmp_path, "new", 50)
    reached.device.push(old)
    with pytest.raises(DeviceError, match="no room on the device"):
        reached.device.push(new)
    (used,) = reached.root.path("data/local/tmp/etdeploy/uses").iterdir()
    os.utime(used, (0, 0))
    run = reached.device.open_run(old, "r1")
    with run, pytest.raises(DeviceError, match="no room on the device"):
        reached.device.push(new)
    assert reached.device.push(new).removed_bytes == 40 << 20


def test_two_pushes_at_once_do_not_disturb_each_other(reached: Reached, bundle: Bundle) -> None:
    other = open_device(reached.root.spec)
    problems: list[BaseException] = []

    def push(device: Device) -> None:
        try:
            device.push(bundle)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=push, args=(d,)) for d in (reached.device, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    other.close()
    assert problems == []
    assert reached.device.push(bundle).pushed_files == 0
    with reached.device.open_run(bundle, "r") as run:
        assert run.run([], 20).exit_code == 0


def test_a_stopped_push_leaves_nothing_half(reached: Reached, tmp_path: Path) -> None:
    bundle = make_bundle({"big": of_size(tmp_path, 40 << 20)}, ("big",))

    def stop(text: str, fraction: float | None = None) -> None:
        if fraction and fraction > 0.3:
            cancel.request()

    with pytest.raises(Interrupted):
        reached.device.push(bundle, stop)
    assert wait_until_empty(reached.root.path(INCOMING))


@pytest.mark.parametrize("code", [0, 3, 127])
def test_a_run_gives_exit_code_and_both_outputs(
    reached: Reached, bundle: Bundle, code: int
) -> None:
    reached.device.push(bundle)
    with reached.device.open_run(bundle, "r1") as run:
        outcome = run.run(["exit", str(code)], 20)
    assert (outcome.exit_code, outcome.signal_name, outcome.timed_out) == (code, None, False)
    assert outcome.stdout == "out exit\n"
    assert outcome.stderr.startswith("err from /data/local/tmp/etdeploy/bundles/")
    assert outcome.stderr.endswith(" it's\n")
    assert 0 < outcome.seconds < 20


def test_a_command_ends_with_its_exit_code_whatever_it_leaves_running(reached: Reached) -> None:
    link = link_of(reached)
    try:
        result = link.shell("( trap '' HUP; sleep 300 ) & echo on its way; exit 5", "testing", 20)
    finally:
        link.close()
    assert (result.exit_code, result.output) == (5, "on its way\n")


def test_many_short_runs_all_end(reached: Reached, bundle: Bundle) -> None:
    reached.device.push(bundle)
    with reached.device.open_run(bundle, "r1") as run:
        codes = {run.run(["exit", "3"], 20).exit_code for _ in range(60)}
    assert codes == {3}
    assert reached.root.wait_for_processes(0, "sleep 80")


def test_arguments_reach_the_program_as_they_are(reached: Reached, bundle: Bundle) -> None:
    reached.device.push(bundle)
    nasty = "a b'c\"d $(reboot) `x` \\ ; & | * ? ~ \n é"
    with reached.device.open_run(bundle, "r1") as run:
        assert run.run([nasty], 20).stdout == f"out {nasty}\n"


def test_a_crash_names_its_signal(reached: Reached, bundle: Bundle) -> None:
    reached.device.push(bundle)
    with reached.device.open_run(bundle, "r1") as run:
        outcome = run.run(["crash"], 20)
    assert (outcome.exit_code, outcome.signal_name) == (139, "SIGSEGV")
    assert outcome.stdout == "out crash\n"


def test_a_hang_is_ended_with_all_its_children(reached: Reached, bundle: Bundle) -> None:
    reached.device.push(bundle)
    with reached.device.open_run(bundle, "r1") as run:
        outcome = run.run(["hang"], 1.0)
        assert (outcome.exit_code, outcome.timed_out) == (None, True)
        assert outcome.stdout == "out hang\n"
        assert reached.root.wait_for_processes(0, "/fate hang")
        assert run.run(["exit", "4"], 20).exit_code == 4


def test_output_is_heard_while_the_program_runs(
    reached: Reached, bundle: Bundle, tmp_path: Path
) -> None:
    heard = awaited(reached.device, bundle, tmp_path)
    assert is_whole(*heard), heard


def test_a_program_is_talked_with(reached: Reached, bundle: Bundle) -> None:
    found = talked(reached.device, bundle)
    assert was_talk(*found), found
    assert reached.root.wait_for_processes(0, "/fate talk")
    assert reached.root.wait_for_processes(0, "cat")


def test_results_come_back_as_file_and_folder(
    reached: Reached, bundle: Bundle, tmp_path: Path
) -> None:
    reached.device.push(bundle)
    with reached.device.open_run(bundle, "r1") as run:
        assert run.run(["write", "{run}/results.json", "[1]"], 20).exit_code == 0
        run.pull("results.json", tmp_path / "here.json")
        folder = reached.root.path("data/local/tmp/etdeploy/runs/r1/out/deep")
        folder.mkdir(parents=True)
        (folder / "it's.bin").write_bytes(b"\r\n\0\xff" * 100_000)
        run.pull("out", tmp_path / "out")
        with pytest.raises(DeviceError, match=r"missing\.json"):
            run.pull("missing.json", tmp_path / "missing.json")
        with pytest.raises(ValueError, match="path inside"):
            run.pull("../../store", tmp_path / "store")
    assert (tmp_path / "here.json").read_text() == "[1]"
    assert (tmp_path / "out/deep/it's.bin").read_bytes() == b"\r\n\0\xff" * 100_000
    assert not (tmp_path / "missing.json").exists()


def test_what_killed_runs_left_goes_with_the_next_push(reached: Reached, bundle: Bundle) -> None:
    reached.device.push(bundle)
    runs = reached.root.path("data/local/tmp/etdeploy/runs")
    for name, age_h in (("old", 49), ("young", 1)):
        (runs / name).mkdir()
        then = time.time() - age_h * 3600
        os.utime(runs / name, (then, then))
    reached.device.push(bundle)
    assert [p.name for p in runs.iterdir()] == ["young"]


def test_a_device_that_goes_in_mid_run_is_an_error(reached: Reached, bundle: Bundle) -> None:
    reached.device.push(bundle)
    timer = threading.Timer(0.5, reached.root.kill_adbd)
    timer.start()
    with (
        pytest.raises(DeviceError) as caught,
        reached.device.open_run(bundle, "r1") as run,
    ):
        run.run(["hang"], 60)
    timer.join()
    assert "went away" in caught.value.message
    assert caught.value.place == reached.root.spec
    assert reached.root.wait_for_processes(0, "/fate hang")


def test_a_device_that_comes_back_is_cleaned_up(
    make_android: MakeAndroid, bundle: Bundle, no_adb_server: None
) -> None:
    root = make_android()
    device = open_device(root.spec)
    device.push(bundle)

    def restart() -> None:
        root.kill_adbd()
        root.start_adbd()

    timer = threading.Timer(0.5, restart)
    timer.start()
    with pytest.raises(DeviceError), device.open_run(bundle, "r1") as run:
        run.run(["hang"], 60)
    timer.join()
    device.close()
    # Whether adbd was back in time for the tidying decides which of the two ended it.
    again = open_device(root.spec)
    again.clean()
    again.close()
    assert not root.path("data/local/tmp/etdeploy").exists()


def test_a_stop_request_ends_the_program_on_the_device(reached: Reached, bundle: Bundle) -> None:
    reached.device.push(bundle)

    def stop() -> None:
        assert reached.root.wait_for_processes(2, "/fate hang")
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=stop)
    with cancel.trapped_signals(), reached.device.open_run(bundle, "r1") as run:
        thread.start()
        with pytest.raises(Interrupted):
            run.run(["hang"], 60)
        thread.join()
    assert reached.root.wait_for_processes(0, "/fate hang")
    assert not list(reached.root.path("data/local/tmp/etdeploy/runs").iterdir())


def link_of(reached: Reached) -> AndroidLink:
    """Another connection to the same device."""
    if reached.server:
        return AndroidLink(reached.root.spec, ServerTransport(reached.root.serial), Timeouts())
    return AndroidLink(reached.root.spec, tcp_transport(reached.root.host, 5555), Timeouts())


def test_a_runner_that_nobody_watches_is_ended_and_named(reached: Reached, bundle: Bundle) -> None:
    reached.device.push(bundle)
    there = "/data/local/tmp/etdeploy"
    fate = f"{there}/bundles/{bundle_digest(bundle)}/fate"
    link = link_of(reached)
    runs = f"{there}/runs/20260101-mlp"
    # In sessions of their own, which adbd does not end with its shell.
    started = [
        f"cd {folder} && setsid {fate} hang </dev/null >/dev/null 2>&1 3>&- & "
        for folder in (runs, "/")
    ]
    starting = f"mkdir -p {runs}; ( {' '.join(started)} ) >/dev/null 2>&1; sleep 1"
    check_output(link, starting, "leaving runners")
    link.close()
    # Each with its child; those in / were started by hand.
    assert reached.root.wait_for_processes(4, "/fate hang"), reached.root.processes()
    ended = reached.device.end_leftovers()
    assert {found.run_id for found in ended} == {"20260101-mlp"}
    assert all(found.seconds < 60 for found in ended)
    assert reached.root.wait_for_processes(2, "/fate hang")
    assert reached.device.end_leftovers() == ()


def test_a_run_of_another_computer_is_not_ended(reached: Reached, bundle: Bundle) -> None:
    reached.device.push(bundle)
    other = open_device(reached.root.spec)

    def look() -> None:
        assert reached.root.wait_for_processes(2, "/fate hang")
        with pytest.raises(DeviceError, match="r1, process "):
            other.end_leftovers()
        assert reached.root.wait_for_processes(2, "/fate hang")

    with reached.device.open_run(bundle, "r1") as run, ThreadPoolExecutor(1) as pool:
        looked = pool.submit(look)
        assert run.run(["hang"], 5).timed_out
        looked.result()
    other.close()


def test_the_program_of_a_run_ends_with_the_process_that_waits_for_it(
    reached: Reached, bundle: Bundle, tmp_path: Path
) -> None:
    reached.device.push(bundle)
    bundle.save(tmp_path / "bundle.json")
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from etdeploy.devices.base import Bundle\n"
        "from etdeploy.devices.registry import open_device\n"
        "bundle = Bundle.load(Path(sys.argv[2]))\n"
        "with open_device(sys.argv[1]).open_run(bundle, 'r1') as run:\n"
        "    run.run(['hang'], 60)\n"
    )
    argv = [sys.executable, "-c", code, reached.root.spec, str(tmp_path / "bundle.json")]
    running = subprocess.Popen(argv)
    assert reached.root.wait_for_processes(2, "/fate hang")
    running.kill()
    running.wait()
    assert reached.root.wait_for_processes(0, "/fate hang")
    assert reached.device.end_leftovers() == ()


def test_clean_leaves_nothing(reached: Reached, bundle: Bundle) -> None:
    reached.device.push(bundle)
    sizes = reached.device.clean()
    assert sizes["store"] >= 300_000
    assert not reached.root.path("data/local/tmp/etdeploy").exists()
    assert reached.device.clean() == {}
    assert reached.device.push(bundle).pushed_files == 3


def test_an_arm64_device_runs_what_is_built_for_it(
    make_android: MakeAndroid, no_adb_server: None, tmp_path: Path
) -> None:
    root = make_android(ARM64)
    device = open_device(root.spec)
    assert (device.facts().target, device.facts().abi) == ("android-arm64", "arm64-v8a")
    program = compile_program(tmp_path, "aarch64-linux-gnu-gcc", "-static")
    bundle = make_bundle({"fate": program})
    assert device.push(bundle).pushed_files == 1
    assert device.push(bundle).pushed_files == 0
    with device.open_run(bundle, "r1") as run:
        assert run.run(["exit", "6"], 60).exit_code == 6
        assert run.run(["crash"], 60).signal_name == "SIGSEGV"
        assert run.run(["hang"], 1).timed_out
    device.close()


@pytest.mark.parametrize(
    ("flavour", "compiler", "loader"),
    [
        (X86_64, "gcc", "ld-linux-x86-64.so.2"),
        (ARM64, "aarch64-linux-gnu-gcc", "ld-linux-aarch64.so.1"),
    ],
    ids=["x86_64", "arm64"],
)
def test_a_linux_program_runs_with_the_c_library_that_it_brings(
    make_android: MakeAndroid,
    no_adb_server: None,
    tmp_path: Path,
    flavour: Flavour,
    compiler: str,
    loader: str,
) -> None:
    def library(name: str) -> Path:
        argv = [compiler, f"-print-file-name={name}"]
        return Path(subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip())

    program = compile_program(tmp_path, compiler)
    files = {"fate": program, loader: library(loader), "lib/libc.so.6": library("libc.so.6")}
    device = open_device(make_android(flavour).spec)
    alone = make_bundle(files, executable=("fate", loader))
    device.push(alone)
    with device.open_run(alone, "r1") as run:
        # Nothing at the path of the loader that the program names.
        assert run.run(["exit", "4"], 60).exit_code in (126, 127, 255)
    arguments = ("--library-path", "{bundle}/lib", "{bundle}/fate")
    portable = alone.model_copy(update={"launch": ProcessLaunch(argv=(loader, *arguments))})
    with device.open_run(portable, "r2") as run:
        assert run.run(["exit", "4"], 60).exit_code == 4
        assert run.run(["crash"], 60).signal_name == "SIGSEGV"
    device.close()


def test_two_devices_and_none_chosen(make_android: MakeAndroid, adb_server: AdbServer) -> None:
    first, second = make_android(), make_android()
    for root in (first, second):
        adb_server.connect(root)
    with pytest.raises(DeviceError, match="2 Android devices") as caught:
        open_device("android")
    for root in (first, second):
        assert f"--device {root.spec}" in str(caught.value.remedy)
    assert open_device(second.spec).facts().name == second.spec


def test_the_only_device_needs_no_name(android_x86_64: AndroidRoot, adb_server: AdbServer) -> None:
    adb_server.connect(android_x86_64)
    assert open_device("android").name == android_x86_64.spec


def test_the_listing_shows_what_each_device_tells(
    android_x86_64: AndroidRoot, adb_server: AdbServer
) -> None:
    adb_server.connect(android_x86_64)
    listed = {d.name: d for d in list_devices()}
    device = listed[android_x86_64.spec]
    assert (device.status, device.connection) == ("device", "adb server")
    assert device.facts
    assert device.facts.model == "EX-S928B"
    assert device.device_state
    assert device.device_state.battery_percent == 87


def test_a_device_that_left_is_offline_or_gone(
    android_x86_64: AndroidRoot, adb_server: AdbServer
) -> None:
    adb_server.connect(android_x86_64)
    device = open_device(android_x86_64.spec)
    android_x86_64.kill_adbd()
    with pytest.raises(DeviceError, match=r"offline|away|connected") as caught:
        device.facts()
    assert caught.value.place == android_x86_64.spec
    assert caught.value.remedy


def test_a_device_whose_daemon_restarted_is_connected_anew(
    android_x86_64: AndroidRoot, adb_server: AdbServer, capsys: pytest.CaptureFixture[str]
) -> None:
    adb_server.connect(android_x86_64)
    android_x86_64.kill_adbd()
    assert eventually(lambda: "offline" in adb_server.adb("devices"))
    android_x86_64.start_adbd()
    assert open_device(android_x86_64.spec).facts().model == "EX-S928B"
    assert "has reconnected to it" in capsys.readouterr().err


def test_a_device_that_stays_away_is_told_with_what_the_server_said(
    android_x86_64: AndroidRoot, adb_server: AdbServer
) -> None:
    adb_server.connect(android_x86_64)
    android_x86_64.kill_adbd()
    assert eventually(lambda: "offline" in adb_server.adb("devices"))
    with pytest.raises(DeviceError, match=r"Connection refused") as caught:
        open_device("android")
    assert str(caught.value.remedy).endswith(f"adb connect {android_x86_64.serial}")


class USBErrorTimeout(Exception):  # noqa: N818 - libusb's own name
    """What libusb raises when nothing came."""


class UsbOverTcp:
    """What adb-shell's UsbTransport does, on a socket instead of libusb."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)

    def connect(self, timeout_s: float) -> None:
        self._socket = socket.create_connection(self._address, timeout_s)

    def bulk_read(self, size: int, timeout_s: float) -> bytes:
        self._socket.settimeout(timeout_s)
        try:
            data = self._socket.recv(size)
        except TimeoutError:
            raise UsbReadFailedError("nothing", USBErrorTimeout()) from None
        if not data:
            raise UsbReadFailedError("unplugged", OSError())
        return data

    def bulk_write(self, data: bytes, timeout_s: float) -> int:
        self._socket.settimeout(timeout_s)
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise UsbWriteFailedError("unplugged", error) from None
        return len(data)

    def close(self) -> None:
        self._socket.close()


def test_packets_travel_over_usb_as_well(android_x86_64: AndroidRoot, bundle: Bundle) -> None:
    device = AndroidDevice(
        "A1", usb_transport("A1", lambda _: UsbOverTcp(android_x86_64.host, 5555))
    )
    with contextlib.closing(device):
        assert device.facts().connection == "USB"
        assert device.push(bundle).pushed_files == 3
        with device.open_run(bundle, "r1") as run:
            assert run.run(["exit", "2"], 20).exit_code == 2
            assert run.run(["hang"], 1.0).timed_out
            assert run.run(["exit", "3"], 20).exit_code == 3
        android_x86_64.kill_adbd()
        gone = "the device went away while reading its battery state"
        with pytest.raises(DeviceError, match=gone):
            device.state()


def test_a_phone_that_is_plugged_in_again_has_another_address(android_x86_64: AndroidRoot) -> None:
    ports = [UsbOverTcp(android_x86_64.host, 5555)]
    device = AndroidDevice("A1", usb_transport("A1", lambda _: ports[-1]))
    device.state()
    android_x86_64.kill_adbd()
    android_x86_64.start_adbd()
    ports[0].connect = unplugged  # type: ignore[method-assign]
    ports.append(UsbOverTcp(android_x86_64.host, 5555))
    with pytest.raises(DeviceError, match="the device went away"):
        device.state()
    assert device.state().battery_percent == 87
    device.close()


def unplugged(timeout_s: float) -> None:
    """What libusb says of an address that is no more."""
    raise OSError


def test_a_device_that_left_the_network_is_noticed(
    android_x86_64: AndroidRoot, bundle: Bundle
) -> None:
    device = AndroidDevice("A1", tcp_transport(android_x86_64.host, 5555), idle_s=0.5)
    device.facts()
    android_x86_64.cut_network()
    with pytest.raises(DeviceError, match="stopped answering"):
        device.push(bundle)
    device.close()


def test_nothing_listens_at_the_address(no_adb_server: None) -> None:
    with pytest.raises(DeviceError, match="nothing answers") as caught:
        open_device("android:127.0.0.1:1").facts()
    assert "Connection refused" in caught.value.message
