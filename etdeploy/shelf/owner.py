"""Who somebody is, as reservations name people."""

from __future__ import annotations

import getpass
import os
import socket


def this_host() -> str:
    """What this machine is called, by reservations and by a farm."""
    return socket.gethostname() or "localhost"


def myself() -> str:
    """USER@HOST of this process."""
    return f"{_user()}@{this_host()}"


def is_same(owner: str, me: str) -> bool:
    """Whether a reservation's owner is the one who asks.

    Args:
        owner: USER@HOST, or USER for one on every host.
        me: USER@HOST.
    """
    return owner in (me, me.partition("@")[0])


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user need not have a name
        return f"uid-{os.getuid()}"
