"""Looks at processes of this machine."""

from __future__ import annotations

import os
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


def eventually(condition: Callable[[], bool]) -> bool:
    """Waits long enough that only a condition that never comes true fails."""
    for _ in range(1000):
        if condition():
            return True
        time.sleep(0.01)
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
                (socket.laddr.ip, socket.laddr.port)
                for socket in each.net_connections("tcp")
                if socket.status == psutil.CONN_LISTEN
            }
    return found
