"""The command lines of OpenSSH's client, and what it says of a host's configuration."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from shlex import quote

from etdeploy.core.processes import process
from etdeploy.devices.ssh.address import Address

CONFIG_VARIABLE = "ETDEPLOY_SSH_CONFIG"
"""Names the configuration file that ssh reads, in place of the user's and the system's."""

_CONNECT_S = 10
# A board that left the network answers no probe: it is missed after 3 x 5 s.
_OPTIONS = (
    "BatchMode=yes",
    f"ConnectTimeout={_CONNECT_S}",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
    "Compression=no",
    "ControlPersist=no",
    "RemoteCommand=none",
    "PermitLocalCommand=no",
    "ClearAllForwardings=yes",
    "LogLevel=ERROR",
)
ENVIRONMENT = {"SSH_ASKPASS_REQUIRE": "never", "LC_ALL": "C"}
"""For every ssh: nothing may ask, and its messages must be those that are known."""


def config_words() -> tuple[str, ...]:
    """The option that names another configuration file, if one is wanted."""
    chosen = os.environ.get(CONFIG_VARIABLE)
    return ("-F", chosen) if chosen else ()


def master_command(address: Address, socket: Path) -> tuple[str, ...]:
    """Connects, logs in, and serves the socket until it is ended."""
    return (
        "ssh", *config_words(), "-M", "-N", "-T", "-x", "-a", "-S", str(socket),
        *_with_o(_OPTIONS), *_words(address),
    )  # fmt: skip


def channel_command(socket: Path, command: str) -> tuple[str, ...]:
    """Runs a command over the connection that serves the socket, and never over another one."""
    return (
        "ssh", "-F", os.devnull, "-T", "-x", "-a", "-S", str(socket),
        *_with_o(("ControlMaster=no", "ProxyCommand=false", "BatchMode=yes", "LogLevel=ERROR")),
        "--", "board", command,
    )  # fmt: skip


def by_hand(address: Address, *command: str) -> str:
    """What a user types to reach the board."""
    return " ".join(map(quote, ("ssh", *config_words(), *address.destination, *command)))


def effective(address: Address) -> Mapping[str, str]:
    """What ssh makes of its configuration for this board: hostname, port, user and the like.

    Raises:
        FileNotFoundError: ssh is not installed.
    """
    argv = ("ssh", *config_words(), "-G", *_words(address))
    outcome = process.run(process.Request(argv, env=ENVIRONMENT, timeout_s=_CONNECT_S))
    return dict(re.findall(r"^(\w+) (.*)$", outcome.stdout, re.MULTILINE))


def _words(address: Address) -> tuple[str, ...]:
    *options, destination = address.destination
    return (*options, "--", destination)


def _with_o(options: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word for option in options for word in ("-o", option))
