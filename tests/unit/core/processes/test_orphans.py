"""What goes with a run that was killed: its children, and what they started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from etdeploy.core.processes import orphans
from tests.support.processes import eventually, is_alive

_PARENT = """
import sys, threading
from etdeploy.core.processes.process import Request, run
threads = [threading.Thread(target=run, args=(Request(("bash", "-c", c)),)) for c in sys.argv[1:]]
for thread in threads: thread.start()
"""


def test_what_has_ended_or_could_not_be_started_is_not_left() -> None:
    notes = [b"?7\n", b"+12 7\n", b"?8\n", b"+34 8\n", b"-12\n", b"?9\n", b"!9\n"]
    assert orphans.watch(notes) == ({34}, set())
    assert orphans.watch([*notes, b"-34\n"]) == (set(), set())
    assert orphans.watch([*notes, b"?10\n"]) == ({34}, {10})


def test_descendants_go_with_their_session_and_nobody_else() -> None:
    parents = {10: 1, 11: 10, 12: 11, 13: 12, 20: 1, 21: 20, 30: 10}
    sessions = {10: 10, 11: 10, 12: 12, 13: 12, 20: 20, 21: 20, 30: 10}
    assert orphans.members({10}, parents, sessions) == {10, 11, 12, 13, 30}
    # The leader has ended, a part of its session has not.
    assert orphans.members({9}, {40: 1, 41: 40}, {40: 9, 41: 41}) == {40, 41}
    assert orphans.members({9}, parents, sessions) == set()


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Kills what a failing test leaves."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for parent in started:
        parent.kill()
        parent.wait()
    for note in tmp_path.glob("*.pid"):
        try:
            os.kill(int(note.read_text()), signal.SIGKILL)
        except ProcessLookupError:
            continue


def start(folder: Path, *scripts: str) -> subprocess.Popen[bytes]:
    code = [sys.executable, "-c", _PARENT, *(s.format(folder=folder) for s in scripts)]
    return subprocess.Popen(code, stderr=subprocess.DEVNULL)


def noted(folder: Path, *names: str) -> list[int]:
    """The process ids that the scripts noted."""
    paths = [folder / f"{name}.pid" for name in names]
    assert eventually(lambda: all(p.is_file() and p.read_text().strip() for p in paths))
    return [int(p.read_text()) for p in paths]


def script(name: str, then: str) -> str:
    """Notes its process id and goes on."""
    return f'echo $BASHPID > "{{folder}}/{name}.pid"; {then}'


@pytest.mark.usefixtures("real_processes")
def test_a_killed_run_takes_children_and_their_children_along(
    tmp_path: Path, killed: list[subprocess.Popen[bytes]]
) -> None:
    own_session = "setsid bash -c 'echo $BASHPID > \"{folder}/session.pid\"; exec sleep 600' & wait"
    stubborn = "trap '' TERM HUP INT; while :; do sleep 0.05; done"
    killed.append(start(tmp_path, script("one", own_session), script("two", stubborn)))
    pids = noted(tmp_path, "one", "session", "two")
    assert all(map(is_alive, pids))
    killed[0].kill()
    assert eventually(lambda: not any(map(is_alive, pids)))


@pytest.mark.usefixtures("real_processes")
def test_a_killed_run_takes_a_build_along(
    tmp_path: Path, killed: list[subprocess.Popen[bytes]]
) -> None:
    # Ninja gives each of its commands a process group, and cannot tell them when it is killed.
    rules = [
        f"rule {name}\n command = echo $$$$ > {name}.pid; exec sleep 600\nbuild {name}: {name}\n"
        for name in ("one", "two")
    ]
    (tmp_path / "build.ninja").write_text(
        "".join(rules) + "build all: phony one two\ndefault all\n"
    )
    ninja = Path(sys.executable).with_name("ninja")
    killed.append(start(tmp_path, script("ninja", f'cd "{{folder}}"; exec "{ninja}" -j2')))
    pids = noted(tmp_path, "ninja", "one", "two")
    killed[0].kill()
    assert eventually(lambda: not any(map(is_alive, pids)))


@pytest.mark.usefixtures("real_processes")
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows who holds a pipe")
def test_a_run_that_is_killed_while_it_starts_a_child_takes_it_along(
    tmp_path: Path, killed: list[subprocess.Popen[bytes]]
) -> None:
    code = (
        "import os, subprocess, sys; from etdeploy.core.processes import process\n"
        "class Killed(subprocess.Popen):\n"
        "    def __init__(self, argv, **options):\n"
        "        super().__init__(argv, **options)\n"
        "        if argv[0] == 'bash':\n"
        "            while not os.path.exists('one.pid'): pass\n"
        "            os.kill(os.getpid(), 9)\n"
        "process.subprocess.Popen = Killed\n"
        "process.run(process.Request(('bash', '-c', sys.argv[1])))"
    )
    note = "echo $BASHPID > new; mv new one.pid; exec sleep 600"
    killed.append(subprocess.Popen([sys.executable, "-c", code, note], cwd=tmp_path))
    assert killed[0].wait() == -signal.SIGKILL
    pids = noted(tmp_path, "one")
    assert eventually(lambda: not any(map(is_alive, pids)))


@pytest.mark.usefixtures("real_processes")
def test_a_run_that_ends_by_itself_leaves_no_watcher(tmp_path: Path) -> None:
    code = (
        "from etdeploy.core.processes import process\n"
        "process.run(process.Request(('true',)))\n"
        "print(process._watcher[0].pid)"
    )
    python = [sys.executable, "-X", "dev", "-c", code]
    done = subprocess.run(python, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert eventually(lambda: not is_alive(int(done.stdout)))
