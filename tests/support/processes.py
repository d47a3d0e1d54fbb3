"""Looks at processes of this machine."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that only waits to be collected does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text() if Path("/proc").is_dir() else ""
        os.kill(pid, 0)
    except (ProcessLookupError, FileNotFoundError):
        return False
    return not stat.rpartition(")")[2].strip().startswith("Z")


def eventually(condition: Callable[[], object], timeout_s: float = 60.0) -> bool:
    """Waits until a condition holds; False if it does not within a time that no load uses up."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def accepts(host: str, port: int) -> bool:
    """Whether something accepts connections there."""
    with suppress(OSError), socket.create_connection((host, port), timeout=1):
        return True
    return False


def naming(folder: Path) -> list[str]:
    """Command lines that name the folder: workers, builds and runners get their paths so."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_text()
        except OSError:
            continue
        if str(folder) in command:
            found.append(command)
    return found


def listening(*pids: int) -> set[tuple[str, int]]:
    """Addresses and ports on which these processes and their children accept TCP connections."""
    roots = [psutil.Process(pid) for pid in pids]
    family = {each for root in roots for each in (root, *root.children(recursive=True))}
    found: set[tuple[str, int]] = set()
    for each in family:
        with suppress(psutil.NoSuchProcess):
            found |= {
                (each_socket.laddr.ip, each_socket.laddr.port)
                for each_socket in each.net_connections("tcp")
                if each_socket.status == psutil.CONN_LISTEN
            }
    return found
