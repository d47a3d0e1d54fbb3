"""An app on a device over both transports: a real adbd, and scripts for Android's tools."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from etdeploy.core import cancel
from etdeploy.core.errors import DeviceError, Interrupted
from etdeploy.devices.base import AppLaunch, Bundle, RunFolder
from etdeploy.devices.registry import open_device
from etdeploy.devices.remote.shell import check_output
from etdeploy.runner.protocol import load_results
from tests.support.adbd import MakeAndroid, adb_server, make_android, no_adb_server
from tests.support.app_phone import APP_ID, MEASURE, WRITE, AppPhone, in_front, make_app_phone
from tests.support.bundles import make_bundle
from tests.support.reached import Reached, no_request_left, reached

pytestmark = pytest.mark.integration

__all__ = ["adb_server", "make_android", "no_adb_server", "no_request_left", "reached"]

LIMIT_S = 60
ROOT = "data/local/tmp/etdeploy"


@pytest.fixture
def phone(reached: Reached) -> AppPhone:
    """For what may depend on the connection."""
    return make_app_phone(reached)


@pytest.fixture
def lone_phone(make_android: MakeAndroid, no_adb_server: None) -> Iterator[AppPhone]:
    """For what depends on the device alone."""
    root = make_android(size_mib=64)
    device = open_device(root.spec)
    yield make_app_phone(Reached(root, device, None))
    device.close()


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    (tmp_path / "app.apk").write_bytes(os.urandom(50_000))
    (tmp_path / "request.txt").write_text("point a 0 4 1 prompts/0.bin\n")
    (tmp_path / "prompt.bin").write_bytes(b"\1" * 16)
    (tmp_path / "program.pte").write_bytes(os.urandom(17 << 20))
    return app_bundle(
        {
            "app.apk": tmp_path / "app.apk",
            "request.txt": tmp_path / "request.txt",
            "prompts/0.bin": tmp_path / "prompt.bin",
            "program.pte": tmp_path / "program.pte",
        }
    )


def app_bundle(files: dict[str, Path]) -> Bundle:
    launch = AppLaunch(id=APP_ID, archive="app.apk")
    return make_bundle(files, executable=()).model_copy(update={"launch": launch})


@contextmanager
def opened(phone: AppPhone, bundle: Bundle) -> Iterator[RunFolder]:
    phone.reached.device.push(bundle)
    with phone.reached.device.open_run(bundle, "r1") as run:
        yield run


def refused(phone: AppPhone, bundle: Bundle, words: tuple[str, ...] = ()) -> DeviceError:
    """The error of a run."""
    with opened(phone, bundle) as run, pytest.raises(DeviceError) as caught:
        run.run(words, LIMIT_S)
    return caught.value


def test_a_device_says_that_it_starts_apps(lone_phone: AppPhone) -> None:
    assert lone_phone.reached.device.capabilities.launches == ("process", "app")


def test_a_push_installs_what_it_verified_once(phone: AppPhone, bundle: Bundle) -> None:
    texts: list[str] = []
    phone.reached.device.push(bundle, lambda text, _=None: texts.append(text))
    installed = phone.path(f"app/{APP_ID}/base.apk")
    assert installed.read_bytes() == Path(bundle.files[0].source).read_bytes()
    assert f"installing {APP_ID} (50.0 kB); the phone may ask" in texts
    texts.clear()
    report = phone.reached.device.push(bundle, lambda text, _=None: texts.append(text))
    assert (report.pushed_files, texts) == (0, [])
    installs = [line for line in phone.log("pm") if line.startswith("install")]
    path = f"/{ROOT}/store/{bundle.files[0].sha256}"
    assert installs == [f"install -r -t --user 0 {path}"]


@pytest.mark.parametrize("change", ["content", "split"])
def test_another_installed_app_is_replaced(
    lone_phone: AppPhone, bundle: Bundle, change: str
) -> None:
    lone_phone.reached.device.push(bundle)
    if change == "content":
        lone_phone.put(f"app/{APP_ID}/base.apk", b"another version")
    else:
        lone_phone.put(f"app/{APP_ID}/split_config.arm64_v8a.apk", b"")
    assert lone_phone.reached.device.push(bundle).pushed_files == 0
    installed = lone_phone.path(f"app/{APP_ID}")
    assert [path.name for path in installed.iterdir()] == ["base.apk"]
    assert (installed / "base.apk").stat().st_size == 50_000


def test_a_file_that_the_system_may_not_read_goes_through_a_pipe(
    phone: AppPhone, bundle: Bundle
) -> None:
    phone.says(
        "pm-path",
        "System server has no access to read file context u:object_r:shell_data_file:s0\n"
        "Error: Unable to open file: /data/local/tmp/etdeploy/store/0\n",
    )
    phone.reached.device.push(bundle)
    installed = phone.path(f"app/{APP_ID}/base.apk")
    assert installed.read_bytes() == Path(bundle.files[0].source).read_bytes()
    assert phone.log("pm")[-1] == "install -r -t --user 0 -S 50000"


def test_a_refused_installation_says_why_and_removes_nothing(
    phone: AppPhone, bundle: Bundle
) -> None:
    phone.put(f"app/{APP_ID}/base.apk", b"the user's own")
    phone.says(
        "pm",
        f"Failure [INSTALL_FAILED_UPDATE_INCOMPATIBLE: Existing package {APP_ID} signatures do not "
        "match newer version; ignoring!]\n",
    )
    with pytest.raises(DeviceError) as caught:
        phone.reached.device.push(bundle)
    assert "signed with another key" in caught.value.message
    serial = phone.reached.root.serial
    assert f"adb -s {serial} uninstall {APP_ID}" in str(caught.value.remedy)
    assert phone.path(f"app/{APP_ID}/base.apk").read_bytes() == b"the user's own"
    assert {line.split()[0] for line in phone.log("pm")} == {"path", "install"}


def test_apps_may_read_what_was_pushed(lone_phone: AppPhone, bundle: Bundle) -> None:
    lone_phone.reached.device.push(bundle)
    for name in ("", "/store", "/runs", "/bundles"):
        lone_phone.reached.root.path(f"{ROOT}{name}").chmod(0o700)
    with opened(lone_phone, bundle):
        folders = [
            lone_phone.reached.root.path(f"{ROOT}{name}") for name in ("", "/store", "/runs")
        ]
        files = list(lone_phone.reached.root.path(f"{ROOT}/store").iterdir())
        files += list(lone_phone.reached.root.path(f"{ROOT}/runs/r1/files").rglob("*"))
        assert [path.stat().st_mode & 0o777 for path in folders] == [0o755] * 3
        assert len(files) == 7
        assert all(path.stat().st_mode & 0o044 == 0o044 for path in files)
        assert not any(path.is_symlink() for path in files)


def test_a_run_gives_results_and_outputs(phone: AppPhone, bundle: Bundle, tmp_path: Path) -> None:
    with opened(phone, bundle) as run:
        outcome = run.run(
            ["iterations=20", "warmup=-1", "outputs=true", "size=it's large"], LIMIT_S
        )
        assert (outcome.exit_code, outcome.signal_name, outcome.timed_out) == (0, None, False)
        assert (outcome.stdout, outcome.stderr) == ("", "")
        run.pull("results-timing.json", tmp_path / "new/results-timing.json")
        run.pull("outputs-timing", tmp_path / "outputs")
        results = load_results(tmp_path / "new/results-timing.json")
        assert (results.samples_ms, results.warmup) == ((1.0, 1.25), 3)
        assert (tmp_path / "outputs/output-0.bin").read_bytes() == b"a\0b\r\nc\377d\n"
        assert phone.waits_until_running(False)
    (start,) = [line for line in phone.log("am") if line.startswith("start")]
    words, _, rest = start.partition(" --es run_id ")
    assert words == f"start -W -S -n {APP_ID}/.MainActivity"
    assert rest[16:] == " --ei iterations 20 --ei warmup -1 --ez outputs true --es size it's large"
    assert not list(phone.reached.root.path(f"{ROOT}/runs").iterdir())
    assert phone.reached.is_quiet()


def test_each_start_has_an_id_of_its_own(lone_phone: AppPhone, bundle: Bundle) -> None:
    with opened(lone_phone, bundle) as run:
        assert [run.run([], LIMIT_S).exit_code for _ in range(2)] == [0, 0]
    ids = [line.split("run_id ")[1] for line in lone_phone.log("am") if line.startswith("start")]
    assert len(set(ids)) == 2


def test_an_app_that_cannot_be_debugged_is_read_from_its_external_folder(
    lone_phone: AppPhone, bundle: Bundle, tmp_path: Path
) -> None:
    lone_phone.says("run-as", f"run-as: Package '{APP_ID}' is not debuggable\n")
    with opened(lone_phone, bundle) as run:
        assert run.run(["outputs=true"], LIMIT_S).exit_code == 0
        run.pull("outputs", tmp_path / "outputs")
        assert (tmp_path / "outputs/output-0.bin").read_bytes() == b"a\0b\r\nc\377d\n"


def test_a_file_of_the_bundle_is_named_where_the_app_can_read_it(
    lone_phone: AppPhone, bundle: Bundle
) -> None:
    lone_phone.plays(
        "cat $request ${request%/*}/prompts/0.bin >/mnt/read; wc -c <$program >/mnt/size\n"
        + MEASURE
    )
    with opened(lone_phone, bundle) as run:
        words = ["program={bundle}/program.pte", "request={bundle}/request.txt"]
        assert run.run(words, LIMIT_S).exit_code == 0
    assert lone_phone.path("read").read_bytes() == b"point a 0 4 1 prompts/0.bin\n" + b"\1" * 16
    assert int(lone_phone.path("size").read_text()) == 17 << 20
    (start,) = [line for line in lone_phone.log("am") if line.startswith("start")]
    assert f"--es program /{ROOT}/store/{bundle.files[3].sha256}" in start


def test_results_of_another_start_are_not_taken(
    lone_phone: AppPhone, bundle: Bundle, tmp_path: Path
) -> None:
    lone_phone.plays(
        f"{WRITE}\nwrite 00of-another $private; sleep 2.5; write $run_id $private; sleep 99"
    )
    with opened(lone_phone, bundle) as run:
        outcome = run.run([], LIMIT_S)
        assert outcome.exit_code == 0
        assert outcome.seconds > 2.5


def test_only_results_of_another_start_take_too_long(phone: AppPhone, bundle: Bundle) -> None:
    phone.plays(f"{WRITE}\nwrite 00of-another $private; sleep 1000")
    with opened(phone, bundle) as run:
        outcome = run.run([], 3)
        assert (outcome.timed_out, outcome.exit_code) == (True, None)
        assert phone.waits_until_running(False)
        with pytest.raises(DeviceError, match=r"results\.json"):
            run.pull("results.json", Path("unused"))


def test_a_failed_app_says_why_with_its_log(lone_phone: AppPhone, bundle: Bundle) -> None:
    lone_phone.results(
        status="failed", results=None, error={"kind": "load", "message": "no such op"}
    )
    lone_phone.plays(
        'echo "$(date "+%m-%d %H:%M:%S").500 $$ $$ E ExecuTorch: Missing operator: [0] a::b" '
        f">/mnt/says/logcat\n{MEASURE}"
    )
    with opened(lone_phone, bundle) as run:
        outcome = run.run([], LIMIT_S)
    assert (outcome.exit_code, outcome.signal_name) == (1, None)
    assert outcome.stderr == "E ExecuTorch: Missing operator: [0] a::b\nno such op"


def test_an_output_that_is_missing_is_named(
    lone_phone: AppPhone, bundle: Bundle, tmp_path: Path
) -> None:
    lone_phone.results(results={"outputs": [{"path": "output-7.bin"}]})
    with opened(lone_phone, bundle) as run:
        run.run(["outputs=true"], LIMIT_S)
        with pytest.raises(DeviceError, match=r"output-7\.bin"):
            run.pull("outputs", tmp_path / "outputs")


EXIT_INFO = """ACTIVITY MANAGER PROCESS EXIT INFO (dumpsys activity exit-info)
Last Timestamp of Persistence Into Persistent Storage: 2026-10-01 15:54:06.558
  package: org.example.convnet
    Historical Process Exit for uid=10196
        ApplicationExitInfo #0:
          timestamp=NOW.535 pid=PID realUid=10196 packageUid=10196 definingUid=10196 user=0
          process=org.example.convnet reason=%s subreason=0 (UNKNOWN) status=0
          importance=100 pss=0.00 rss=4.2GB description=%s state=empty trace=null
