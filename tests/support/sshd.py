"""A real sshd on loopback, a child of the test with its own keys, configuration and home folder.

    from tests.support.sshd import make_board

    def test_something(make_board):
        board = make_board()
        open_device(board.spec)

Nothing of the user's is read or written: ssh gets its configuration by ETDEPLOY_SSH_CONFIG. The
fixture skips the test, with the reason, where the machine cannot have it.
"""

from __future__ import annotations

import getpass
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import pytest

from tests.support.processes import accepts, eventually

_ALIAS = "test-board"


class SshdUnavailable(Exception):  # noqa: N818 - it is a reason to skip
    """This machine cannot have it; the text says why."""


@dataclass
class SshBoard:
    """A board: an sshd, and a home folder.

    Attributes:
        folder: Of the test; keys and configurations are in it.
        port: That sshd listens on.
        home: The home folder of whoever logs in, as this machine sees it.
    """

    folder: Path
    port: int
    home: Path
    _sshd: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def spec(self) -> str:
        """As `--device` takes it, by an alias of the configuration."""
        return f"ssh:{_ALIAS}"

    @property
    def config(self) -> Path:
        """What ETDEPLOY_SSH_CONFIG names."""
        return self.folder / "ssh_config"

    @property
    def address(self) -> str:
        """User, host and port, without an alias."""
        return f"{getpass.getuser()}@127.0.0.1:{self.port}"

    @property
    def kept(self) -> Path:
        """Where etdeploy keeps things there."""
        return self.home / ".cache" / "etdeploy"

    def start(self, settings: Sequence[str] = (), mounted: str | None = None) -> None:
        """Starts sshd; with `mounted`, the home folder is a tmpfs with these mount options."""
        lines = [
            f"Port {self.port}", "ListenAddress 127.0.0.1", f"HostKey {self.folder / 'host_key'}",
            f"AuthorizedKeysFile {self.folder / 'authorized_keys'}", "StrictModes no", "UsePAM no",
            "PasswordAuthentication no", "KbdInteractiveAuthentication no", "PidFile none",
            "Subsystem sftp internal-sftp", "LogLevel VERBOSE", *settings,
        ]  # fmt: skip
        # The first of several values counts, but for SetEnv, of which there may be one line only.
        if not any(line.startswith("SetEnv") for line in settings):
            lines.append(f"SetEnv HOME={self.home}")
        config = self.folder / "sshd_config"
        config.write_text("\n".join(lines) + "\n")
        with (self.folder / "sshd.log").open("ab") as log:
            command = [_program("sshd"), "-D", "-e", "-f", str(config)]
            self._sshd = self._spawn(command, log, mounted)
        if mounted:
            self.home = Path(f"/proc/{self._sshd.pid}/root") / str(self.home).lstrip("/")
        self._wait()

    def stop(self) -> None:
        """Ends sshd and every connection to it, as if the board had been switched off."""
        if self._sshd is None:
            return
        # A connection that is accepted meanwhile would outlive the listener.
        self._sshd.send_signal(signal.SIGSTOP)
        while sessions := self.sessions():
            for pid in sessions:
                _kill(pid)
            time.sleep(0.01)
        self._sshd.kill()
        self._sshd.wait()
        self._sshd = None

    def freeze(self) -> None:
        """As if the network was gone: connections stay open, and nobody answers."""
        for pid in self.sessions():
            os.kill(pid, signal.SIGSTOP)

    def sessions(self) -> list[int]:
        """The sshd processes of the connections."""
        assert self._sshd
        found, waiting = [], [self._sshd.pid]
        while waiting:
            for pid in _children(waiting.pop()):
                if _read(Path(f"/proc/{pid}/comm")).strip().startswith("sshd"):
                    found.append(pid)
                    waiting.append(pid)
        return found

    def processes(self, word: str) -> list[str]:
        """Command lines on this machine that contain a word, with this board's folder."""
        return [line for line in command_lines() if word in line and str(self.folder) in line]

    def write_config(self, *lines: str, known: bool = True) -> None:
        """Writes ssh's configuration: an alias for the board, and its key."""
        hosts = self.folder / "known_hosts"
        if known:
            key = (self.folder / "host_key.pub").read_text()
            hosts.write_text(f"[127.0.0.1]:{self.port} {key}")
        text = [
            *lines,
            f"Host {_ALIAS}", "  HostName 127.0.0.1", f"  Port {self.port}",
            "Host *", f"  IdentityFile {self.folder / 'user_key'}", "  IdentitiesOnly yes",
            "  IdentityAgent none", f"  UserKnownHostsFile {hosts}", "  GlobalKnownHostsFile none",
        ]  # fmt: skip
        self.config.write_text("\n".join(text) + "\n")
        self.config.chmod(0o600)

    def set_tools(self, fakes: Mapping[str, str], without: Sequence[str] = ()) -> str:
        """A value of `SetEnv` whose PATH has these scripts first, and lacks some tools."""
        tools = self.folder / "tools"
        tools.mkdir(exist_ok=True)
        for folder in ("/usr/bin", "/bin", "/usr/sbin", "/sbin"):
            for path in Path(folder).iterdir() if without else ():
                if path.name not in without and not (tools / path.name).exists():
                    (tools / path.name).symlink_to(path)
        for name, script in fakes.items():
            (tools / name).unlink(missing_ok=True)
            (tools / name).write_text(f"#!/bin/sh\n{script}\n")
            (tools / name).chmod(0o755)
        rest = "" if without else f":{os.environ['PATH']}"
        return f"SetEnv HOME={self.home} PATH={tools}{rest}"

    def _spawn(
        self, command: Sequence[str], log: IO[bytes], mounted: str | None
    ) -> subprocess.Popen[bytes]:
        if mounted:
            script = f"mount -t tmpfs -o {mounted} tmpfs {self.home} && exec {' '.join(command)}"
            command = ["unshare", "--mount", "sh", "-c", script]
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )

    def _wait(self) -> None:
        sshd = self._sshd
        assert sshd
        is_up = eventually(lambda: sshd.poll() is not None or accepts("127.0.0.1", self.port))
        if not is_up or sshd.poll() is not None:
            raise SshdUnavailable(_read(self.folder / "sshd.log")[-400:])


