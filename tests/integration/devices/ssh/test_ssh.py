"""Boards over ssh, against a real sshd."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from etdeploy.core import cancel
from etdeploy.core.errors import DeviceError, Interrupted
from etdeploy.devices.base import Bundle, Device, lock_name
from etdeploy.devices.registry import open_device
from etdeploy.devices.remote import run as run_module
from tests.support.bundles import compile_program, make_bundle, of_size
from tests.support.processes import eventually
from tests.support.sshd import MakeBoard, SshBoard, make_board, make_key
from tests.support.streams import awaited, is_whole, talked, was_talk

pytestmark = pytest.mark.integration

__all__ = ["make_board"]


@pytest.fixture
def board(make_board: MakeBoard) -> SshBoard:
    return make_board()


@pytest.fixture
def device(board: SshBoard) -> Iterator[Device]:
    device = open_device(board.spec)
    yield device
    device.close()


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_program(tmp_path_factory.mktemp("program"), "gcc", "-static")


@pytest.fixture
def bundle(program: Path, tmp_path: Path) -> Bundle:
    data, empty = tmp_path / "data.bin", tmp_path / "empty.bin"
    data.write_bytes(os.urandom(300_000))
    empty.write_bytes(b"")
    files = {"fate": program, "inputs/it's 0!.bin": data, "inputs/copy.bin": data, "empty": empty}
    return make_bundle(files, environment={"GREETING": "from {bundle} it's \\ !"})


@pytest.fixture(autouse=True)
def no_request_left() -> Iterator[None]:
    """A stop request of one test must not stop the next."""
    yield
    with cancel.trapped_signals():
        pass


def refusal(spec: str) -> DeviceError:
    """What asking a board for its facts raises."""
    device = open_device(spec)
    with contextlib.closing(device), pytest.raises(DeviceError) as caught:
        device.facts()
    assert caught.value.place == spec
    return caught.value


def last_command(error: DeviceError) -> list[str]:
    """The words of the last line of a remedy, which is a command."""
    return shlex.split(str(error.remedy).splitlines()[-1])


def test_facts_and_state_are_the_boards_own(device: Device, board: SshBoard) -> None:
    facts = device.facts()
    assert (facts.name, facts.kind, facts.connection) == (board.spec, "ssh", "ssh")
    assert facts.target.startswith(f"linux-{os.uname().machine}")
    assert facts.cpu_count == os.cpu_count()
    assert facts.memory_bytes
    assert os.uname().release in str(facts.fingerprint)
    assert device.state().load_average is not None


def test_a_board_has_one_identity_by_alias_address_and_user(
    device: Device, board: SshBoard
) -> None:
    by_address = open_device(f"ssh:{board.address}")
    elsewhere = open_device(f"ssh:{board.address}:/tmp")
    with contextlib.closing(by_address), contextlib.closing(elsewhere):
        assert device.identity == by_address.identity == elsewhere.identity


def test_a_board_that_is_this_machine_shares_its_processors(device: Device) -> None:
    assert device.capabilities.is_here
    assert lock_name(device) == lock_name(open_device("host"))


def test_a_push_is_verified_has_modes_and_is_not_repeated(
    device: Device, board: SshBoard, bundle: Bundle
) -> None:
    texts: list[str] = []
    report = device.push(bundle, lambda text, _=None: texts.append(text))
    assert (report.pushed_files, report.kept_files) == (3, 0)
    assert "verifying fate" in texts
    for file in bundle.files:
        there = board.kept / "store" / file.sha256
        assert there.read_bytes() == Path(file.source).read_bytes()
        assert there.stat().st_mode & 0o777 == (0o755 if file.executable else 0o644)
    again = device.push(bundle)
    assert (again.pushed_files, again.kept_files) == (0, 3)
    # A push does not wait until its shell has tidied up.
    assert eventually(lambda: not list((board.kept / "incoming").iterdir()))
    assert device.clean()["store"] > 300_000
    assert not board.kept.exists()


@pytest.mark.parametrize(
    ("arguments", "code", "name"),
    [(["exit", "5"], 5, None), (["crash"], 139, "SIGSEGV"), (["exit", "255"], 255, None)],
)
def test_a_run_ends_with_the_programs_exit_code_or_signal(
    device: Device, bundle: Bundle, arguments: list[str], code: int, name: str | None
) -> None:
    device.push(bundle)
    with device.open_run(bundle, "r1") as run:
        outcome = run.run(arguments, 20)
    assert (outcome.exit_code, outcome.signal_name) == (code, name)
    assert outcome.stdout == f"out {arguments[0]}\n"
    assert outcome.stderr.startswith("err from /")
    assert outcome.stderr.endswith(" it's \\ !\n")
    assert outcome.out_of_memory is False


def test_a_time_limit_ends_the_program_and_its_children(
    device: Device, board: SshBoard, bundle: Bundle
) -> None:
    device.push(bundle)
    with device.open_run(bundle, "r1") as run:
        outcome = run.run(["hang"], 0.5)
    assert (outcome.timed_out, outcome.exit_code, outcome.stdout) == (True, None, "out hang\n")
    assert eventually(lambda: not board.processes("fate"))
    assert not list((board.kept / "runs").iterdir())


def test_output_is_heard_while_the_program_runs(
    device: Device, bundle: Bundle, tmp_path: Path
) -> None:
    heard = awaited(device, bundle, tmp_path)
    assert is_whole(*heard), heard


def test_a_program_is_talked_with(device: Device, board: SshBoard, bundle: Bundle) -> None:
    found = talked(device, bundle)
    assert was_talk(*found), found
    assert eventually(lambda: not board.processes("fate"))


def test_a_stop_ends_the_program_and_cleans_up(
    device: Device, board: SshBoard, bundle: Bundle
) -> None:
    device.push(bundle)
    with cancel.trapped_signals():
        timer = threading.Timer(0.7, cancel.request)
        timer.start()
        with pytest.raises(Interrupted), device.open_run(bundle, "r1") as run:
            run.run(["hang"], 60)
        timer.join()
        assert not list((board.kept / "runs").iterdir())
    assert eventually(lambda: not board.processes("fate"))


@contextlib.contextmanager
def running_elsewhere(
    board: SshBoard, bundle: Bundle, folder: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Another etdeploy whose program hangs; the program itself runs when this is entered."""
    bundle.save(folder / "bundle.json")
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from etdeploy.devices.base import Bundle\n"
        "from etdeploy.devices.registry import open_device\n"
        "bundle = Bundle.load(Path(sys.argv[2]))\n"
        "with open_device(sys.argv[1]).open_run(bundle, 'other') as run:\n"
        "    run.run(['hang'], 60)\n"
    )
    argv = [sys.executable, "-c", code, board.spec, str(folder / "bundle.json")]
    other = subprocess.Popen(argv)
    try:
        # The shell that starts the program has the program's name in its own command line.
        assert eventually(lambda: any(x.endswith("/fate hang") for x in board.processes("fate")))
        yield other
    finally:
        other.kill()
        other.wait()


