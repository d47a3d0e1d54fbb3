"""Processes: what comes back, what a time limit and a stop leave behind, what a log holds."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import IO

import pytest

from etdeploy.core import cancel
from etdeploy.core.errors import Interrupted
from etdeploy.core.processes import conversation, process
from etdeploy.core.processes.conversation import InteractiveProcess
from etdeploy.core.processes.process import Request, run, signal_name
from tests.support.processes import eventually, is_alive

pytestmark = pytest.mark.usefixtures("real_processes")


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


@pytest.fixture
def stoppable() -> Iterator[None]:
    """Takes a stop request back when the test ends."""
    with cancel.trapped_signals():
        yield


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits less for those who do not end."""
    monkeypatch.setattr(process, "_GRACE_S", 0.2)


def test_exit_code_and_both_streams_come_back() -> None:
    code = (
        "import sys; sys.stdout.buffer.write(b'caf\\xe9'); print('err', file=sys.stderr); "
        "sys.exit(3)"
    )
    outcome = run(Request(python(code)))
    assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (3, "caf\ufffd", "err\n")
    assert not outcome.ok
    assert outcome.signal_name is None
    assert run(Request(python(""))).ok


def test_a_signal_has_its_name() -> None:
    outcome = run(Request(python("import os; os.kill(os.getpid(), 11)")))
    assert outcome.signal_name == "SIGSEGV"
    assert signal_name(9) == "SIGKILL"
    assert signal_name(1234) == "signal 1234"


def test_more_output_than_a_pipe_holds_on_both_streams() -> None:
    code = (
        "import sys\n"
        "for _ in range(5000):\n"
        "    sys.stdout.write('x' * 99 + '\\n')\n"
        "    sys.stderr.write('x' * 99 + '\\n')\n"
    )
    outcome = run(Request(python(code)))
    assert len(outcome.stdout) == len(outcome.stderr) == 500_000


def test_folder_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETDEPLOY_GONE", "1")
    code = (
        "import os; print(os.getcwd(), os.environ['ETDEPLOY_NEW'], 'ETDEPLOY_GONE' in os.environ)"
    )
    request = Request(
        python(code), cwd=tmp_path, env={"ETDEPLOY_NEW": "new", "ETDEPLOY_GONE": None}
    )
    assert run(request).stdout == f"{tmp_path.resolve()} new False\n"


def test_each_line_is_told_as_it_comes() -> None:
    lines: list[str] = []
    code = "import sys; print('one', flush=True); print('two', file=sys.stderr)"
    outcome = run(Request(python(code), on_line=lines.append))
    assert lines == ["one", "two"]
    assert (outcome.stdout, outcome.stderr) == ("one\ntwo\n", "")


