"""An arm64 board: a real sshd whose sessions run in a root of arm64 programs, by qemu.

    from tests.support.arm64_board import make_arm64_board

    def test_something(make_arm64_board):
        board = make_arm64_board(debian_root)
        open_device(board.spec)

Its kernel is told by binfmt_misc to start arm64 programs with qemu, so that whatever is sent to the
board and started there runs as on a board: nobody names the emulator. That is registered in a user
namespace of the board's own. Only sshd itself is this machine's.
"""

from __future__ import annotations

import os
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

import pytest

from tests.support.arm64_root import HOME
from tests.support.debian import RootUnavailable, static_qemu
from tests.support.sshd import SshBoard, SshdUnavailable, command_lines, running_board

MODEL = "Raspberry Pi 4 Model B Rev 1.4"
PROCESSOR = "cortex-a72"
"""Of a Raspberry Pi 4. It lacks the instructions for 16-bit floats and for dot products."""
_INIT = Path(__file__).with_name("arm64_init.sh")
# As Linux 6.1 says it on that board.
_CORE = """processor\t: {number}
BogoMIPS\t: 108.00
Features\t: fp asimd evtstrm crc32 cpuid
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x0
CPU part\t: 0xd08
CPU revision\t: 3

"""
_START_S = 60.0


@dataclass
class Arm64Board(SshBoard):
    """A board whose programs are arm64.

    Attributes:
        root: Its root folder.
    """

    root: Path = Path("/nonexistent")

    def start(self, settings: Sequence[str] = (), mounted: str | None = None) -> None:
        """Starts an sshd that starts the board's login shell, as the board's own would."""
        shell = "/bin/bash" if (self.root / "bin/bash").exists() else "/bin/sh"
        own = [
            f'ForceCommand exec chroot {self.root} {shell} -c "$SSH_ORIGINAL_COMMAND"',
            f"SetEnv HOME=/{HOME} SHELL={shell} QEMU_CPU={PROCESSOR}",
        ]
        super().start([*own, *settings], mounted)

    def processes(self, word: str) -> list[str]:
        """Command lines on the board that contain a word, qemu's own words included."""
        listener = self.sessions()[0]
        found = command_lines(Path(f"/proc/{listener}/root{self.root}/proc"))
        return [line for line in found if word in line]

    def _spawn(
        self, command: Sequence[str], log: IO[bytes], mounted: str | None
    ) -> subprocess.Popen[bytes]:
        assert mounted is None
        cores = "".join(_CORE.format(number=n) for n in range(os.cpu_count() or 1))
        (self.folder / "cpuinfo").write_text(f"{cores}Model\t\t: {MODEL}\n")
        (self.folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
        board = subprocess.Popen(
            [
                "unshare", "--user", "--mount", "--pid", "--fork", "--kill-child",
                "sh", str(_INIT), static_qemu(), str(self.root), str(self.folder), *command,
            ],
            stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        assert board.stdin
        try:
            with board.stdin:
                _map_users(board)
                board.stdin.write(b"mapped\n")
        except OSError as error:
            board.kill()
            board.wait()
            raise SshdUnavailable(f"the board's namespaces cannot be made here: {error}") from error
        return board


def _map_users(board: subprocess.Popen[bytes]) -> None:
    """Every user is the same as outside: sshd wants one of its own beside root."""
    deadline = time.monotonic() + _START_S
    children = Path(f"/proc/{board.pid}/task/{board.pid}/children")
    while not (child := children.read_text().strip()):
        if board.poll() is not None or time.monotonic() > deadline:
            raise TimeoutError("unshare did not start anything")
        time.sleep(0.01)
    for name in ("uid_map", "gid_map"):
        Path(f"/proc/{child}/{name}").write_text("0 0 65536\n")


MakeArm64Board = Callable[[Callable[[], Path]], Arm64Board]


@pytest.fixture
def make_arm64_board(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[MakeArm64Board]:
    """Makes boards with a root of tests/support/arm64_root.py; ssh knows the last as an alias."""
    with ExitStack() as stack:

        def make(obtain_root: Callable[[], Path]) -> Arm64Board:
            folder = tmp_path_factory.mktemp("board")
            try:
                made = partial(Arm64Board, root=obtain_root())
                board = stack.enter_context(running_board(folder, make=made))
            except (SshdUnavailable, RootUnavailable) as reason:
                pytest.skip(str(reason))
            assert isinstance(board, Arm64Board)
            monkeypatch.setenv("ETDEPLOY_SSH_CONFIG", str(board.config))
            return board

        yield make
