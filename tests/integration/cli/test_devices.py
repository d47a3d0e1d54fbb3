"""The main job on arm64 under qemu, on boards over ssh and on Android's real debug daemon."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.adbd import (  # noqa: F401 - fixtures
    AdbServer,
    AndroidRoot,
    MakeAndroid,
    adb_server,
    android_arm64,
    android_x86_64,
    make_android,
    no_adb_server,
)
from tests.support.arm64_board import MODEL, MakeArm64Board, make_arm64_board
from tests.support.arm64_root import busybox_root, debian_root
from tests.support.cli import Cli

__all__ = ["make_arm64_board"]

pytestmark = pytest.mark.integration

RECIPE = """\
model: {example: convnet, arguments: {width: 8, image: 32}}
export: {backend: xnnpack, quantization: int8_static}
benchmark: {iterations: 12, warmup: 2}
"""
WORK = ("--set", "benchmark.sustained_s=1")
PORTABLE = "model: {example: mlp}\nexport: {backend: portable}\nbenchmark: {iterations: 12}\n"


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def cli(shared_cache: Path, tmp_path: Path) -> Cli:
    """The user's adb key is the test's own, so that no key of the machine is touched."""
    return Cli(shared_cache, tmp_path, {"HOME": str(tmp_path)})


def check_work(record: dict[str, Any]) -> None:
    """A second of work, and a watched memory: the runner's own clock and files of /proc."""
    sustained = record["workload"]["sustained"]
    assert sustained["seconds"] >= 1
    assert sustained["inferences"] == record["passes"]["sustained"]["iterations"] > 0
    assert sustained["end_per_s"] > 0
    memory = record["memory"]
    assert 0 < memory["before_load_rss_bytes"] <= memory["peak_rss_bytes"]
    assert len(memory["points"]) >= 3


def wait_for_runner(device: AndroidRoot, *, running: bool) -> None:
    """Waits until the device does, or does not, run a runner."""
    deadline = time.monotonic() + 60
    while any("etdeploy-runner" in words for words in device.processes()) != running:
        assert time.monotonic() < deadline, device.processes()
        time.sleep(0.05)


needs_cross = pytest.mark.skipif(
    not shutil.which("aarch64-linux-gnu-g++"), reason="g++-aarch64-linux-gnu is not installed"
)
needs_qemu = pytest.mark.skipif(
    not shutil.which("qemu-aarch64-static"), reason="qemu-user-static is not installed"
)


@pytest.mark.nightly
@needs_cross
@needs_qemu
def test_arm64_under_qemu_gives_the_models_outputs(cli: Cli) -> None:
    record = cli.ok("run", "--recipe", cli.recipe(RECIPE), "--device", "qemu", "--json", *WORK).json
    check_work(record)
    assert record["runner"]["target"] == "linux-aarch64"
    assert record["device"]["facts"]["kind"] == "qemu"
    assert record["workload"]["outputs_compared"]
    assert all(o["within_tolerance"] for o in record["workload"]["outputs"])
    assert any("qemu" in note for note in record["notes"])
    assert record["device"]["facts"]["emulated_cpu"] == "max,sve=off"
    # Another processor is another measurement.
    run = ("run", "--recipe", cli.recipe(RECIPE), "--device", "qemu", "--json")
    other = cli.ok(*run, QEMU_CPU="cortex-a76").json
    assert other["run_id"] != record["run_id"]
    assert other["device"]["facts"]["emulated_cpu"] == "cortex-a76"
    assert cli.ok(*run, QEMU_CPU="cortex-a76").json == other
    plan = cli.ok("plan", *run[1:]).json
    (bench,) = (task for task in plan["tasks"] if task["name"] == "bench")
    assert "device.emulated_cpu changed from cortex-a76 to max,sve=off" in bench["reason"]


@needs_cross
def test_an_arm64_board_runs_the_cross_built_runner(
    cli: Cli, make_arm64_board: MakeArm64Board
) -> None:
    board = make_arm64_board(debian_root)
    run = ("run", "--recipe", cli.recipe(RECIPE), "--device", board.spec, "--json")
    record = cli.ok(*run, *WORK).json
    check_work(record)
    assert record["runner"]["target"] == "linux-aarch64"
    assert not record["runner"]["portable"]
    facts = record["device"]["facts"]
    assert facts["target"] == "linux-aarch64"
    assert (facts["kind"], facts["abi"], facts["model"]) == ("ssh", "aarch64", MODEL)
    assert facts["os"].startswith("Debian GNU/Linux")
    assert len(record["workload"]["latency_ms"]["samples"]) == 12
    assert record["workload"]["outputs_compared"]
    assert all(o["within_tolerance"] for o in record["workload"]["outputs"])
    assert set(record["passes"]) == {"timing", "memory", "profile", "sustained"}
    assert sum(cli.ok("clean", *run[3:]).json["freed_bytes"].values()) > 1_000_000
    assert not board.kept.exists()