def test_the_program_ends_with_the_etdeploy_that_started_it(
    device: Device, board: SshBoard, bundle: Bundle, tmp_path: Path
) -> None:
    device.push(bundle)
    with (
        running_elsewhere(board, bundle, tmp_path),
        pytest.raises(DeviceError, match="other, process "),
    ):
        device.end_leftovers()
    assert eventually(lambda: not board.processes("fate"))


def test_a_board_that_hears_nothing_of_the_end_ends_the_program_by_itself(
    device: Device, board: SshBoard, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "_LOST_S", 2)
    device.push(bundle)
    timer = threading.Timer(0.5, board.freeze)
    timer.start()
    with (
        pytest.raises(DeviceError, match=r"away|stopped"),
        device.open_run(bundle, "r1") as run,
    ):
        run.run(["hang"], 1)
    timer.join()
    assert eventually(lambda: not board.processes("fate"))


def test_nothing_of_a_run_goes_on_after_it(device: Device, board: SshBoard, bundle: Bundle) -> None:
    device.push(bundle)
    with device.open_run(bundle, "r1") as run:
        assert run.run(["exit", "0"], 54321).exit_code == 0
    assert "sleep 54381" not in "".join(path.read_text() for path in cmdlines())


def cmdlines() -> Iterator[Path]:
    """Of everything that runs on this machine."""
    return Path("/proc").glob("[0-9]*/cmdline")


