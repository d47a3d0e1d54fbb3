"""A board that is reached over ssh: a Raspberry Pi, a Jetson, any Linux on x86_64 or arm64."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from etdeploy.core.errors import DeviceError
from etdeploy.core.files.basic import read_text
from etdeploy.core.values import cached_property
from etdeploy.devices import sysfs
from etdeploy.devices.base import Capabilities, DeviceFacts, DeviceState
from etdeploy.devices.kinds import DeviceSpec
from etdeploy.devices.remote.device import RemoteDevice
from etdeploy.devices.remote.layout import parse_df
from etdeploy.devices.remote.shell import (
    Advice,
    DevicePaths,
    DeviceWriteError,
    SilentError,
    check_output,
)
from etdeploy.devices.shell import (
    Lines,
    ShellResult,
    is_marked,
    marked,
    parse_marked,
    parse_meminfo,
    sections,
)
from etdeploy.devices.ssh.channel import Channel, ForeignError, run_script
from etdeploy.devices.ssh.connection import (
    Address,
    Connection,
    SshError,
    SshLostError,
    manual_command,
    parse_address,
    parse_place,
    place_command,
    room_command,
)
from etdeploy.devices.ssh.diagnostics import explain
from etdeploy.devices.sysfs import linux_state

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class SshDevice(RemoteDevice):
    """A board."""

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
        result = self._ssh.shell(f"{room}\n{sysfs.STATE_COMMAND}", "reading its temperatures")
        return board_state(result.output)

    @cached_property
    def _board(self) -> BoardInfo:
        return parse_board(check_output(self._ssh, FACTS_COMMAND, "reading its facts"))


def open_ssh(spec: DeviceSpec) -> SshDevice:
    """The board that `ssh:[USER@]HOST[:PORT][:/FOLDER]` names."""
    return SshDevice(SshShell(parse_address(spec.serial or "")))


def _unsupported(board: BoardInfo, name: str) -> DeviceError:
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


_ARCHITECTURES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
# What the libraries of ExecuTorch's wheel for Linux need (their tag is manylinux_2_28).
_WHEEL_GLIBC = (2, 28)

FACTS_COMMAND = r"""echo '#uname'; uname -s; uname -m; uname -r; uname -v
echo '#boot_id'; cat /proc/sys/kernel/random/boot_id /etc/machine-id
echo '#os'; cat /etc/os-release
echo '#model'; cat /proc/device-tree/model | tr '\0' '\n'
echo '#compatible'; cat /proc/device-tree/compatible | tr '\0' '\n'
echo '#cpuinfo'; cat /proc/cpuinfo
echo '#meminfo'; cat /proc/meminfo
echo '#nproc'; getconf _NPROCESSORS_ONLN || nproc
echo '#bits'; getconf LONG_BIT
echo '#glibc'; getconf GNU_LIBC_VERSION || ldd --version
echo '#libraries'; cd /usr; ls -d $PWD/lib/libstdc++.so.6 $PWD/lib*/libstdc++.so.6 \
  $PWD/lib/*-linux-gnu/libstdc++.so.6
true
"""
"""What a tool that is missing says of that goes to stderr, and may stand in any section."""


@dataclass(frozen=True)
class BoardInfo:
    """What a board says of itself."""

    system: str
    machine: str
    glibc: tuple[int, int] | None
    has_libstdcxx: bool
    is_64_bit: bool
    boot_id: str | None
    _parts: dict[str, str]

    @property
    def architecture(self) -> str | None:
        """The instruction set by etdeploy's name; None if ExecuTorch has no libraries for it."""
        return _ARCHITECTURES.get(self.machine) if self.system == "Linux" else None

    def target(self, built_with: tuple[int, int] | None) -> str:
        """What a runner for it is built for.

        A runner needs at most the version of the C library that it is linked with, so a board with
        an older one gets the runner that brings its own; so does one with another C library, or
        whose own programs are 32-bit.
        """
        plain = (
            self.is_64_bit
            and self.has_libstdcxx
            and self.glibc is not None
            and built_with is not None
            and self.glibc >= max(built_with, _WHEEL_GLIBC)
        )
        return f"linux-{self.architecture}" + ("" if plain else "-portable")

    def facts(self, name: str, target: str) -> DeviceFacts:
        """The facts for records."""
        release = self._lines("uname")[2:4]
        return DeviceFacts(
            name=name,
            kind="ssh",
            target=target,
            model=_first(self._parts.get("model", "")) or _processor(self._parts["cpuinfo"]),
            soc=_soc(self._lines("compatible")),
            abi=self.machine,
            os=_os_name(self._parts.get("os", "")) or " ".join((self.system, *release[:1])),
            fingerprint=" ".join(release) or None,
            cpu_count=_integer(self._parts.get("nproc", "")),
            memory_bytes=parse_meminfo(self._parts.get("meminfo", "")),
            connection="ssh",
        )

    def _lines(self, name: str) -> list[str]:
        return self._parts.get(name, "").splitlines()


def parse_board(output: str) -> BoardInfo:
    """Reads the output of FACTS_COMMAND."""
    parts = {"cpuinfo": "", **sections(output)}
    system, machine, *_ = [*parts.get("uname", "").split(), "", ""]
    libraries = parts.get("libraries", "").splitlines()
    identity = re.search(r"^[0-9a-f-]{32,36}$", parts.get("boot_id", ""), re.MULTILINE)
    return BoardInfo(
        system=system,
        machine=machine,
        glibc=_glibc(parts.get("glibc", "")),
        has_libstdcxx=any(line.startswith("/") for line in libraries),
        is_64_bit=_first(parts.get("bits", "")) != "32",
        boot_id=identity[0] if identity else None,
        _parts=parts,
    )


def board_state(output: str) -> DeviceState:
    """The state in the output of sysfs.STATE_COMMAND."""
    parts = sections(output)
    state = linux_state(
        parts.get("sys", ""), parts.get("cpufreq", ""), parts.get("meminfo", ""),
        parts.get("loadavg", ""), parts.get("status", ""),
    )  # fmt: skip
    return state.model_copy(update={"free_storage_bytes": parse_df(parts.get("df", ""))})


def _glibc(text: str) -> tuple[int, int] | None:
    """As getconf says it (`glibc 2.36`), or ldd (`ldd (Debian GLIBC 2.36-9) 2.36`)."""
    found = re.search(r"^(?:glibc|ldd \(.*\)) (\d+)\.(\d+)", text, re.MULTILINE)
    return (int(found[1]), int(found[2])) if found else None


def _processor(cpuinfo: str) -> str | None:
    found = re.search(r"^(?:model name|Model|Hardware)\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return found[1].strip() if found else None


def _soc(compatible: list[str]) -> str | None:
    """The device tree lists the board first and its SoC last: `brcm,bcm2712`."""
    names = [line for line in compatible if re.fullmatch(r"[\w.+-]+,[\w.+-]+", line)]
    return names[-1].partition(",")[2] if names else None


def _os_name(text: str) -> str | None:
    found = re.search(r"^PRETTY_NAME=([\"']?)(.*)\1$", text, re.MULTILINE)
    return found[2] if found else None


def _first(text: str) -> str | None:
    line = text.strip().partition("\n")[0].strip()
    return line if line and ":" not in line else None


def _integer(text: str) -> int | None:
    found = re.search(r"^(\d+)$", text, re.MULTILINE)
    return int(found[1]) if found else None


_IDLE_S = 30.0
_TIDY_S = 5.0
# Without it, what a tool says about an error would come on another stream, at another time.
_MERGED = "exec 2>&1\n"
# Some of what tools say is read here.
_OWN = f"{_MERGED}LC_ALL=C; export LC_ALL\n"


class SshShell:
    """Runs commands on a board and copies files."""

    def __init__(self, address: Address, idle_s: float = _IDLE_S) -> None:
        self.address = address
        self.connection = Connection(address)
        self._idle_s = idle_s

    @property
    def name(self) -> str:
        return self.address.name

    @cached_property
    def place(self) -> DevicePaths:
        activity = "looking for a folder that etdeploy can use"
        return parse_place(
            self.shell(place_command(self.address.folder), activity).output, self.address
        )

    @property
    def advice(self) -> Advice:
        return Advice(
            noun="board",
            prefix=manual_command(self.address),
            restart=manual_command(self.address, "sudo", "reboot"),
            damaged="Look for a failing disk or memory of the board",
        )

    def shell(self, command: str, activity: str, idle_s: float | None = None) -> ShellResult:
        running = self._start(_OWN, command, activity, idle_s or self._idle_s)
        with contextlib.closing(running):
            try:
                return running.finish(activity)
            except SilentError as error:
                raise explain(TimeoutError(), self.address, activity, self._idle_s) from error

    def best_effort_cleanup(self, command: str) -> None:
        # Twice: after a broken connection the first call may only find out that it is broken.
        for _ in range(2):
            try:
                with run_script(self.connection, _OWN + command, heed_stop=False) as channel:
                    for _ in channel.pieces(_TIDY_S):
                        pass
                    channel.exit_code()
                    return
            except SshError as error:
                if not isinstance(error, SshLostError):  # each attempt takes a while
                    return
            except (ForeignError, OSError):
                continue

    def start(self, command: str, activity: str, idle_s: float) -> SshCommand:
        return self._start(_MERGED, command, activity, idle_s)

    def _start(self, before: str, command: str, activity: str, idle_s: float) -> SshCommand:
        marker = f"etdeploy-{secrets.token_hex(8)}"
        with contextlib.ExitStack() as stack, self.errors(activity):
            channel = stack.enter_context(
                run_script(self.connection, before + marked(command, marker))
            )
            channel.begin(self._idle_s)
            return SshCommand(self, channel, marker, idle_s, stack.pop_all())

    @contextlib.contextmanager
    def persistent_shell(self, command: str, activity: str) -> Iterator[SshPersistentShell]:
        with contextlib.ExitStack() as stack:
            with self.errors(activity):
                channel = stack.enter_context(run_script(self.connection, _OWN + command))
            yield SshPersistentShell(self, channel, self._idle_s)

    def send(
        self,
        source: Path,
        target: str,
        activity: str,
        on_bytes: Callable[[int], None],
        start: int = 0,
        size: int | None = None,
    ) -> None:
        marker = f"etdeploy-{secrets.token_hex(8)}"
        # ssh sends the rest of the file too, until the channel ends: 2 MB at most.
        copying = "cat" if size is None else f"head -c {size}"
        script = _OWN + marked(f"{copying} >{quote(target)}", marker)
        with source.open("rb", buffering=0) as file, self.errors(activity):
            file.seek(start)
            with run_script(self.connection, script, file) as channel:
                for sent in channel.sent(file, start, self._idle_s):
                    on_bytes(sent if size is None else min(sent, size))
                result = parse_marked(channel.output, marker)
                if result is None:
                    raise channel.failure()
        if not result.ok:
            said = result.output.strip() or f"exit code {result.exit_code}"
            raise DeviceWriteError(said.splitlines()[-1])

    def content(self, source: str, activity: str) -> Iterator[bytes]:
        yield from self._output(f"cat -- {quote(source)}", activity)

    def read(self, source: str, activity: str) -> str:
        words = quote(source)
        data = b"".join(self._output(f"[ ! -e {words} ] || cat -- {words}", activity))
        return data.decode(errors="replace")

    def close(self) -> None:
        """Ends the connection."""
        self.connection.close()

    @contextlib.contextmanager
    def errors(self, activity: str) -> Iterator[None]:
        """Turns errors of the connection into one for the user."""
        try:
            yield
        except (SshError, ForeignError, TimeoutError, FileNotFoundError) as error:
            if isinstance(error, FileNotFoundError) and error.filename != "ssh":
                raise
            raise explain(error, self.address, activity, self._idle_s) from error

    def _output(self, script: str, activity: str) -> Iterator[bytes]:
        """What a script prints, byte for byte."""
        with self.errors(activity), run_script(self.connection, script) as channel:
            yield from channel.pieces(self._idle_s)
            code = channel.exit_code()
            if code:
                said = channel.errors().strip() or f"exit code {code}"
                raise DeviceError(f"the board failed while {activity}: {said}", place=self.name)


@dataclass(frozen=True)
class SshPersistentShell:
    """A command that is talked with line by line."""

    shell: SshShell
    channel: Channel
    idle_s: float

    def write_lines(self, lines: str, activity: str) -> None:  # noqa: ARG002 - what is heard tells of its end
        self.channel.say(lines)

    def read_reply(self, activity: str, idle_s: float | None = None) -> str:
        with self.shell.errors(activity):
            return (self.channel.line(idle_s or self.idle_s) or "").strip()

    def read_line(self, activity: str, idle_s: float) -> str | None:
        with self.shell.errors(activity):
            try:
                return self.channel.line(idle_s)
            except TimeoutError as error:
                raise SilentError from error

    def read_result(self, marker: str, activity: str, idle_s: float | None = None) -> ShellResult:
        with self.shell.errors(activity):
            result = self.channel.result(marker, idle_s or self.idle_s)
            if result is None:
                raise self.channel.failure()
            return result


@dataclass(frozen=True)
class SshCommand:
    """A command that the board's shell has begun."""

    shell: SshShell
    channel: Channel
    marker: str
    idle_s: float
    held: contextlib.ExitStack

    def finish(self, activity: str, on_line: Callable[[str], None] | None = None) -> ShellResult:
        output, lines = bytearray(), Lines(on_line)
        with self.shell.errors(activity):
            try:
                for part in self.channel.pieces(self.idle_s):
                    output += part
                    lines.take(part)
                    # What a command left behind may keep the channel open.
                    if is_marked(output, self.marker):
                        break
            except TimeoutError as error:
                raise SilentError from error
            result = parse_marked(bytes(output), self.marker)
            if result is None:
                raise self.channel.failure()
            return result

    def close(self) -> None:
        """Ends the connection to it."""
        self.held.close()