"""


def dies(lone_phone: AppPhone, reason: str, description: str) -> None:
    """Has the app end, which the system records a moment later."""
    lone_phone.put("template", EXIT_INFO % (reason, description))
    lone_phone.plays(
        "sleep 0.5\n"
        'sed "s/PID/$$/; s/NOW/$(date "+%Y-%m-%d %H:%M:%S")/" /mnt/template >/mnt/exits\n'
        "setsid sh -c 'sleep 1; mv /mnt/exits /mnt/dumpsys-activity-exit-info' &\nexit 0"
    )


def test_an_app_that_was_closed_by_hand_is_no_failure_of_its_own(
    lone_phone: AppPhone, bundle: Bundle
) -> None:
    dies(lone_phone, "10 (USER REQUESTED)", "remove task")
    error = refused(lone_phone, bundle)
    assert error.message.startswith(f"{APP_ID} was closed (remove task)")


def test_an_exception_is_shown_with_its_stack(phone: AppPhone, bundle: Bundle) -> None:
    phone.plays(
        'now="$(date "+%m-%d %H:%M:%S").900 $$ $$ E AndroidRuntime:"\n'
        '{ echo "$now FATAL EXCEPTION: measuring"\n'
        f'echo "$now Process: {APP_ID}, PID: $$"\n'
        'echo "$now java.lang.OutOfMemoryError: Failed to allocate a 400 byte allocation"\n'
        'echo "$now \tat org.example.convnet.Measuring.run(Measuring.kt:12)"\n'
        "} >/mnt/says/logcat-crash; sleep 0.3"
    )
    with opened(phone, bundle) as run:
        outcome = run.run([], LIMIT_S)
    assert (outcome.exit_code, outcome.signal_name) == (1, None)
    assert "\tat org.example.convnet.Measuring.run(Measuring.kt:12)" in outcome.stderr
    assert outcome.stderr.splitlines()[-1] == (
        "an exception ended the app: out of memory, java.lang.OutOfMemoryError: "
        "Failed to allocate a 400 byte allocation"
    )


def test_an_app_that_is_gone_at_once_is_found_by_its_id(
    lone_phone: AppPhone, bundle: Bundle
) -> None:
    lone_phone.plays(
        'now="$(date "+%m-%d %H:%M:%S").900 $$ $$ E AndroidRuntime:"\n'
        '{ echo "$now FATAL EXCEPTION: main"\n'
        f'echo "$now Process: {APP_ID}, PID: $$"\n'
        'echo "$now java.lang.UnsatisfiedLinkError: dlopen failed"\n'
        "} >/mnt/says/logcat-crash"
    )
    with opened(lone_phone, bundle) as run:
        outcome = run.run([], LIMIT_S)
    assert outcome.stderr.splitlines()[-1].endswith("java.lang.UnsatisfiedLinkError: dlopen failed")


def test_an_ending_that_nobody_explains_is_told_as_that(
    lone_phone: AppPhone, bundle: Bundle
) -> None:
    lone_phone.plays("sleep 0.3")
    with opened(lone_phone, bundle) as run:
        outcome = run.run([], LIMIT_S)
    assert (outcome.exit_code, outcome.out_of_memory) == (137, None)
    assert outcome.stderr


def test_results_that_were_written_before_the_end_count(
    lone_phone: AppPhone, bundle: Bundle
) -> None:
    lone_phone.plays(f"{WRITE}\nsleep 1.4; write $run_id $private")
    with opened(lone_phone, bundle) as run:
        assert run.run([], LIMIT_S).exit_code == 0


def test_another_app_in_front_ends_the_run(phone: AppPhone, bundle: Bundle) -> None:
    phone.plays("sleep 1.5; echo 700 >/proc/$$/oom_score_adj; sleep 1000")
    timer = threading.Timer(
        1.5, phone.put, ["dumpsys-activity-activities", in_front("com.android.dialer/.Incoming")]
    )
    timer.start()
    error = refused(phone, bundle)
    timer.join()
    assert "com.android.dialer" in error.message
    assert "Leave the device alone" in str(error.remedy)
    assert phone.waits_until_running(False)


def test_a_screen_that_goes_off_ends_the_run(lone_phone: AppPhone, bundle: Bundle) -> None:
    lone_phone.plays("sleep 2; echo 700 >/proc/$$/oom_score_adj; sleep 1000")
    timer = threading.Timer(
        3, lone_phone.put, ["dumpsys-activity-activities", "  mSleeping=true\n"]
    )
    timer.start()
    assert "screen" in refused(lone_phone, bundle).message
    timer.join()


def test_a_moment_behind_is_no_end(lone_phone: AppPhone, bundle: Bundle) -> None:
    lone_phone.put("dumpsys-activity-activities", in_front("com.android.systemui/.Dialog"))
    lone_phone.plays(
        "sleep 1.5; sed s/com.android.systemui/$id/ /mnt/dumpsys-activity-activities >/mnt/new; "
        f"mv /mnt/new /mnt/dumpsys-activity-activities; sleep 2\n{MEASURE}"
    )
    with opened(lone_phone, bundle) as run:
        assert run.run([], LIMIT_S).exit_code == 0


def test_a_locked_phone_is_left_alone(lone_phone: AppPhone, bundle: Bundle) -> None:
    trust = lone_phone.path("dumpsys-trust").read_text().replace("deviceLocked=0", "deviceLocked=1")
    lone_phone.put("dumpsys-trust", trust)
    error = refused(lone_phone, bundle)
    assert "locked" in error.message
    assert "Unlock it" in str(error.remedy)
    assert not [line for line in lone_phone.log("am") if line.startswith("start")]
    assert not lone_phone.log("input")


def test_a_dark_screen_is_turned_on_and_a_plain_lock_screen_removed(
    lone_phone: AppPhone, bundle: Bundle
) -> None:
    lone_phone.put("after-input", "echo '  mWakefulness=Awake' >/mnt/dumpsys-power\n")
    lone_phone.put("dumpsys-power", "  mWakefulness=Asleep\n")
    lone_phone.put("after-wm", "echo '      showing=false' >/mnt/dumpsys-window\n")
    lone_phone.put("dumpsys-window", "      showing=true\n      secure=false\n")
    with opened(lone_phone, bundle) as run:
        assert run.run([], LIMIT_S).exit_code == 0
        assert (lone_phone.log("input"), lone_phone.log("wm")) == (
            ["keyevent KEYCODE_WAKEUP"],
            ["dismiss-keyguard"],
        )
        assert run.run([], LIMIT_S).exit_code == 0
    assert len(lone_phone.log("input")) == 1


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("dumpsys-power", "  mWakefulness=Asleep\n", "the phone's screen stays off"),
        ("dumpsys-window", "      showing=true\n", "the phone's lock screen does not go away"),
    ],
)
def test_a_screen_that_cannot_be_used_is_told(
    lone_phone: AppPhone, bundle: Bundle, file: str, text: str, message: str
) -> None:
    lone_phone.put(file, text)
    assert refused(lone_phone, bundle).message == message


def test_an_app_that_cannot_be_started_is_told(lone_phone: AppPhone, bundle: Bundle) -> None:
    lone_phone.says(
        "am",
        f"Starting: Intent {{ cmp={APP_ID}/.MainActivity }}\nError type 3\nError: Activity class "
        f"{{{APP_ID}/{APP_ID}.MainActivity}} does not exist.\n",
    )
    error = refused(lone_phone, bundle)
    assert f"{APP_ID}/.MainActivity" in error.message


def test_a_stop_ends_the_app(phone: AppPhone, bundle: Bundle) -> None:
    phone.plays("sleep 1000")
    with cancel.trapped_signals(), opened(phone, bundle) as run:
        timer = threading.Timer(1.5, cancel.request)
        timer.start()
        with pytest.raises(Interrupted):
            run.run([], LIMIT_S)
        timer.join()
        assert phone.waits_until_running(False)


def test_a_device_that_is_unplugged_ends_the_app(phone: AppPhone, bundle: Bundle) -> None:
    phone.plays("sleep 1000")
    timer = threading.Timer(1.5, phone.reached.root.kill_adbd)
    with opened(phone, bundle) as run:
        timer.start()
        with pytest.raises(DeviceError, match=r"away|connected|stopped"):
            run.run([], LIMIT_S)
    timer.join()
    assert phone.waits_until_running(False)
    phone.reached.come_back()
    assert phone.reached.device.end_leftovers() == ()


def left_behind(phone: AppPhone, bundle: Bundle) -> Path:
    """The folder of a run whose app went on when everything else was gone."""
    phone.reached.device.push(bundle)
    phone.plays("sleep 1000")
    folder = phone.reached.root.path(f"{ROOT}/runs/r0")
    folder.mkdir()
    start = phone.reached.root.path("mnt/start")
    start.write_text(f"am start -n {APP_ID}/.MainActivity >/dev/null\n")
    return folder


def started(phone: AppPhone) -> int:
    """Starts the app by itself; gives its process."""
    device = phone.reached.device
    link = device._link  # type: ignore[attr-defined]
    check_output(link, "sh /mnt/start", "starting it")
    pid = phone.pid()
    assert pid
    return pid


def test_an_app_of_an_earlier_run_is_ended(phone: AppPhone, bundle: Bundle) -> None:
    folder = left_behind(phone, bundle)
    pid = started(phone)
    (folder / ".app").write_text(f"{APP_ID} {pid}\n")
    (found,) = phone.reached.device.end_leftovers()
    assert (found.pid, found.run_id) == (pid, "r0")
    assert 0 <= found.seconds < 60
    assert phone.waits_until_running(False)
    assert phone.reached.device.end_leftovers() == ()


def test_an_app_that_its_user_started_is_left_alone(lone_phone: AppPhone, bundle: Bundle) -> None:
    folder = left_behind(lone_phone, bundle)
    pid = started(lone_phone)
    # That of the run had another process, whose number is another program's by now.
    (folder / ".app").write_text(f"{APP_ID} {pid + 1}\n")
    assert lone_phone.reached.device.end_leftovers() == ()
    (folder / ".app").write_text(f"{APP_ID} 1\n")
    assert lone_phone.reached.device.end_leftovers() == ()
    assert lone_phone.is_running()


def test_an_active_run_of_another_computer_is_left_alone(phone: AppPhone, bundle: Bundle) -> None:
    phone.plays("sleep 1000")
    phone.reached.device.push(bundle)
    other = open_device(phone.reached.root.spec)
    caught: list[BaseException] = []

    def run_there() -> None:
        try:
            with other.open_run(bundle, "theirs") as run:
                run.run([], 6)
        except DeviceError as error:
            caught.append(error)

    thread = threading.Thread(target=run_there)
    thread.start()
    assert phone.waits_until_running(True)
    time.sleep(1)
    with pytest.raises(DeviceError, match="theirs, process "):
        phone.reached.device.end_leftovers()
    assert phone.is_running()
    thread.join()
    other.close()
    assert not caught


def test_the_state_is_read_while_an_app_measures(lone_phone: AppPhone, bundle: Bundle) -> None:
    lone_phone.reached.root.give_sys(
        {"class/thermal/thermal_zone0/type": "cpu-0-0", "class/thermal/thermal_zone0/temp": "41000"}
    )
    lone_phone.plays(f"sleep 2.5\n{MEASURE}")
    with opened(lone_phone, bundle) as run:
        outcome = run.run([], LIMIT_S)
    assert outcome.states
    assert outcome.states[0].state.temperatures_celsius == {"cpu-0-0": 41.0}


def test_clean_leaves_the_app(lone_phone: AppPhone, bundle: Bundle) -> None:
    lone_phone.reached.device.push(bundle)
    lone_phone.reached.device.clean()
    assert not lone_phone.reached.root.path(ROOT).exists()
    assert lone_phone.path(f"app/{APP_ID}/base.apk").exists()


def test_what_is_no_option_or_no_file_is_a_mistake_of_the_caller(
    lone_phone: AppPhone, bundle: Bundle
) -> None:
    with opened(lone_phone, bundle) as run:
        for word in ("speed=3", "iterations=x", "program={bundle}/../x"):
            with pytest.raises(ValueError, match=r"speed|iterations|program"):
                run.run([word], LIMIT_S)


def test_the_results_are_the_runners_part_alone(
    lone_phone: AppPhone, bundle: Bundle, tmp_path: Path
) -> None:
    with opened(lone_phone, bundle) as run:
        run.run([], LIMIT_S)
        run.pull("r.json", tmp_path / "r.json")
    assert set(json.loads((tmp_path / "r.json").read_text())) >= {"samples_ms", "threads"}
    assert [path.name for path in tmp_path.glob("*.json*")] == ["r.json"]