def test_the_log_has_command_output_and_end_of_each_process(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "task.log"
    for word in ("first", "second"):
        run(Request(("echo", word), log=log))
    lines = log.read_text().splitlines()
    assert [line for line in lines if not line.startswith("[exit 0 after ")] == [
        "$ echo first", "first", "$ echo second", "second",
    ]  # fmt: skip
    assert len(lines) == 6


_FULL = Path("/dev/full")


@pytest.mark.skipif(not _FULL.exists(), reason="needs /dev/full")
def test_a_log_on_a_full_disk_is_named() -> None:
    with pytest.raises(OSError, match="No space left on device") as caught:
        run(Request(("echo", "first"), log=_FULL))
    assert caught.value.filename == str(_FULL)


@pytest.mark.skipif(not _FULL.exists(), reason="needs /dev/full")
def test_a_disk_that_becomes_full_hides_no_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def opened(_: Request) -> Iterator[IO[bytes]]:
        with _FULL.open("ab", buffering=0) as log:
            yield log

    monkeypatch.setattr(process, "_open_log", opened)
    outcome = run(Request(python("print('why'); raise SystemExit(3)"), log=_FULL))
    assert (outcome.exit_code, outcome.stdout) == (3, "why\n")


@pytest.mark.parametrize("asking", [False, True], ids=["told", "asking"])
def test_a_tiny_time_limit_holds(asking: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if asking:
        # As on systems where the kernel cannot tell of the end.
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    assert run(Request(("sleep", "0.02"), timeout_s=0.001)).timed_out
    # No process starts and ends that fast.
    assert run(Request(("true",), timeout_s=1e-9)).timed_out
    outcome = run(Request(("sleep", "0.02"), timeout_s=600))
    assert outcome.ok
    assert outcome.exit_code == 0


def test_a_process_that_ignores_sigterm_is_killed(short_grace: None) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        # It is born with the signal ignored.
        outcome = run(Request(("sleep", "600"), timeout_s=0.1))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert outcome.timed_out
    assert outcome.signal_name == "SIGKILL"


def test_what_a_process_started_ends_with_it(stoppable: None) -> None:
    # The grandchild ignores SIGTERM and keeps the pipe open.
    script = "(trap '' TERM; echo $BASHPID; while :; do sleep 0.05; done) & wait"
    pids: list[int] = []

    def stop(line: str) -> None:
        pids.append(int(line))
        cancel.request()

    with pytest.raises(Interrupted):
        run(Request(("bash", "-c", script), on_line=stop))
    assert eventually(lambda: not is_alive(pids[0]))


def test_a_daemon_that_keeps_the_pipe_is_not_waited_for(tmp_path: Path, short_grace: None) -> None:
    pid_file = tmp_path / "pid"
    code = (
        "import subprocess; p = subprocess.Popen(['sleep', '600'], start_new_session=True);"
        f"open({str(pid_file)!r}, 'w').write(str(p.pid)); print('started')"
    )
    try:
        assert run(Request(python(code))).stdout == "started\n"
        assert is_alive(int(pid_file.read_text())), "what left the group is none of our business"
    finally:
        os.kill(int(pid_file.read_text()), 9)


def test_nothing_starts_after_a_stop_request(tmp_path: Path, stoppable: None) -> None:
    cancel.request()
    with pytest.raises(Interrupted):
        run(Request(("touch", str(tmp_path / "made"))))
    assert not (tmp_path / "made").exists()


ECHO = "import sys\nfor line in sys.stdin: sys.stdout.write('heard ' + line) and sys.stdout.flush()"


def line_of(child: InteractiveProcess) -> bytes:
    said = b""
    while not said.endswith(b"\n") and (part := child.read(100, 20, heed_stop=False)):
        said += part
    return said


def test_a_conversation_may_be_with_a_file(tmp_path: Path) -> None:
    (tmp_path / "words").write_text("from a file\n")
    with (
        (tmp_path / "words").open("rb") as file,
        process.talking(Request(python(ECHO), stdin=file)) as child,
    ):
        assert line_of(child) == b"heard from a file\n"
        child.say(b"nobody listens\n")
        assert child.ended(20) == 0


def test_a_silent_process_is_not_waited_for_and_ends_with_the_conversation() -> None:
    code = "import sys, time; print('err', file=sys.stderr, flush=True); time.sleep(99)"
    with process.talking(Request(python(code))) as child:
        with pytest.raises(TimeoutError, match=r"no answer within 0\.1 s"):
            child.read(1, 0.1)
        with pytest.raises(TimeoutError, match="does not end"):
            child.ended(0.1)
    assert child.ended(0) == -signal.SIGTERM
    assert child.errors() in ("err\n", "")


def test_a_stop_ends_a_conversation_but_not_what_cleans_up_after_it(stoppable: None) -> None:
    asking, cleaning = Request(python(ECHO)), Request(python(ECHO), outlives_stop=True)
    with process.talking(asking) as child, process.talking(cleaning) as cleaner:
        cancel.request()
        with pytest.raises(Interrupted):
            child.read(1, 20)
        assert child.ended(20) == -signal.SIGTERM
        cleaner.say(b"still here\n")
        assert line_of(cleaner) == b"heard still here\n"


def test_a_child_that_a_stop_ended_while_it_was_heard_has_not_ended_by_itself(
    stoppable: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopping:
        """Waits for the child, and is stopped before it says anything."""

        def __init__(self) -> None:
            self._poll = select.poll()
            self.register = self._poll.register

        def poll(self, _: float) -> object:
            cancel.request()
            return self._poll.poll(20_000)

    with process.talking(Request(python(ECHO))) as child:
        own = SimpleNamespace(poll=Stopping, POLLIN=select.POLLIN)
        monkeypatch.setattr(conversation, "select", own)
        with pytest.raises(Interrupted):
            child.read(1, 20)