def test_a_runner_that_nobody_watches_is_ended_and_named(
    device: Device, board: SshBoard, bundle: Bundle
) -> None:
    device.push(bundle)
    [folder] = (board.kept / "bundles").iterdir()
    runs = board.kept / "runs" / "20260101-mlp"
    runs.mkdir()
    left = subprocess.Popen([folder / "fate", "hang"], cwd=runs, stdout=subprocess.DEVNULL)
    try:
        assert eventually(lambda: len(board.processes("fate")) == 2)
        assert {found.run_id for found in device.end_leftovers()} == {"20260101-mlp"}
        assert not board.processes("fate")
        assert device.end_leftovers() == ()
    finally:
        left.kill()
        left.wait()


def test_a_board_that_goes_in_mid_push_is_named_and_the_rest_is_kept(
    device: Device, board: SshBoard, tmp_path: Path
) -> None:
    first, second = of_size(tmp_path, 1 << 20, "first"), of_size(tmp_path, 60 << 20, "second")
    bundle = make_bundle({"first": first, "second": second}, ("first",))

    def stop(text: str, fraction: float | None = None) -> None:
        if text == "pushing second":
            board.stop()

    with pytest.raises(DeviceError) as caught:
        device.push(bundle, stop)
    assert "pushing second" in caught.value.message
    board.start()
    assert eventually(lambda: not list((board.kept / "incoming").iterdir()))
    report = device.push(bundle)
    assert (report.pushed_files, report.kept_files) == (1, 1)


def test_a_board_that_goes_in_mid_run_is_named(
    device: Device, board: SshBoard, bundle: Bundle
) -> None:
    device.push(bundle)
    timer = threading.Timer(0.7, board.stop)
    timer.start()
    with (
        pytest.raises(DeviceError, match="went away"),
        device.open_run(bundle, "r1") as run,
    ):
        run.run(["hang"], 60)
    timer.join()
    assert eventually(lambda: not board.processes("fate"))


def test_a_program_finds_the_libraries_beside_it(
    device: Device, board: SshBoard, tmp_path: Path
) -> None:
    (tmp_path / "lib.c").write_text("int answer(void) { return 42; }\n")
    (tmp_path / "main.c").write_text("int answer(void);\nint main(void) { return answer(); }\n")
    library, program = tmp_path / "libanswer.so", tmp_path / "main"
    for source, output, *options in (
        ("lib.c", library, "-shared", "-fPIC", "-Wl,-soname,libanswer.so"),
        ("main.c", program, str(library), "-Wl,-rpath,$ORIGIN"),
    ):
        gcc = ["gcc", str(tmp_path / source), *options, "-o", str(output)]
        subprocess.run(gcc, check=True)
    files = {"bin/main": program, "bin/libanswer.so": library}
    bundle = make_bundle(files, ("bin/main",), ("bin/main",))
    device.push(bundle)
    with device.open_run(bundle, "r1") as run:
        assert run.run([], 20).exit_code == 42
    assert device.push(bundle).pushed_files == 0


