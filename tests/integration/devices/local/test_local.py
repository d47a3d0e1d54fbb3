"""Devices on this machine: host, and qemu for arm64."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from etdeploy.cache.workspace import Workspace
from etdeploy.core import cancel
from etdeploy.core.errors import DeviceError, Interrupted
from etdeploy.devices.base import Bundle, Device, ProcessLaunch, lock_name
from etdeploy.devices.bundles import bundle_digest
from etdeploy.devices.local.device import oom_kills
from etdeploy.devices.local.store import find_leftovers
from etdeploy.devices.registry import open_device
from tests.support.bundles import compile_program, make_bundle
from tests.support.streams import awaited, is_whole, talked, was_talk

pytestmark = pytest.mark.integration


@pytest.fixture(scope="session")
def host_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_program(tmp_path_factory.mktemp("host"))


@pytest.fixture(scope="session")
def arm_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = "aarch64-linux-gnu-gcc"
    if not shutil.which(compiler) or not shutil.which("qemu-aarch64-static"):
        pytest.skip("needs gcc-aarch64-linux-gnu and qemu-user-static")
    return compile_program(tmp_path_factory.mktemp("arm"), compiler)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "cache")


@pytest.fixture
def host(workspace: Workspace) -> Device:
    return open_device("host", workspace)


@pytest.fixture
def bundle(host_program: Path, tmp_path: Path) -> Bundle:
    data = tmp_path / "data.bin"
    data.write_bytes(os.urandom(100_000))
    return make_bundle(
        {"bin/fate": host_program, "data.bin": data, "copy.bin": data},
        command=("bin/fate",),
        executable=("bin/fate",),
        environment={"GREETING": "from {bundle}"},
    )


@pytest.fixture(autouse=True)
def no_request_left() -> Iterator[None]:
    yield
    with cancel.trapped_signals():
        pass


def test_host_is_this_machine(host: Device) -> None:
    facts = host.facts()
    assert (facts.name, facts.kind, facts.connection) == ("host", "host", "this machine")
    assert facts.cpu_count == os.cpu_count()
    assert facts.memory_bytes
    assert host.state().load_average is not None


def test_host_and_qemu_are_never_timed_at_once(workspace: Workspace, arm_program: Path) -> None:
    assert lock_name(open_device("qemu", workspace)) == lock_name(open_device("host", workspace))


def test_a_push_copies_once(host: Device, bundle: Bundle) -> None:
    report = host.push(bundle)
    assert (report.pushed_files, report.kept_files) == (2, 0)
    again = host.push(bundle)
    assert (again.pushed_files, again.pushed_bytes, again.kept_files) == (0, 0, 2)


def test_the_sources_stay_untouched(host: Device, bundle: Bundle) -> None:
    source = Path(bundle.files[0].source)
    before = (source.stat().st_mode, source.stat().st_nlink, source.stat().st_mtime_ns)
    host.push(bundle)
    assert (source.stat().st_mode, source.stat().st_nlink, source.stat().st_mtime_ns) == before


@pytest.mark.parametrize("damage", ["content", "mode", "gone", "folder"])
def test_what_was_tampered_with_is_mended(
    host: Device, bundle: Bundle, workspace: Workspace, damage: str
) -> None:
    host.push(bundle)
    content = workspace.root / "bundles/store" / bundle.files[0].sha256
    if damage == "content":
        before = content.stat()
        with content.open("r+b") as file:
            file.write(b"\0\0\0\0")
        os.utime(content, ns=(before.st_atime_ns, before.st_mtime_ns))
    elif damage == "mode":
        content.chmod(0o644)
    elif damage == "gone":
        content.unlink()
    else:
        (link,) = (workspace.root / "bundles").glob("*/bin/fate")
        link.write_bytes(b"#!/bin/sh\n")
    host.push(bundle)
    with host.open_run(bundle, "r") as run:
        assert run.run(["exit", "3"], 20).exit_code == 3


def test_a_source_that_changed_meanwhile_is_refused(
    host: Device, bundle: Bundle, tmp_path: Path
) -> None:
    (tmp_path / "data.bin").write_bytes(b"other")
    with pytest.raises(DeviceError, match="changed meanwhile"):
        host.push(bundle)


def test_a_run_gives_exit_code_outputs_and_files(
    host: Device, bundle: Bundle, tmp_path: Path
) -> None:
    host.push(bundle)
    with host.open_run(bundle, "r1") as run:
        outcome = run.run(["write", "{run}/out.json", "[1]"], 20)
        run.pull("out.json", tmp_path / "pulled/out.json")
        with pytest.raises(DeviceError, match=r"nothing\.json"):
            run.pull("nothing.json", tmp_path / "nothing.json")
        with pytest.raises(ValueError, match="leads out of"):
            run.pull("../../store", tmp_path / "store")
    assert (outcome.exit_code, outcome.stdout) == (0, "out write\n")
    assert outcome.stderr.startswith("err from ")
    assert (tmp_path / "pulled/out.json").read_text() == "[1]"


def test_a_crash_names_its_signal(host: Device, bundle: Bundle) -> None:
    host.push(bundle)
    with host.open_run(bundle, "r1") as run:
        outcome = run.run(["crash"], 20)
    assert (outcome.exit_code, outcome.signal_name) == (139, "SIGSEGV")


def test_what_was_killed_by_hand_did_not_run_out_of_memory(
    host: Device, bundle: Bundle, workspace: Workspace
) -> None:
    if oom_kills() is None:
        pytest.skip("this system does not count what it kills")
    host.push(bundle)

    def kill() -> None:
        for found in find_leftovers(workspace.root / "bundles"):
            os.kill(found.pid, signal.SIGKILL)

    killing = threading.Timer(0.5, kill)
    killing.start()
    with host.open_run(bundle, "r1") as run:
        outcome = run.run(["hang"], 20)
    killing.join()
    assert (outcome.signal_name, outcome.out_of_memory) == ("SIGKILL", False)


def test_a_hang_is_ended(host: Device, bundle: Bundle) -> None:
    host.push(bundle)
    with host.open_run(bundle, "r1") as run:
        outcome = run.run(["hang"], 0.5)
    assert (outcome.exit_code, outcome.timed_out, outcome.stdout) == (None, True, "out hang\n")


@pytest.mark.parametrize("name", ["host", "qemu"])
def test_output_is_heard_while_the_program_runs(
    name: str,
    workspace: Workspace,
    host_program: Path,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    program = host_program if name == "host" else request.getfixturevalue("arm_program")
    heard = awaited(open_device(name, workspace), make_bundle({"fate": program}), tmp_path)
    assert is_whole(*heard), heard


@pytest.mark.parametrize("name", ["host", "qemu"])
def test_a_program_is_talked_with(
    name: str, workspace: Workspace, host_program: Path, request: pytest.FixtureRequest
) -> None:
    program = host_program if name == "host" else request.getfixturevalue("arm_program")
    found = talked(open_device(name, workspace), make_bundle({"fate": program}))
    assert was_talk(*found), found
    assert not list(find_leftovers(workspace.root / "bundles"))


def test_a_stop_request_ends_the_run(host: Device, bundle: Bundle, workspace: Workspace) -> None:
    host.push(bundle)
    timer = threading.Timer(0.3, cancel.request)
    timer.start()
    with host.open_run(bundle, "r1") as run, pytest.raises(Interrupted):
        run.run(["hang"], 60)
    timer.join()
    assert not (workspace.root / "bundles/runs/r1").exists()


def test_what_cannot_be_started_is_an_error(host: Device, bundle: Bundle) -> None:
    host.push(bundle)
    broken = bundle.model_copy(update={"launch": ProcessLaunch(argv=("data.bin",))})
    with (
        host.open_run(broken, "r1") as run,
        pytest.raises(DeviceError, match="Permission denied"),
    ):
        run.run([], 20)


def test_stale_runs_go_with_the_next_push(
    host: Device, bundle: Bundle, workspace: Workspace
) -> None:
    runs = workspace.root / "bundles/runs"
    (runs / "killed").mkdir(parents=True)
    with host.open_run(bundle, "going"):
        for folder in runs.iterdir():
            os.utime(folder, (0, 0))
        host.push(bundle)
        assert [p.name for p in runs.iterdir()] == ["going"]


@pytest.mark.parametrize("name", ["host", "qemu"])
def test_a_runner_that_a_killed_run_left_is_ended(
    name: str, workspace: Workspace, host_program: Path, request: pytest.FixtureRequest
) -> None:
    program = host_program if name == "host" else request.getfixturevalue("arm_program")
    bundle = make_bundle({"fate": program})
    device = open_device(name, workspace)
    device.push(bundle)
    folder = workspace.root / "bundles/runs/20260101-mlp"
    folder.mkdir(parents=True)
    fate = str(workspace.root / "bundles" / bundle_digest(bundle) / "fate")
    emulated = ["qemu-aarch64-static", "-cpu", "max", "-L", "/usr/aarch64-linux-gnu", fate]
    argv = [fate] if name == "host" else emulated
    left = subprocess.Popen([*argv, "hang"], cwd=folder, stdout=subprocess.PIPE)
    by_hand = subprocess.Popen(
        [*argv, "hang"], cwd="/", stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        for started in (left, by_hand):
            assert started.stdout
            assert started.stdout.readline() == b"out hang\n"
        # It and the child that it started.
        ended = device.end_leftovers()
        assert left.pid in [found.pid for found in ended]
        assert {found.run_id for found in ended} == {"20260101-mlp"}
        assert left.wait(10) == -signal.SIGKILL
        assert by_hand.poll() is None
        assert device.end_leftovers() == ()
    finally:
        left.kill()
        os.killpg(by_hand.pid, signal.SIGKILL)
        for started in (left, by_hand):
            started.communicate()


def test_clean_removes_all(host: Device, bundle: Bundle, workspace: Workspace) -> None:
    host.push(bundle)
    assert host.clean()["store"] > 100_000
    assert not (workspace.root / "bundles").exists()


def test_qemu_runs_what_is_built_for_arm64(workspace: Workspace, arm_program: Path) -> None:
    qemu = open_device("qemu", workspace)
    assert (qemu.facts().target, qemu.facts().abi) == ("linux-aarch64", "aarch64")
    bundle = make_bundle({"fate": arm_program}, environment={"GREETING": "a b"})
    qemu.push(bundle)
    with qemu.open_run(bundle, "r1") as run:
        outcome = run.run(["exit", "7"], 60)
        assert (outcome.exit_code, outcome.stderr) == (7, "err a b\n")
        crash = run.run(["crash"], 60)
        assert (crash.exit_code, crash.signal_name) == (139, "SIGSEGV")
        assert run.run(["hang"], 1.0).timed_out


def test_qemu_runs_a_program_through_its_own_loader(
    workspace: Workspace, arm_program: Path
) -> None:
    lib = Path("/usr/aarch64-linux-gnu/lib")
    files = {
        "fate": arm_program,
        "lib/ld-linux-aarch64.so.1": lib / "ld-linux-aarch64.so.1",
        "lib/libc.so.6": lib / "libc.so.6",
    }
    bundle = make_bundle(
        files,
        command=("lib/ld-linux-aarch64.so.1", "--library-path", "{bundle}/lib", "{bundle}/fate"),
        executable=("fate", "lib/ld-linux-aarch64.so.1"),
    )
    qemu = open_device("qemu", workspace)
    qemu.push(bundle)
    with qemu.open_run(bundle, "r1") as run:
        assert run.run(["exit", "9"], 60).exit_code == 9
