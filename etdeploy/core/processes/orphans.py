"""Kills the children of a run that was itself killed; a script that `process.py` starts.

It reads from stdin: `?PIPE` before a child is started, where PIPE is the inode of a pipe that only
this child inherits; `+PID PIPE` when it runs, as the leader of its own session, or `!PIPE` when it
could not be started; `-PID` when it has ended. Only the run holds the other end of stdin, so the
end of the input means that the run is gone, however it ended: the script then kills every child
that is still noted, with all descendants. Until then it sleeps in read(2) and does not disturb a
measurement.

Linux could send a signal at the death of the parent (PR_SET_PDEATHSIG), but it sends it when the
*thread* that started the child ends, reaches no grandchildren, and is set between fork and exec,
where a program with threads must not run Python.

It runs as a file, without the package, and imports what it needs for killing only when it kills:
most runs end by themselves.
"""

from __future__ import annotations

import os
import signal
import sys

if False:  # typing.TYPE_CHECKING, without importing typing
    from collections.abc import Collection, Iterable, Mapping

_ROUNDS = 100
_PAUSE_S = 0.05


def watch(lines: Iterable[bytes]) -> tuple[set[int], set[int]]:
    """Reads all notes; returns the sessions and the starts that are left."""
    leaders: set[int] = set()
    starts: set[int] = set()
    for line in lines:
        numbers = [int(word) for word in line[1:].split()]
        if line.startswith(b"?"):
            starts.update(numbers)
        elif line.startswith(b"+"):
            leaders.add(numbers[0])
            starts.discard(numbers[1])
        else:
            starts.difference_update(numbers)
            leaders.difference_update(numbers)
    return leaders, starts


def members(
    leaders: Collection[int], parents: Mapping[int, int], sessions: Mapping[int, int]
) -> set[int]:
    """The processes of these sessions and all of their descendants.

    Descendants count because ninja gives each compiler a process group, and other programs open
    their own sessions.
    """
    found = {pid for pid, session in sessions.items() if session in leaders}
    while True:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        if not more:
            return found
        found |= more


def holders(pipes: Collection[int]) -> set[int]:
    """The leaders of sessions that hold one of these pipes (Linux only; elsewhere none)."""
    from pathlib import Path

    names = {f"pipe:[{inode}]" for inode in pipes}
    found = set()
    for entry in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            pid = int(entry.parts[2])
            # A child leads its session before it closes the pipe that this script reads.
            if str(entry.readlink()) in names and os.getsid(pid) == pid:
                found.add(pid)
        except OSError:  # it has ended since, or is another user's
            continue
    return found


def kill(leaders: Collection[int]) -> None:
    """Kills the sessions and their descendants, until none of them runs."""
    import time

    for _ in range(_ROUNDS):
        parents = _parents()
        found = members(leaders, parents, _sessions(parents)) - {os.getpid()}
        if not found:
            return
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:  # it has ended since
                continue
        time.sleep(_PAUSE_S)


def _parents() -> dict[int, int]:
    """The parent of each running process, without zombies."""
    if sys.platform == "darwin":
        return _parents_on_macos()
    from pathlib import Path

    found = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name before the last parenthesis may contain anything, even parentheses.
            state, parent = entry.read_bytes().rpartition(b")")[2].split()[:2]
        except OSError:  # it has ended since
            continue
        if state not in (b"Z", b"X"):
            found[int(entry.parent.name)] = int(parent)
    return found


def _parents_on_macos() -> dict[int, int]:
    """Uses libproc.h, whose functions return the number of process ids that they wrote."""
    import ctypes

    system = ctypes.CDLL(None)
    room = (ctypes.c_int * (2 * max(1024, system.proc_listallpids(None, 0))))()
    everyone = room[: system.proc_listallpids(room, ctypes.sizeof(room))]
    found = dict.fromkeys(everyone, 0)
    for parent in everyone:
        found |= dict.fromkeys(
            room[: max(0, system.proc_listchildpids(parent, room, ctypes.sizeof(room)))], parent
        )
    return found


def _sessions(pids: Iterable[int]) -> dict[int, int]:
    found = {}
    for pid in pids:
        try:
            found[pid] = os.getsid(pid)
        except OSError:  # it has ended since
            continue
    return found


if __name__ == "__main__":
    # The run handles Ctrl-C and SIGTERM in its own way; the pipe shows when it is gone.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    left, starting = watch(sys.stdin.buffer)
    if starting:
        left |= holders(starting)
    if left:
        kill(left)
