"""Parses what a Linux board says of itself; every function here is pure.

What is absent gives None.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from etdeploy.devices import clusters, sysfs
from etdeploy.devices.base import DeviceFacts, DeviceState
from etdeploy.devices.linux import linux_state
from etdeploy.devices.remote.layout import parse_df
from etdeploy.devices.shell import parse_meminfo, sections

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

STATE_COMMAND = (
    f"echo '#sys'; cd /sys && grep -Hs . {' '.join(sysfs.FILES)}\n"
    f"echo '#cpufreq'; cd {clusters.ROOT} && grep -Hs . {' '.join(clusters.FILES)}\n"
    "echo '#status'; cat /proc/self/status\n"
    "echo '#meminfo'; cat /proc/meminfo\n"
    "echo '#loadavg'; cat /proc/loadavg; true"
)


@dataclass(frozen=True)
class Board:
    """What a board says of itself.

    Attributes:
        system: Linux, Darwin and the like, by `uname`.
        machine: The instruction set, by `uname`.
        glibc: Version of its C library; None for another one.
        has_libstdcxx: Whether GCC's C++ library is installed, for 64-bit programs.
        is_64_bit: Whether its own programs are.
        boot_id: The same for everything that runs on the same kernel, until it restarts.
    """

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

        Args:
            built_with: Version of glibc on the machine that builds; None where it has none.
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
        """The facts for records.

        Args:
            name: The board's name for the user.
            target: As `target` gave it.
        """
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


def parse_board(output: str) -> Board:
    """Reads the output of FACTS_COMMAND."""
    parts = {"cpuinfo": "", **sections(output)}
    system, machine, *_ = [*parts.get("uname", "").split(), "", ""]
    libraries = parts.get("libraries", "").splitlines()
    identity = re.search(r"^[0-9a-f-]{32,36}$", parts.get("boot_id", ""), re.MULTILINE)
    return Board(
        system=system,
        machine=machine,
        glibc=_glibc(parts.get("glibc", "")),
        has_libstdcxx=any(line.startswith("/") for line in libraries),
        is_64_bit=_first(parts.get("bits", "")) != "32",
        boot_id=identity[0] if identity else None,
        _parts=parts,
    )


def board_state(output: str) -> DeviceState:
    """The state in the output of STATE_COMMAND."""
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
