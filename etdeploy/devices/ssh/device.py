"""A board that is reached over ssh: a Raspberry Pi, a Jetson, any Linux on x86_64 or arm64."""

from __future__ import annotations

import os
import re
from pathlib import Path

from etdeploy.core.cached import cached_property
from etdeploy.core.errors import DeviceError
from etdeploy.core.files.basic import read_text
from etdeploy.devices.base import Capabilities, DeviceFacts, DeviceState
from etdeploy.devices.remote.device import RemoteDevice
from etdeploy.devices.spec import DeviceSpec
from etdeploy.devices.ssh.address import parse_address
from etdeploy.devices.ssh.facts import (
    FACTS_COMMAND,
    STATE_COMMAND,
    Board,
    board_state,
    parse_board,
)
from etdeploy.devices.ssh.place import room_command
from etdeploy.devices.ssh.shell import SshShell

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class SshDevice(RemoteDevice):
    """A board.

    Args:
        shell: The way to it; connects on first use.
    """

    def __init__(self, shell: SshShell) -> None:
        super().__init__(shell)
        self._ssh = shell

    @property
    def identity(self) -> str:
        # The kernel's own name for this start of it: the same for every address, alias and user.
        return f"ssh-{self._board.boot_id or self._ssh.address.host}"

    @property
    def capabilities(self) -> Capabilities:
        is_here = self._board.boot_id is not None and self._board.boot_id == _own_boot_id()
        return Capabilities(is_here=is_here, shares_cores=is_here, streams=True, converses=True)

    def facts(self) -> DeviceFacts:
        board = self._board
        if board.architecture is None:
            raise _unsupported(board, self.name)
        return board.facts(self.name, board.target(own_glibc()))

    def state(self) -> DeviceState:
        room = f"echo '#df'; {room_command(self._ssh.address.folder)}"
        result = self._ssh.shell(f"{room}\n{STATE_COMMAND}", "reading its temperatures")
        return board_state(result.output)

    @cached_property
    def _board(self) -> Board:
        return parse_board(self._ssh.require(FACTS_COMMAND, "reading its facts"))


def open_ssh(spec: DeviceSpec) -> SshDevice:
    """The board that `ssh:[USER@]HOST[:PORT][:/FOLDER]` names.

    Raises:
        UsageError: It has another form.
    """
    return SshDevice(SshShell(parse_address(spec.serial or "")))


def _unsupported(board: Board, name: str) -> DeviceError:
    is_linux = board.system == "Linux"
    what = f"instruction set is {board.machine}" if is_linux else f"system is {board.system or '?'}"
    return DeviceError(
        f"the board's {what}, and ExecuTorch's libraries are for Linux on x86_64 and aarch64 "
        "(64-bit Arm)",
        place=name,
        remedy="Install a 64-bit Linux on it, if its processor can run one, or use another board.",
    )


def own_glibc() -> tuple[int, int] | None:
    """The version of this machine's glibc, which runners are linked with; None for another."""
    try:
        found = re.fullmatch(r"glibc (\d+)\.(\d+).*", os.confstr("CS_GNU_LIBC_VERSION") or "")
    except (ValueError, OSError):
        return None
    return (int(found[1]), int(found[2])) if found else None


def _own_boot_id() -> str:
    return read_text(_BOOT_ID).strip()
