"""The only module that starts processes.

A request goes in, an outcome comes out. Arguments are a list, never a shell string. Every child
leads its own session, so that a stop reaches its children too. If this process is killed and can
no longer stop anything, the script `orphans.py` does.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from etdeploy.core import cancel
from etdeploy.core.files.basic import annotate_oserror
from etdeploy.core.processes.conversation import Collector, InteractiveProcess
from etdeploy.core.processes.forks import Fork, ForkLostError, ForkServer

_GRACE_S = 3.0
# How often to check for a stop request; a child that ends at its first signal ends the wait itself.
_POLL_S = 0.2

Child = subprocess.Popen[bytes] | Fork

_children: set[Child] = set()
# Reentrant: a signal handler may interrupt the thread that holds it.
_children_lock = threading.RLock()
_watcher: list[subprocess.Popen[bytes]] = []


@dataclass(frozen=True)
class Request:
    """A process to run.

    Attributes:
        argv: Program and arguments.
        cwd: Working folder; the caller's when None.
        env: Changes to the environment; a value of None removes the variable.
        timeout_s: After this many seconds the process is ended; one that ended by itself after that
            has timed out as well. None waits forever.
        log: The command and all of its output are appended to this file.
        on_line: Called with each line of output as it comes, in another thread; merges stdout and
            stderr.
        apart: Keeps them apart nevertheless; on_line gets the lines of stdout.
        stdin: A descriptor or file that the process reads; nothing when None.
        outlives_stop: Whether a stop request leaves it alone, because what cleans up needs it.
    """

    argv: tuple[str, ...]
    cwd: Path | None = None
    env: Mapping[str, str | None] = field(default_factory=dict)
    timeout_s: float | None = None
    log: Path | None = None
    on_line: Callable[[str], None] | None = None
    apart: bool = False
    stdin: IO[bytes] | int | None = None
    outlives_stop: bool = False


@dataclass(frozen=True)
class Outcome:
    """The result of a process: exit code (negative signal number if killed), output, time."""

    argv: tuple[str, ...]
    exit_code: int
    stdout: str
    stderr: str
    duration_s: float
    timed_out: bool = False

    @property
    def ok(self) -> bool:
        return self.exit_code == 0 and not self.timed_out

    @property
    def signal_name(self) -> str | None:
        """The signal that ended the process, like `SIGSEGV`, if one did."""
        return signal_name(-self.exit_code) if self.exit_code < 0 else None


def signal_name(number: int) -> str:
    """The name of a signal, or its number if this system has no name for it."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def run(request: Request, server: ForkServer | None = None) -> Outcome:
    """Runs a process to its end.

    Raises:
        FileNotFoundError, PermissionError: The program cannot be started.
        ForkRefusedError: The server did not fork; nothing has run.
        ForkLostError: The server ended before the process, which is gone, too.
        Interrupted: The run was asked to stop; the process and its children are gone.
    """
    cancel.checkpoint()
    started = time.monotonic()
    with _open_log(request) as log, _started(request, server) as child:
        streams = {"stdout": child.stdout, "stderr": child.stderr}
        collector = Collector(streams, request.on_line, log)
        deadline = None if request.timeout_s is None else started + request.timeout_s
        timed_out = not _wait(child, deadline)
        stdout, stderr = collector.finish(_GRACE_S)
        duration_s = time.monotonic() - started
        if log:
            with contextlib.suppress(OSError):  # a full disk; what the process said tells more
                log.write(f"[exit {child.returncode} after {duration_s:.1f} s]\n".encode())
    cancel.checkpoint()
    if isinstance(child, Fork) and child.lost:
        raise ForkLostError
    return Outcome(request.argv, child.wait(), stdout, stderr, duration_s, timed_out)


@contextlib.contextmanager
def fork_server(request: Request) -> Iterator[ForkServer]:
    """Starts a program that forks children on request, and ends it with the block."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    started_with_socket = replace(request, argv=(*request.argv, str(theirs.fileno())))
    with (
        ours,
        theirs,
        _open_log(started_with_socket) as log,
        contextlib.ExitStack() as after_its_end,
        _started(started_with_socket, inherited=(theirs.fileno(),)) as child,
    ):
        theirs.close()
        collector = Collector({"stdout": child.stdout, "stderr": child.stderr}, None, log)
        after_its_end.callback(collector.finish, _GRACE_S)
        yield ForkServer(ours)


@contextlib.contextmanager
def talking(request: Request) -> Iterator[InteractiveProcess]:
    """Starts a process whose input and output are the caller's, and ends it with the block.

    Its input is a pipe unless the request has one; time limit, log and on_line are not heeded.
    """
    with contextlib.ExitStack() as stack:
        words: int | None = None
        listening = -1
        if request.stdin is None:
            listening, words = os.pipe()
            request = replace(request, stdin=listening)
        try:
            child = stack.enter_context(_started(request))
        except BaseException:
            if words is not None:
                os.close(words)
            raise
        finally:
            if listening >= 0:
                os.close(listening)
        conversation = InteractiveProcess(child, words)
        stack.callback(conversation.close)
        yield conversation


def which(name: str) -> Path | None:
    """The program's path as the shell would find it."""
    found = shutil.which(name)
    return Path(found) if found else None