@contextmanager
def running_board(
    folder: Path,
    settings: Sequence[str] = (),
    mounted: str | None = None,
    make: Callable[[Path, int, Path], SshBoard] = SshBoard,
) -> Iterator[SshBoard]:
    """A board with keys of its own in `folder`; `make` is given folder, port and home.

    Raises:
        SshdUnavailable: This machine cannot have it.
    """
    for name in ("host_key", "user_key"):
        if not (folder / name).exists():
            make_key(folder / name)
    shutil.copyfile(folder / "user_key.pub", folder / "authorized_keys")
    home = folder / "home"
    home.mkdir(exist_ok=True)
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    elif mounted:
        raise SshdUnavailable("a file system of its own can be mounted only by root")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    board = make(folder, port, home)
    board.write_config()
    try:
        board.start(settings, mounted)
        yield board
    finally:
        board.stop()


def make_key(path: Path) -> None:
    """A key without a passphrase, and its public half."""
    path.unlink(missing_ok=True)
    argv = [_program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)]
    subprocess.run(argv, check=True)


MakeBoard = Callable[..., SshBoard]


@pytest.fixture
def make_board(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[MakeBoard]:
    """Makes boards for one test; ssh knows the last one as an alias."""
    with ExitStack() as stack:

        def make(settings: Sequence[str] = (), mounted: str | None = None) -> SshBoard:
            folder = tmp_path_factory.mktemp("board")
            try:
                board = stack.enter_context(running_board(folder, settings, mounted))
            except SshdUnavailable as reason:
                pytest.skip(str(reason))
            monkeypatch.setenv("ETDEPLOY_SSH_CONFIG", str(board.config))
            return board

        yield make


def _program(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    if found is None:
        raise SshdUnavailable(f"needs {name}: apt install openssh-server openssh-client")
    return found


def _children(pid: int) -> list[int]:
    """The children of a process that run; /proc's own list omits some while others end."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        state, parent = [*_read(path).rpartition(")")[2].split()[:2], "", ""][:2]
        if parent == str(pid) and state != "Z":
            found.append(int(path.parent.name))
    return found


def command_lines(proc: Path = Path("/proc")) -> Iterator[str]:
    """Of everything that runs, by a /proc."""
    for folder in proc.glob("[0-9]*"):
        yield re.sub(r"\0", " ", _read(folder / "cmdline")).strip()


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
