"""What boards say of themselves."""

from __future__ import annotations

import pytest

from etdeploy.devices.ssh.device import parse_board

PI = """#uname
Linux
aarch64
6.6.31+rpt-rpi-2712
#1 SMP PREEMPT Debian 1:6.6.31-1+rpt1 (2024-05-29)
#boot_id
5d1c2f6e-0b4a-4f0e-9d3c-2f1a0c9b8e7d
0123456789abcdef0123456789abcdef
#os
PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"
NAME="Debian GNU/Linux"
#model
Raspberry Pi 5 Model B Rev 1.0
#compatible
raspberrypi,5-model-b
brcm,bcm2712
#cpuinfo
processor\t: 0
BogoMIPS\t: 108.00
Model\t\t: Raspberry Pi 5 Model B Rev 1.0
#meminfo
MemTotal:        8255136 kB
#nproc
4
#bits
64
#glibc
glibc 2.36
#libraries
ls: cannot access '/usr/lib/libstdc++.so.6': No such file or directory
/usr/lib/aarch64-linux-gnu/libstdc++.so.6
"""


def test_facts_of_a_raspberry_pi() -> None:
    board = parse_board(PI)
    assert (board.architecture, board.glibc, board.is_64_bit) == ("aarch64", (2, 36), True)
    assert board.boot_id == "5d1c2f6e-0b4a-4f0e-9d3c-2f1a0c9b8e7d"
    facts = board.facts("ssh:pi", board.target((2, 36)))
    assert (facts.name, facts.kind, facts.target) == ("ssh:pi", "ssh", "linux-aarch64")
    assert (facts.model, facts.soc) == ("Raspberry Pi 5 Model B Rev 1.0", "bcm2712")
    assert (facts.os, facts.abi) == ("Debian GNU/Linux 12 (bookworm)", "aarch64")
    assert (facts.cpu_count, facts.memory_bytes) == (4, 8255136 * 1024)
    assert str(facts.fingerprint).startswith("6.6.31+rpt-rpi-2712 #1 SMP")


@pytest.mark.parametrize(
    ("old", "new", "built_with"),
    [
        ("glibc 2.36", "glibc 2.31", (2, 36)),
        # A static or old linker; the wheel's own libraries need 2.28.
        ("glibc 2.36", "glibc 2.27", (2, 17)),
        ("glibc 2.36", "musl libc (aarch64)\nVersion 1.2.4", (2, 36)),
        ("#bits\n64", "#bits\n32", (2, 36)),
        ("/usr/lib/aarch64-linux-gnu/libstdc++.so.6\n", "", (2, 36)),
        ("glibc 2.36", "glibc 2.36", None),
    ],
)
def test_boards_that_need_a_portable_runner(
    old: str, new: str, built_with: tuple[int, int] | None
) -> None:
    board = parse_board(PI.replace(old, new))
    assert board.target(built_with) == "linux-aarch64-portable"


def test_a_board_without_getconf_is_asked_through_ldd() -> None:
    said = "sh: 1: getconf: not found\nldd (Ubuntu GLIBC 2.39-0ubuntu8.3) 2.39\nCopyright (C) 2024"
    board = parse_board(PI.replace("glibc 2.36", said).replace("\n64\n", "\nsh: getconf: none\n"))
    assert (board.glibc, board.is_64_bit) == ((2, 39), True)
    assert board.target((2, 36)) == "linux-aarch64"


@pytest.mark.parametrize(
    ("system", "machine", "architecture"),
    [
        ("Linux", "x86_64", "x86_64"),
        ("Linux", "amd64", "x86_64"),
        ("Linux", "armv7l", None),
        ("Linux", "armv8l", None),
        ("Linux", "riscv64", None),
        ("Darwin", "arm64", None),
        ("", "", None),
    ],
)
def test_instruction_sets(system: str, machine: str, architecture: str | None) -> None:
    assert parse_board(f"#uname\n{system}\n{machine}\n").architecture == architecture


def test_a_board_that_says_little() -> None:
    board = parse_board("#uname\nLinux\nx86_64\n#cpuinfo\nmodel name\t: Some CPU @ 2 GHz\n")
    facts = board.facts("ssh:x", board.target((2, 36)))
    assert (facts.model, facts.os, facts.soc, facts.cpu_count) == (
        "Some CPU @ 2 GHz", "Linux", None, None
    )  # fmt: skip
    assert (facts.target, board.boot_id) == ("linux-x86_64-portable", None)
