"""Network namespaces beside this machine's own, each connected to it by a link."""

from __future__ import annotations

import ipaddress
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.support.debian import RootUnavailable

# Addresses for tests of networks (RFC 2544): no machine has them.
_NETWORK = ipaddress.ip_network("198.18.0.0/15")
_CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5).close()
except ConnectionRefusedError:
    sys.exit(3)
"""


def ip(*arguments: str) -> None:
    """Changes this machine's network."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def connect_namespace(pid: int, link: str) -> tuple[str, str]:
    """Connects the network namespace of a process to this machine's.

    Args:
        pid: The process.
        link: Name of this machine's end.

    Returns:
        The addresses of this machine and of the process.
    """
    ours, theirs = _free_addresses()
    inner = f"i{link}"
    inside = ("nsenter", f"--net=/proc/{pid}/ns/net", "ip")
    ip("link", "add", link, "type", "veth", "peer", "name", inner)
    ip("link", "set", inner, "netns", str(pid))
    ip("addr", "add", f"{ours}/30", "dev", link)
    ip("link", "set", link, "up")
    for words in (("addr", "add", f"{theirs}/30", "dev", inner), ("link", "set", inner, "up")):
        subprocess.run([*inside, *words], check=True, capture_output=True)
    return ours, theirs


@dataclass(frozen=True)
class OtherMachine:
    """A network namespace, from which this machine has the address `ours`."""

    ours: str
    pid: int

    def can_connect(self, address: str, port: int) -> bool:
        """Whether something accepts connections from there; False if they are refused."""
        done = subprocess.run(
            ["nsenter", f"--net=/proc/{self.pid}/ns/net",
             sys.executable, "-c", _CONNECT, address, str(port)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode in (0, 3), done.stderr
        return done.returncode == 0


@contextmanager
def other_machine() -> Iterator[OtherMachine]:
    """A network namespace for the length of a block.

    Raises:
        RootUnavailable: This machine cannot have one.
    """
    link = f"etd{secrets.token_hex(4)}"
    script = "echo ready; read -r _"
    try:
        waiting = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", script],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
    except OSError as error:
        raise RootUnavailable(f"unshare cannot be started: {error}") from error
    with waiting:
        assert waiting.stdin
        assert waiting.stdout
        try:
            if waiting.stdout.readline() != "ready\n":
                raise RootUnavailable("a network namespace cannot be made (needs root)")
            try:
                ours, _ = connect_namespace(waiting.pid, link)
            except (OSError, subprocess.CalledProcessError) as error:
                raise RootUnavailable(f"namespaces cannot be connected: {error}") from error
            yield OtherMachine(ours, waiting.pid)
        finally:
            waiting.stdin.close()
            subprocess.run(["ip", "link", "del", link], capture_output=True, check=False)


def _free_addresses() -> tuple[str, str]:
    used = subprocess.run(
        ["ip", "-o", "-4", "addr"], capture_output=True, text=True, check=True
    ).stdout
    while True:
        offset = secrets.randbelow(_NETWORK.num_addresses // 4) * 4
        ours = ipaddress.IPv4Address(int(_NETWORK.network_address) + offset + 1)
        if f"{ours}/" not in used:
            return str(ours), str(ours + 1)
