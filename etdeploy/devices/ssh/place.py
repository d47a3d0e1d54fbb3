"""Where etdeploy keeps things on a board: a folder that it may write to and run programs in."""

from __future__ import annotations

from shlex import quote

from etdeploy.core.errors import DeviceError
from etdeploy.devices.remote.shell import Place
from etdeploy.devices.ssh.address import Address
from etdeploy.devices.ssh.connection import by_hand

# Tried for the remedy only: what is shared with other users is not chosen without being named.
_OTHERS = ("/var/tmp", "/opt", "/srv", "/tmp")  # noqa: S108

_USUAL = "${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}"

# Tells in a word whether a folder can be used; a subshell, so that the next one starts afresh.
_TRY = """try() (
  umask 077
  mkdir -p "$1/etdeploy" 2>/dev/null || { [ -d "$1/etdeploy" ] || { echo write; return; }; }
  cd "$1/etdeploy" || { echo write; return; }
  [ -O . ] || { echo owner; return; }
  t=.try.$$
  e=$( { printf '#!/bin/sh\\nexit 0\\n' >$t && chmod 700 $t; } 2>&1 ) || {
    rm -f $t
    # A full disk is no reason to refuse: what is there can be used, or removed.
    case "$e $(df -k . | tail -n 1)" in *space*|*uota*|*" 100% "*) echo ok;; *) echo write;; esac
    return
  }
  ./$t 2>/dev/null; code=$?
  rm -f $t
  [ $code = 0 ] || { echo exec; return; }
  echo ok
)
"""


def place_command(folder: str | None) -> str:
    """Prints what is wrong with the folder, its path, and a folder that could be used instead.

    Args:
        folder: The one that the user named; None for a folder in the user's home.
    """
    base = quote(folder) if folder else _USUAL
    return (
        f"{_TRY}b={base}\n"
        'state=$(try "$b"); echo "$state"; cd "$b" 2>/dev/null && pwd -P || echo "$b"\n'
        f'[ "$state" = ok ] || for o in {" ".join(_OTHERS)}; do\n'
        '  [ -e "$o/etdeploy" ] || made=$o/etdeploy\n'
        '  r=$(try "$o"); [ -z "$made" ] || rmdir "$made" 2>/dev/null; made=\n'
        '  [ "$r" != ok ] || { echo "$o"; break; }\n'
        "done\n"
        'df -k "$b" 2>&1 | tail -n 1'
    )


def room_command(folder: str | None) -> str:
    """Prints what `df -k` says of that folder, or of the nearest above it; writes nothing."""
    base = quote(folder) if folder else _USUAL
    return f'b={base}; until [ -d "$b" ]; do b=$(dirname "$b"); done; df -k "$b"'


def place_of(output: str, address: Address) -> Place:
    """The folder in the output of `place_command`.

    Raises:
        DeviceError: It cannot be used.
    """
    state, base, *rest = [*output.splitlines(), "", ""]
    if state == "ok" and base.startswith("/") and ":" not in base:
        return Place(base)
    other = next((line for line in rest if line.startswith("/") and " " not in line), None)
    raise DeviceError(
        _problem(state, base, output), place=address.name, remedy=_remedy(address, base, other)
    )


def _problem(state: str, base: str, output: str) -> str:
    if state == "exec":
        return f"programs cannot be run in {base} on the board: it is mounted with noexec"
    if state == "owner":
        return f"{base}/etdeploy on the board belongs to another user"
    if state == "write":
        return f"etdeploy cannot write to {base} on the board: it is read-only, full, or another's"
    return f"etdeploy cannot use the folder {base or output.strip()!r} on the board"


def _remedy(address: Address, base: str, other: str | None) -> str:
    looking = by_hand(address, f"df -h {quote(base)}; ls -ld {quote(base)}; mount")
    if other:
        return (
            f"Use another folder of the board, for instance:\n"
            f"--device {quote(address.in_folder(other))}\n"
            f"or see what is wrong with this one:\n{looking}"
        )
    return (
        f"See what is wrong with it:\n{looking}\n"
        f"or use another folder of the board:  --device {quote(address.in_folder('/FOLDER'))}"
    )