def run_git(folder: Path, *arguments: str, timeout_s: float = 10.0) -> str | None:
    """What git prints; None if it fails or is not installed."""
    program = which("git")
    if program is None:
        return None
    request = Request(
        (str(program), "-C", str(folder), *arguments),
        # Without this, `git status` rewrites the index.
        env={"GIT_OPTIONAL_LOCKS": "0"},
        timeout_s=timeout_s,
    )
    try:
        outcome = run(request)
    except OSError:  # it cannot be started
        return None
    return outcome.stdout if outcome.ok else None


def end_children() -> None:
    """Asks every running child (and its group) to end; used when a stop is requested."""
    with _children_lock:
        children = list(_children)
    for child in children:
        _signal_group(child, signal.SIGTERM)


cancel.on_request(end_children)


@contextlib.contextmanager
def _open_log(request: Request) -> Iterator[IO[bytes] | None]:
    if request.log is None:
        yield None
        return
    request.log.parent.mkdir(parents=True, exist_ok=True)
    with request.log.open("ab", buffering=0) as log:
        with annotate_oserror(request.log):
            log.write(f"$ {' '.join(request.argv)}\n".encode())
        yield log


@contextlib.contextmanager
def _started(
    request: Request, server: ForkServer | None = None, inherited: tuple[int, ...] = ()
) -> Iterator[Child]:
    env = dict(os.environ)
    for name, value in request.env.items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    child = _start(request, env, server, inherited)
    if not request.outlives_stop:
        with _children_lock:
            _children.add(child)
    try:
        yield child
    finally:
        if child.poll() is None:
            _end(child)
        with _children_lock:
            _children.discard(child)
        if isinstance(child, Fork):
            child.close()
        _note(f"-{child.pid}\n")


def _start_watcher() -> None:
    """Starts the script that kills our children when we are killed, once."""
    with _children_lock, contextlib.suppress(OSError):
        if not _watcher:
            script = Path(__file__).with_name("orphans.py")
            _watcher.append(
                subprocess.Popen(
                    # Isolated from what the user's environment makes Python import.
                    [sys.executable, "-I", "-S", str(script)],
                    cwd="/",
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    bufsize=0,
                    start_new_session=True,
                )
            )


def _start(
    request: Request,
    env: Mapping[str, str],
    server: ForkServer | None,
    inherited: tuple[int, ...],
) -> Child:
    """Starts the child and has it watched, even if this process is killed in between."""
    _start_watcher()
    mark, other_end = os.pipe()
    pipe = os.fstat(mark).st_ino
    _note(f"?{pipe}\n")
    try:
        child = (
            server.fork(request.argv, request.cwd, env, mark)
            if server
            else _popen(request, env, (mark, *inherited))
        )
    except BaseException:
        _note(f"!{pipe}\n")
        raise
    finally:
        os.close(mark)
        os.close(other_end)
    _note(f"+{child.pid} {pipe}\n")
    return child


def _popen(
    request: Request, env: Mapping[str, str], inherited: tuple[int, ...]
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        list(request.argv),
        cwd=request.cwd,
        env=env,
        stdin=subprocess.DEVNULL if request.stdin is None else request.stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if request.on_line and not request.apart else subprocess.PIPE,
        start_new_session=True,
        pass_fds=inherited,
    )


@atexit.register
def _dismiss_watcher() -> None:
    """Ends the watcher when this process ends and none of its children is left."""
    while _watcher:
        watcher = _watcher.pop()
        if watcher.stdin:
            watcher.stdin.close()
        watcher.wait()


def _note(line: str) -> None:
    """Notifies the watcher; if it was ended, runs continue without it."""
    with contextlib.suppress(OSError):
        for watcher in _watcher:
            if watcher.stdin:
                watcher.stdin.write(line.encode())


def _wait(child: Child, deadline: float | None) -> bool:
    """Waits until the child ends; False if it ended after the deadline or because of it."""
    with _waiting(child) as ended:
        while True:
            left_s = math.inf if deadline is None else deadline - time.monotonic()
            if ended(max(0.0, min(_POLL_S, left_s))):
                in_time = deadline is None or time.monotonic() <= deadline
            elif cancel.requested():
                in_time = True
            elif left_s <= 0:
                in_time = False
            else:
                continue
            if child.returncode is None or cancel.requested():
                _end(child)
            return in_time


@contextlib.contextmanager
def _waiting(child: Child) -> Iterator[Callable[[float], bool]]:
    """A function that waits up to a number of seconds for a child to end.

    The kernel reports the end at once (pidfd_open(2), since Linux 5.3), without polling, which
    could disturb a measurement; elsewhere Python polls.
    """
    try:
        # The server of a fork collects it, and tells how it ended.
        handle = os.dup(child.fileno()) if isinstance(child, Fork) else os.pidfd_open(child.pid)
    except (AttributeError, OSError):
        yield lambda seconds: _ended(child, seconds)
        return
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    try:
        yield lambda seconds: bool(poll.poll(seconds * 1000)) and _ended(child, None)
    finally:
        os.close(handle)


def _ended(child: Child, timeout_s: float | None) -> bool:
    try:
        child.wait(timeout_s)
    except (subprocess.TimeoutExpired, TimeoutError):
        return False
    return True


def _end(child: Child) -> None:
    """Terminates, then kills, the child's whole group."""
    _signal_group(child, signal.SIGTERM)
    if not _ended(child, _GRACE_S):
        _signal_group(child, signal.SIGKILL)
        child.wait()
    # The child's own children may have ignored the first signal.
    _signal_group(child, signal.SIGKILL)


def _signal_group(child: Child, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)