@pytest.mark.nightly
@needs_cross
def test_an_arm64_board_without_a_c_library_runs_the_portable_runner(
    cli: Cli, make_arm64_board: MakeArm64Board
) -> None:
    board = make_arm64_board(busybox_root)
    run = ("run", "--recipe", cli.recipe(RECIPE), "--device", board.spec, "--json")
    record = cli.ok(*run).json
    facts = record["device"]["facts"]
    assert (facts["target"], facts["model"]) == ("linux-aarch64-portable", MODEL)
    assert record["runner"]["target"] == "linux-aarch64"
    assert record["runner"]["portable"]
    assert len(record["workload"]["latency_ms"]["samples"]) == 12
    assert record["workload"]["outputs_compared"]
    assert all(o["within_tolerance"] for o in record["workload"]["outputs"])


@pytest.mark.nightly
def test_an_x86_64_android_device_runs_the_portable_runner(
    cli: Cli,
    android_x86_64: AndroidRoot,  # noqa: F811
    no_adb_server: None,  # noqa: F811
) -> None:
    device = android_x86_64.spec
    plan = cli.ok("plan", "--recipe", cli.recipe(PORTABLE), "--device", device, "--json").json
    assert (plan["target"], plan["build_target"]) == ("android-x86_64", "linux-x86_64")
    assert plan["portable_runner"]
    run = ("run", "--recipe", cli.recipe(PORTABLE), "--device", device, *WORK)
    result = cli.ok(*run, "--json")
    assert "portable runner" in result.stderr
    record = result.json
    check_work(record)
    assert record["runner"]["portable"]
    assert len(record["workload"]["latency_ms"]["samples"]) == 12
    assert all(o["within_tolerance"] for o in record["workload"]["outputs"])
    assert record["device"]["facts"]["abi"] == "x86_64"
    assert record["device"]["before"]["battery_percent"] is not None
    again = cli.ok(*run, "--json")
    assert again.json == record
    assert "the device already has" in again.stderr
    text = cli.ok(*run).stdout
    assert "portable runner" in text


@pytest.mark.nightly
def test_a_warm_device_is_waited_for_and_what_disturbs_it_is_marked(
    cli: Cli,
    android_x86_64: AndroidRoot,  # noqa: F811
    no_adb_server: None,  # noqa: F811
) -> None:
    battery = android_x86_64.path("mnt/dumpsys-battery").read_text()
    power = android_x86_64.path("mnt/dumpsys-power").read_text()
    policy = "devices/system/cpu/cpufreq/policy0"
    android_x86_64.give_sys(
        {f"{policy}/related_cpus": "0 1", f"{policy}/scaling_max_freq": "2800000"}
    )
    android_x86_64.write("dumpsys-battery", battery.replace("287", "410"))
    android_x86_64.write("dumpsys-power", power.replace("  Enabled=false", "  Enabled=true"))
    run = ("run", "--recipe", cli.recipe(PORTABLE), "--device", android_x86_64.spec)
    cli.ok(*run)
    wanted = ("--set", "benchmark.cooldown.max_celsius=37", "--runs", "2")
    started = cli.start(*run, "--again", *wanted, "--json")
    assert started.stderr
    waiting = "cooling down to 37 °C: battery at 41.0 °C"
    assert any(waiting in line for line in started.stderr)
    android_x86_64.write_sys({f"{policy}/scaling_max_freq": "1800000"})
    android_x86_64.write("dumpsys-battery", battery)
    stdout, stderr = started.communicate()
    assert started.returncode == 0, stderr
    record = json.loads(stdout)
    first, second = record["workload"]["runs"]
    assert first["cooldown"]["from_celsius"] == 41.0
    assert first["cooldown"]["to_celsius"] == 28.7
    assert first["cooldown"]["reached"]
    assert first["cooldown"]["waited_s"] > second["cooldown"]["waited_s"]
    kinds = {each["kind"]: each["text"] for each in record["disturbances"]}
    assert "power-saving mode" in kinds["power_saving"]
    # The thermal status is that of the test device, light; the limit fell while it waited.
    assert "limited to 1.80 GHz in place of 2.80" in kinds["throttled"]
    # A start that takes longer than a second is looked at while it runs, too.
    seen = dict.fromkeys(sample["pass_name"] for sample in record["device"]["during"])
    assert {"timing", "timing.2"} <= set(seen)
    # The more kinds, the sooner the line is wrapped.
    assert "(disturbed: throttled" in " ".join(cli.ok(*run, *wanted).stdout.split())


@needs_cross
def test_an_arm64_android_device_runs_the_portable_runner(
    cli: Cli,
    android_arm64: AndroidRoot,  # noqa: F811
    no_adb_server: None,  # noqa: F811
) -> None:
    record = cli.ok(
        "run", "--recipe", cli.recipe(RECIPE), "--device", android_arm64.spec, "--json"
    ).json
    assert record["device"]["facts"]["target"] == "android-arm64"
    assert record["runner"]["target"] == "linux-aarch64"
    assert all(o["within_tolerance"] for o in record["workload"]["outputs"])