def test_several_files_travel_at_once_over_one_connection(
    device: Device, board: SshBoard, bundle: Bundle, tmp_path: Path
) -> None:
    device.push(bundle)
    others = [make_bundle({"x": of_size(tmp_path, 1 << 20, f"f{i}")}, ("x",)) for i in range(3)]
    threads = [threading.Thread(target=device.push, args=(other,)) for other in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((board.kept / "store" / other.files[0].sha256).is_file() for other in others)
    log = (board.folder / "sshd.log").read_text()
    assert log.count("Accepted publickey") == 1


@pytest.mark.parametrize("shell", ["dash", "fish", "tcsh", "busybox sh"])
def test_any_login_shell_will_do(
    board: SshBoard, device: Device, bundle: Bundle, shell: str
) -> None:
    if subprocess.run(["which", shell.split()[0]], capture_output=True, check=False).returncode:
        pytest.skip(f"needs {shell}")
    key = (board.folder / "user_key.pub").read_text()
    forced = f'command="exec {shell} -c \\"$SSH_ORIGINAL_COMMAND\\""'
    (board.folder / "authorized_keys").write_text(f"{forced} {key}")
    device.push(bundle)
    with device.open_run(bundle, "r1") as run:
        outcome = run.run(["exit", "3"], 20)
    assert (outcome.exit_code, outcome.stdout) == (3, "out exit\n")
    assert outcome.stderr.endswith(" it's \\ !\n")


def test_a_login_shell_may_print_things(
    board: SshBoard, device: Device, bundle: Bundle, tmp_path: Path
) -> None:
    (board.home / ".bashrc").write_text("echo Welcome; echo '#uname'; echo trouble >&2\n")
    assert device.facts().cpu_count == os.cpu_count()
    device.push(bundle)
    with device.open_run(bundle, "r1") as run:
        run.run(["write", "new", "content"], 20)
        run.pull("new", tmp_path / "new")
    assert (tmp_path / "new").read_text() == "content"


def test_a_bundle_of_many_files_is_longer_than_an_argument_may_be(
    device: Device, board: SshBoard, tmp_path: Path
) -> None:
    data = of_size(tmp_path, 10)
    files = {f"folder/{i:04d}-{'x' * 100}": data for i in range(1000)}
    assert device.push(make_bundle(files)).pushed_files == 1
    [folder] = (board.kept / "bundles").iterdir()
    assert len(list((folder / "folder").iterdir())) == 1000


def test_a_board_without_sha256sum_is_read_back(make_board: MakeBoard, bundle: Bundle) -> None:
    board = make_board()
    board.stop()
    board.start([board.set_tools({}, without=["sha256sum"])])
    with contextlib.closing(open_device(board.spec)) as device:
        assert device.push(bundle).pushed_files == 3
        assert device.push(bundle).pushed_files == 0


def test_a_host_key_that_is_not_known(board: SshBoard) -> None:
    (board.folder / "known_hosts").unlink()
    error = refusal(board.spec)
    assert "not known" in error.message
    assert last_command(error) == ["ssh", "-F", str(board.config), "test-board"]


def test_a_host_key_that_changed_is_forgotten_by_the_command_that_is_named(
    board: SshBoard,
) -> None:
    make_key(board.folder / "other")
    other = (board.folder / "other.pub").read_text()
    (board.folder / "known_hosts").write_text(f"[127.0.0.1]:{board.port} {other}")
    error = refusal(board.spec)
    assert "reinstalled" in error.message
    forget = shlex.split(str(error.remedy).splitlines()[-2])
    subprocess.run(forget, check=True, capture_output=True)
    assert "not known" in refusal(board.spec).message


def test_a_key_that_the_board_does_not_know(board: SshBoard) -> None:
    make_key(board.folder / "other")
    (board.folder / "authorized_keys").write_text((board.folder / "other.pub").read_text())
    error = refusal(f"ssh:{board.address}")
    assert "(it accepts publickey)" in error.message
    user, _, port = board.address.replace("127.0.0.1:", "").partition("@")
    copy = f"ssh-copy-id -F {shlex.quote(str(board.config))} -p {port} {user}@127.0.0.1"
    assert copy in str(error.remedy)


def test_a_key_with_a_passphrase_never_asks(board: SshBoard) -> None:
    key = board.folder / "user_key"
    argv = ["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", str(key)]
    subprocess.run(argv, check=True, capture_output=True)
    assert "ssh-add" in str(refusal(board.spec).remedy)


def test_nothing_listens(board: SshBoard) -> None:
    board.stop()
    error = refusal(board.spec)
    assert f"port {board.port} of 127.0.0.1" in error.message
    assert "ssh:test-board:PORT" in str(error.remedy)


@pytest.mark.parametrize("command", ["echo go away", "exit 3", "/usr/sbin/nologin"])
def test_a_forced_command(board: SshBoard, command: str) -> None:
    key = (board.folder / "user_key.pub").read_text()
    (board.folder / "authorized_keys").write_text(f'command="{command}" {key}')
    error = refusal(board.spec)
    assert "does not run commands" in error.message
    assert "`command=`" in str(error.remedy)


def test_ssh_that_is_not_installed(board: SshBoard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    error = refusal(board.spec)
    assert "not installed" in error.message
    assert str(error.remedy).endswith("install openssh-client")


def test_a_configuration_that_ssh_refuses(board: SshBoard) -> None:
    board.write_config("Nonsense yes")
    assert "configuration" in refusal(board.spec).message


def test_too_few_sessions(make_board: MakeBoard, bundle: Bundle) -> None:
    board = make_board(["MaxSessions 1"])
    with (
        contextlib.closing(open_device(board.spec)) as device,
        pytest.raises(DeviceError, match="too few commands") as caught,
    ):
        device.push(bundle)
    assert "MaxSessions" in str(caught.value.remedy)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("noexec,size=8m", "on the board: it is mounted with noexec"),
        ("ro,size=8m", "on the board: it is read-only, full, or another's"),
    ],
)
def test_a_home_that_cannot_be_used_and_the_folder_that_can(
    make_board: MakeBoard, bundle: Bundle, options: str, told: str
) -> None:
    board = make_board(mounted=options)
    with (
        contextlib.closing(open_device(board.spec)) as device,
        pytest.raises(DeviceError) as caught,
    ):
        device.push(bundle)
    assert told in caught.value.message
    [named] = [line for line in str(caught.value.remedy).splitlines() if "--device" in line]
    _, other = shlex.split(named)
    assert not Path(other.rpartition(":")[2], "etdeploy").exists()
    with contextlib.closing(open_device(other)) as device:
        try:
            assert device.push(bundle).pushed_files == 3
            with device.open_run(bundle, "r1") as run:
                assert run.run(["exit", "4"], 20).exit_code == 4
        finally:
            device.clean()


