"""A board behind a stand-in for ssh, which runs what it is sent with this machine's sh."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest

from etdeploy.core.errors import DeviceError
from etdeploy.devices.base import Bundle, ConversingRun, Device, StreamingRun
from etdeploy.devices.bundles import bundle_digest
from etdeploy.devices.registry import open_device
from etdeploy.devices.remote import store
from tests.support.bundles import make_bundle, of_size
from tests.support.processes import eventually

SSH = r"""#!/bin/sh
for word; do [ "$option" != -S ] || socket=$word; option=$word; done
[ ! -e ~/refuse ] || { cat ~/refuse >&2; exit 255; }
case " $* " in
*" -G "*) ;;
*" -M "*) : >"$socket"; exec sleep 600;;
*) exec setsid --wait sh -c "$word";;
esac
"""
PROGRAM = r"""#!/bin/sh
echo "out $1"; echo "err $GREETING" >&2
case $1 in
exit) exit $2;;
crash) kill -SEGV $$;;
hang) sleep 600;;
write) mkdir -p "$2" && echo content >"$2/it's";;
await) until [ -s answer ]; do sleep 0.02; done; cat answer;;
talk) while read -r line; do [ "$line" != end ] || exit 5; echo "heard $line"; done;;
esac
"""
MIB = 1 << 20


@pytest.fixture
def home(real_processes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home, tools = tmp_path / "it's home", tmp_path / "tools"
    for folder in (home, tools):
        folder.mkdir()
    (tools / "ssh").write_text(SSH)
    (tools / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", str(tools), prepend=":")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return home


@pytest.fixture
def kept(home: Path) -> Path:
    """Where etdeploy keeps things on the board."""
    return home / ".cache" / "etdeploy"


@pytest.fixture
def board(home: Path) -> Iterator[Device]:
    with closing(open_device("ssh:board")) as device:
        yield device


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    (tmp_path / "fate").write_text(PROGRAM)
    files = {"fate": tmp_path / "fate", "in/it's": of_size(tmp_path, 300_000)}
    return make_bundle(files, environment={"GREETING": "from {bundle}"})


def test_facts_identity_and_state_are_this_machines(board: Device) -> None:
    facts = board.facts()
    assert (facts.kind, facts.cpu_count) == ("ssh", os.cpu_count())
    assert board.capabilities.is_here
    assert board.identity.startswith("ssh-")
    assert board.state().free_storage_bytes


def test_a_push_is_verified_and_not_repeated(board: Device, kept: Path, bundle: Bundle) -> None:
    report = board.push(bundle)
    assert (report.pushed_files, report.kept_files) == (2, 0)
    program, data = (kept / "store" / file.sha256 for file in bundle.files)
    assert os.access(program, os.X_OK)
    assert board.push(bundle).pushed_files == 0
    data.write_bytes(b"other")
    os.utime(program)
    report = board.push(bundle)
    assert (report.pushed_files, report.kept_files) == (1, 1)
    assert eventually(lambda: not list((kept / "incoming").iterdir()))
    assert board.clean()["store"] > 300_000
    assert not kept.exists()


def test_the_least_recently_used_bundle_makes_room(
    board: Device, kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ETDEPLOY_DEVICE_STORE_MAX", "3 MB")
    old, new = (make_bundle({x: of_size(tmp_path, 2 * MIB, x)}, (x,)) for x in ("old", "new"))
    board.push(old)
    os.utime(kept / "uses" / bundle_digest(old), (0, 0))
    assert board.push(new).removed_bytes == 2 * MIB


def test_a_source_that_changed_meanwhile_is_named(
    board: Device, bundle: Bundle, tmp_path: Path
) -> None:
    Path(bundle.files[1].source).write_bytes(b"x" * 300_000)
    with pytest.raises(DeviceError, match="/big is not the file"):
        board.push(bundle)


@pytest.mark.parametrize("damage", [False, True])
def test_a_large_file_is_resumed_in_parts(
    board: Device, kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: bool
) -> None:
    monkeypatch.setattr(store, "PART_BYTES", 2 * MIB)
    large = make_bundle({"large": of_size(tmp_path, 9 * MIB)}, ("large",))

    def stop(text: str, fraction: float | None = None) -> None:
        if text.startswith("verifying"):
            raise RuntimeError

    with pytest.raises(RuntimeError):
        board.push(large, stop)
    [part] = (kept / "partial").iterdir()
    if damage:
        with part.open("r+b") as file:
            file.write(b"damaged")
    report = board.push(large)
    assert report.resumed_bytes == (7 if damage else 9) * MIB
    assert report.pushed_bytes == 9 * MIB - report.resumed_bytes
    assert (kept / "store" / large.files[0].sha256).stat().st_size == 9 * MIB


@pytest.mark.parametrize(
    ("arguments", "code", "name"),
    [(["exit", "5"], 5, None), (["crash"], 139, "SIGSEGV"), (["hang"], None, None)],
)
def test_a_run_ends_with_exit_code_signal_or_time_limit(
    board: Device, kept: Path, bundle: Bundle, arguments: list[str], code: int, name: str | None
) -> None:
    board.push(bundle)
    with board.open_run(bundle, "r1") as run:
        outcome = run.run(arguments, 20 if code else 0.5)
        assert run.run(["hang"], 0.001).timed_out
    assert (outcome.exit_code, outcome.signal_name) == (code, name)
    assert outcome.timed_out is (code is None)
    assert outcome.stdout == f"out {arguments[0]}\n"
    assert str(kept / "bundles") in outcome.stderr
    assert not list((kept / "runs").iterdir())


def test_files_go_to_a_run_and_come_back(board: Device, bundle: Bundle, tmp_path: Path) -> None:
    board.push(bundle)
    with board.open_run(bundle, "r1") as run:
        run.run(["write", "out/deep"], 20)
        run.pull("out", tmp_path / "out")
        run.pull("out/deep/it's", tmp_path / "one")
        with pytest.raises(DeviceError, match="missing"):
            run.pull("missing", tmp_path / "missing")
    assert (tmp_path / "one").read_text() == "content\n"
    assert (tmp_path / "out" / "deep" / "it's").read_text() == "content\n"


def test_output_is_streamed_and_a_program_is_talked_with(
    board: Device, bundle: Bundle, tmp_path: Path
) -> None:
    (tmp_path / "answer").write_text("one\n")
    board.push(bundle)
    lines: list[str] = []
    with board.open_run(bundle, "r1") as opened:
        run = cast(ConversingRun, opened)

        def take(line: str) -> None:
            lines.append(line)
            if line == "out await":
                cast(StreamingRun, opened).put(tmp_path / "answer", "answer")

        assert run.stream(["await"], 20, take).exit_code == 0
        assert lines == ["out await", "one"]
        with run.converse(["talk"]) as talk:
            talk.write_line("it's")
            assert [talk.read_line(20) for _ in range(2)] == ["out talk", "heard it's"]
            with pytest.raises(TimeoutError):
                talk.read_line(0.1)
            talk.write_line("end")
            assert talk.read_line(20) is None
            assert talk.end().exit_code == 5
        with run.converse(["hang"]) as talk:
            assert talk.end().timed_out


def test_a_runner_of_an_earlier_run_is_ended(board: Device, kept: Path) -> None:
    program = make_bundle({"sleep": Path("/bin/sleep")}, executable=("sleep",))
    board.push(program)
    folder = kept / "runs" / "earlier"
    folder.mkdir()
    argv = [str(kept / "bundles" / bundle_digest(program) / "sleep"), "600"]
    with subprocess.Popen(argv, cwd=folder) as left:
        assert [leftover.run_id for leftover in board.end_leftovers()] == ["earlier"]
        assert left.wait(10) == -9
    assert board.end_leftovers() == ()


@pytest.mark.parametrize(
    ("said", "command"),
    [
        ("Host key verification failed.", "ssh"),
        ("board: Permission denied (publickey).", "ssh-copy-id"),
        ("ssh: Could not resolve hostname board: Name or service not known", "ssh"),
        ("kex_exchange_identification: read: Connection reset by peer", "ssh"),
    ],
)
def test_a_refused_connection_has_a_remedy(
    home: Path, board: Device, said: str, command: str
) -> None:
    (home / "refuse").write_text(f"{said}\n")
    with pytest.raises(DeviceError) as caught:
        board.facts()
    assert caught.value.place == "ssh:board"
    assert command in str(caught.value.remedy)
