"""Children that a server forks, from the side that orders them; the server is a fake."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from etdeploy.core import cancel
from etdeploy.core.errors import Interrupted
from etdeploy.core.processes.forks import ForkLostError, ForkRefusedError, ForkServer
from etdeploy.core.processes.process import Request, fork_server, run
from tests.support.processes import eventually, is_alive

pytestmark = [
    pytest.mark.usefixtures("real_processes"),
    pytest.mark.skipif(sys.platform != "linux", reason="exports share a process only on Linux"),
]

# Runs the code that an order names, one order at a time.
_SERVER = """
import json, os, socket, sys
control = socket.socket(fileno=int(sys.argv[-1]))
print("ready", os.getpid(), flush=True)
while fds := socket.recv_fds(control, 16, 4)[1]:
    order, channel = json.load(open(fds[0], "rb")), socket.socket(fileno=fds[1])
    code = order["argv"][0]
    if code == "refuse":
        channel.sendall(b"refused not today\\n")
        code = None
    if code == "die":
        os._exit(1)
    child = os.fork() if code else None
    if child == 0:
        os.setsid()
        os.dup2(fds[2], 1)
        os.dup2(fds[2], 2)
        channel.sendall(b"pid %d\\n" % os.getpid())
        channel.close()
        exec(code)
        os._exit(0)
    for descriptor in fds[2:]:  # the file has closed the first
        os.close(descriptor)
    if child:
        _, status = os.waitpid(child, 0)
        channel.sendall(b"ended %d\\n" % os.waitstatus_to_exitcode(status))
    channel.close()
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "server.log"


@pytest.fixture
def server(log: Path) -> Iterator[ForkServer]:
    with fork_server(Request((sys.executable, "-c", _SERVER), log=log)) as made:
        yield made


@pytest.fixture
def stoppable() -> Iterator[None]:
    """Takes a stop request back when the test ends."""
    with cancel.trapped_signals():
        yield


def test_a_fork_is_told_everything_and_its_outcome_comes_back(
    server: ForkServer, tmp_path: Path
) -> None:
    code = (
        "print(order['argv'][1], order['cwd'], order['env']['ETDEPLOY_NEW'], flush=True)\n"
        "os.write(2, b'and its errors'); os._exit(3)"
    )
    lines: list[str] = []
    log = tmp_path / "fork.log"
    request = Request(
        (code, "word"), tmp_path, {"ETDEPLOY_NEW": "new"}, log=log, on_line=lines.append
    )
    outcome = run(request, server)
    assert (outcome.exit_code, outcome.timed_out) == (3, False)
    assert lines == [f"word {tmp_path} new", "and its errors"]
    assert outcome.stdout == f"word {tmp_path} new\nand its errors"
    assert "and its errors[exit 3 after " in log.read_text()


def test_an_environment_may_be_larger_than_a_socket_holds(server: ForkServer) -> None:
    code = "print(len(order['env']['ETDEPLOY_LONG']), flush=True)"
    outcome = run(Request((code,), env={"ETDEPLOY_LONG": "x" * 4_000_000}), server)
    assert outcome.stdout == "4000000\n"


def test_a_time_limit_ends_it(server: ForkServer) -> None:
    code = "import time; time.sleep(600)"
    outcome = run(Request((code,), timeout_s=0.1), server)
    assert outcome.timed_out
    assert outcome.signal_name == "SIGTERM"


def test_a_server_that_is_gone_takes_nothing(server: ForkServer) -> None:
    for _ in range(2):
        with pytest.raises(ForkRefusedError, match="it has ended"):
            run(Request(("die",)), server)


def test_the_end_of_the_server_ends_its_child(server: ForkServer, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    code = (
        f"open({str(pid_file)!r}, 'w').write(str(os.getpid()))\n"
        "os.kill(os.getppid(), 9)\nimport time; time.sleep(600)"
    )
    with pytest.raises(ForkLostError):
        run(Request((code,)), server)
    assert eventually(lambda: not is_alive(int(pid_file.read_text())))


@pytest.mark.usefixtures("stoppable")
def test_a_stop_ends_the_child_and_what_that_started(server: ForkServer) -> None:
    code = (
        "import time\ngrandchild = os.fork()\n"
        "if grandchild: print(os.getpid(), grandchild, flush=True)\ntime.sleep(600)"
    )
    pids: list[int] = []

    def stop(line: str) -> None:
        pids.extend(map(int, line.split()))
        cancel.request()

    with pytest.raises(Interrupted):
        run(Request((code,), on_line=stop), server)
    assert eventually(lambda: not any(map(is_alive, pids)))


@pytest.mark.usefixtures("stoppable")
def test_a_stop_does_not_wait_for_a_server_that_is_not_ready() -> None:
    slow = (sys.executable, "-c", "import time; time.sleep(600)")
    with fork_server(Request(slow)) as server:
        # The flag alone, as for one run of several: nobody ends the server.
        threading.Timer(0.2, cancel.current().set).start()
        with pytest.raises(Interrupted):
            run(Request(("os._exit(0)",)), server)


def test_the_server_ends_with_the_block_and_its_output_is_in_the_log(log: Path) -> None:
    with fork_server(Request((sys.executable, "-c", _SERVER), log=log)) as server:
        run(Request(("os._exit(0)",)), server)
    [line] = [line for line in log.read_text().splitlines() if line.startswith("ready ")]
    assert not is_alive(int(line.split()[1]))


def test_nothing_outlives_a_run_that_is_killed(tmp_path: Path) -> None:
    child = "open(order['argv'][1], 'w').write(f'{os.getpid()} {os.getppid()}')\n"
    child += "import time; time.sleep(600)"
    request = f"Request(({child!r}, {str(tmp_path / 'pids')!r}))"
    code = (
        "import sys; from etdeploy.core.processes.process import Request, fork_server, run\n"
        f"with fork_server(Request((sys.executable, '-c', {_SERVER!r}))) as server:\n"
        f"    run({request}, server)"
    )
    killed: list[int] = []

    def kill() -> None:
        assert eventually(lambda: len(_pids(tmp_path)) == 2)
        server = _pids(tmp_path)[1]
        # Whose parent is the run.
        killed.append(int(Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()[1]))
        os.kill(killed[0], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    assert run(Request((sys.executable, "-c", code))).signal_name == "SIGKILL"
    thread.join()
    assert eventually(lambda: not any(map(is_alive, _pids(tmp_path))))


def _pids(folder: Path) -> list[int]:
    path = folder / "pids"
    return [int(word) for word in path.read_text().split()] if path.exists() else []


def test_no_descriptor_is_left(server: ForkServer) -> None:
    run(Request(("os._exit(0)",)), server)
    before = _descriptors()
    assert run(Request(("os._exit(0)",)), server).ok
    with pytest.raises(ForkRefusedError, match="not today"):
        run(Request(("refuse",)), server)
    assert run(Request(("os.kill(os.getpid(), 11)",)), server).signal_name == "SIGSEGV"
    assert _descriptors() == before


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