def test_a_folder_that_belongs_to_another(board: SshBoard, bundle: Bundle, tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can make a folder that belongs to another user")
    (tmp_path / "etdeploy").mkdir()
    os.chown(tmp_path / "etdeploy", 1234, 1234)
    with (
        contextlib.closing(open_device(f"{board.spec}:{tmp_path}")) as device,
        pytest.raises(DeviceError, match="belongs to another user"),
    ):
        device.push(bundle)


def test_no_room_is_told_and_what_is_there_can_be_removed(
    make_board: MakeBoard, tmp_path: Path
) -> None:
    board = make_board(mounted="size=8m")
    with contextlib.closing(open_device(board.spec)) as device:
        with pytest.raises(DeviceError, match=r"needs 20\.0 MB .* free"):
            device.push(make_bundle({"big": of_size(tmp_path, 20_000_000)}, ("big",)))
        device.push(make_bundle({"small": of_size(tmp_path, 1_000_000, "small")}, ("small",)))
        with contextlib.suppress(OSError), (board.home / "fill").open("wb", buffering=0) as file:
            while file.write(bytes(1 << 14)):
                pass
        assert device.clean()["store"] >= 1_000_000


def test_a_folder_with_a_space_and_a_quote(board: SshBoard, bundle: Bundle, tmp_path: Path) -> None:
    folder = tmp_path / "it's my disk"
    folder.mkdir()
    with contextlib.closing(open_device(f"{board.spec}:{folder}")) as device:
        assert device.push(bundle).pushed_files == 3
        with device.open_run(bundle, "r1") as run:
            assert run.run(["exit", "4"], 20).exit_code == 4
        assert not board.kept.exists()
        device.clean()
    assert not list(folder.iterdir())


def test_nothing_is_left_when_the_connection_ends(board: SshBoard, device: Device) -> None:
    device.facts()
    assert board.processes("ssh -F")
    device.close()
    assert eventually(lambda: not board.processes("ssh -F"))
    began = time.monotonic()
    device.facts()  # connects anew
    assert time.monotonic() > began