def test_devices_push_and_clean_over_an_adb_server(
    cli: Cli,
    adb_server: AdbServer,  # noqa: F811
    android_x86_64: AndroidRoot,  # noqa: F811
) -> None:
    adb_server.connect(android_x86_64)
    listed = {d["name"]: d for d in cli.ok("devices", "--json").json}
    assert listed["host"]["status"] == "device"
    assert listed[android_x86_64.spec]["facts"]["abi"] == "x86_64"
    assert android_x86_64.spec in cli.ok("devices").stdout
    recipe = cli.recipe(PORTABLE)
    cli.ok("push", "--recipe", recipe, "--device", "android")
    pushed = cli.ok("push", "--recipe", recipe, "--device", "android")
    assert "the device already has" in pushed.stderr
    cleaned = cli.ok("clean", "--device", "android", "--json").json
    assert sum(cleaned["freed_bytes"].values()) > 1_000_000
    assert not android_x86_64.path("/data/local/tmp/etdeploy").exists()


def test_two_devices_and_none_chosen(
    cli: Cli,
    adb_server: AdbServer,  # noqa: F811
    make_android: MakeAndroid,  # noqa: F811
) -> None:
    first, second = make_android(), make_android()
    adb_server.connect(first)
    adb_server.connect(second)
    result = cli("run", "--recipe", cli.recipe(PORTABLE), "--device", "android")
    assert result.code == 6
    assert first.spec in result.stderr
    assert second.spec in result.stderr


def test_no_device_and_an_unknown_kind(cli: Cli, no_adb_server: None) -> None:  # noqa: F811
    result = cli("run", "--device", "android:127.0.0.1:9")
    assert result.code == 6
    assert "127.0.0.1:9" in result.stderr
    assert cli("run", "--device", "androd").code == 2
    result = cli("run", "--device", "ios")
    assert result.code == 6
    assert "Traceback" not in result.stderr


def test_a_disk_full_error_on_the_device(
    cli: Cli,
    make_android: MakeAndroid,  # noqa: F811
    no_adb_server: None,  # noqa: F811
) -> None:
    device = make_android(size_mib=4)
    result = cli("run", "--recipe", cli.recipe(PORTABLE), "--device", device.spec)
    assert result.code == 6
    assert "Traceback" not in result.stderr
    assert not list((cli.folder / "etdeploy-out").rglob("record.json"))


def test_a_device_that_goes_away_in_mid_run_and_comes_back(
    cli: Cli,
    android_x86_64: AndroidRoot,  # noqa: F811
    no_adb_server: None,  # noqa: F811
) -> None:
    recipe = cli.recipe(PORTABLE.replace("12", "1000000"))
    cli.ok("push", "--recipe", recipe, "--device", android_x86_64.spec)
    child = cli.start("run", "--recipe", recipe, "--device", android_x86_64.spec)
    wait_for_runner(android_x86_64, running=True)
    time.sleep(0.5)
    android_x86_64.kill_adbd()
    _, stderr = child.communicate()
    assert child.returncode == 6, stderr
    assert android_x86_64.serial in stderr
    android_x86_64.start_adbd()
    cli.ok("run", "--recipe", cli.recipe(PORTABLE), "--device", android_x86_64.spec)


def test_interrupting_a_measurement_ends_the_runner_on_the_device(
    cli: Cli,
    android_x86_64: AndroidRoot,  # noqa: F811
    no_adb_server: None,  # noqa: F811
) -> None:
    recipe = cli.recipe(PORTABLE.replace("12", "1000000"))
    cli.ok("push", "--recipe", recipe, "--device", android_x86_64.spec)
    child = cli.start("run", "--recipe", recipe, "--device", android_x86_64.spec)
    wait_for_runner(android_x86_64, running=True)
    child.terminate()
    _, stderr = child.communicate()
    assert child.returncode == 130, stderr
    wait_for_runner(android_x86_64, running=False)
    assert not list((cli.folder / "etdeploy-out").rglob("*.json"))


def test_a_hanging_run_is_ended_after_the_time_limit(cli: Cli) -> None:
    recipe = cli.recipe(PORTABLE.replace("12", "1000000"))
    result = cli("run", "--recipe", recipe, "--set", "benchmark.timeout_s=0.5")
    assert result.code == 7
    assert "benchmark.timeout_s" in result.stderr


def test_json_of_devices_is_a_list_even_without_a_phone(
    cli: Cli,
    no_adb_server: None,  # noqa: F811
) -> None:
    assert {d["name"] for d in json.loads(cli.ok("devices", "--json").stdout)} >= {"host", "qemu"}
