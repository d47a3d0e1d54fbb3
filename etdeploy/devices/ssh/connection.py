"""One connection to a board, shared by all commands (ssh's ControlMaster)."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import IO

from etdeploy.core import cancel
from etdeploy.core.diagnostics import FailurePattern, FailureTable
from etdeploy.core.errors import DeviceError, UsageError
from etdeploy.core.files.basic import claimed, is_abandoned
from etdeploy.core.processes import process
from etdeploy.core.processes.conversation import InteractiveProcess
from etdeploy.devices.remote.shell import DevicePaths

# The path of a socket holds 108 bytes with its end (unix(7)), and ssh first makes it with 17 more.
_LONGEST_PATH = 107 - 17
_PREFIX = "etdeploy-ssh-"
_NAMES = re.compile(rf"{_PREFIX}[a-z0-9_]{{8}}")
_POLL_S = 0.01
# Log-in included, which asks the board's name server for our name on some.
_LOGIN_S = 60.0
_END_S = 2.0


class SshError(Exception):
    """The connection failed; the message is what ssh said."""


class SshLostError(SshError):
    """The connection had been established, and broke."""


class Connection:
    """Connects when the first command needs it, and anew when a connection broke."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._lock = threading.Lock()
        self._held = ExitStack()
        self._master: InteractiveProcess | None = None
        self._socket = Path()

    @contextmanager
    def channel(
        self, script: str, stdin: IO[bytes] | None = None, *, heed_stop: bool = True
    ) -> Iterator[InteractiveProcess]:
        """Runs a script with the board's sh; the end of the block ends its input."""
        socket = self._connected(heed_stop)
        is_long = stdin is None and len(encoded(script)) > LONGEST
        command = as_input() if is_long else as_argument(script)
        request = process.Request(channel_command(socket, command), env=ENVIRONMENT, stdin=stdin)
        with process.talking(request) as conversation:
            if is_long:
                conversation.say(f"{encoded(script)}\n".encode())
            yield conversation

    def failure(self, conversation: InteractiveProcess) -> SshError:
        """Why a channel ended before its script did."""
        said = conversation.errors().strip()
        master = self._master
        if master is not None and _has_ended(master):
            said = master.errors().strip() or said
        return SshLostError(said or "the connection was closed")

    def close(self) -> None:
        """Ends the connection, and every channel that is left."""
        with self._lock:
            self._disconnect()

    def _connected(self, heed_stop: bool) -> Path:
        with self._lock:
            if self._master is None or self._master.exit_code is not None:
                self._disconnect()
                self._connect(heed_stop)
            return self._socket

    def _connect(self, heed_stop: bool) -> None:
        folder = self._held.enter_context(_private_folder())
        self._socket = folder / "s"
        argv = master_command(self.address, self._socket)
        # What cleans up after a stop goes through this connection.
        request = process.Request(argv, env=ENVIRONMENT, outlives_stop=True)
        master = self._held.enter_context(process.talking(request))
        deadline = time.monotonic() + _LOGIN_S
        # ssh makes the socket once it is logged in.
        while not self._socket.exists():
            if heed_stop:
                cancel.checkpoint()
            if master.exit_code is not None:
                self._held.close()
                raise SshError(master.errors().strip())
            if time.monotonic() > deadline:
                self._held.close()
                raise SshError("the board does not complete the log-in")
            time.sleep(_POLL_S)
        self._master = master

    def _disconnect(self) -> None:
        self._held.close()
        self._master = None


def _has_ended(master: InteractiveProcess) -> bool:
    """Whether the connection broke; its end follows that of its channels at once."""
    try:
        master.ended(_END_S)
    except TimeoutError:
        return False
    return True


@contextmanager
def _private_folder() -> Iterator[Path]:
    """A folder for the socket that nobody else can read, with a short path."""
    parent = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
    fits = len(os.fsencode(parent / f"{_PREFIX}12345678" / "s")) <= _LONGEST_PATH
    if not fits or not os.access(parent, os.W_OK | os.X_OK):
        parent = Path("/tmp")  # noqa: S108 - mkdtemp makes a folder of our own in it
    for left in parent.glob(f"{_PREFIX}*"):
        if _NAMES.fullmatch(left.name) and is_abandoned(left):
            shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    try:
        with claimed(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


LONGEST = 100_000
"""Bytes of a script that goes as an argument; Linux allows 128 KiB (MAX_ARG_STRLEN)."""
_UNSAFE = re.compile(rb"[^ -~]|[!'\\]")
_RUN = r'eval "$(printf %b "$1")"'
_READ = r'read -r s; eval "$(printf %b "$s")"'


def encoded(script: str) -> str:
    """The script without quotes, `!`, backslashes before anything but 0, and newlines."""
    data = _UNSAFE.sub(lambda match: b"\\0%03o" % match[0][0], script.encode())
    return data.decode("ascii")


def as_argument(script: str) -> str:
    """What sshd is asked to run."""
    return f"exec sh -c '{_RUN}' etdeploy '{encoded(script)}'"


def as_input() -> str:
    """What sshd is asked to run where the script comes as the first line of its input."""
    return f"exec sh -c '{_READ}'"


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


def manual_command(address: Address, *command: str) -> str:
    """What a user types to reach the board."""
    return " ".join(map(quote, ("ssh", *config_words(), *address.destination, *command)))


def resolve_config(address: Address) -> Mapping[str, str]:
    """What ssh makes of its configuration for this board: hostname, port, user and the like."""
    argv = ("ssh", *config_words(), "-G", *_words(address))
    outcome = process.run(process.Request(argv, env=ENVIRONMENT, timeout_s=_CONNECT_S))
    return dict(re.findall(r"^(\w+) (.*)$", outcome.stdout, re.MULTILINE))


def _words(address: Address) -> tuple[str, ...]:
    *options, destination = address.destination
    return (*options, "--", destination)


def _with_o(options: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word for option in options for word in ("-o", option))


FOLDER_FAILURES = FailureTable(
    "Boards over ssh: the folder for etdeploy's files",
    DeviceError.exit_code,
    tuple(
        FailurePattern(
            pattern,
            cause,
            "See what is wrong with it:\n{look}\n"
            "or use another folder of the board:\n--device {other}",
        )
        for pattern, cause in {
            "^exec$": "programs cannot be run in {folder} on the board: it is mounted with noexec",
            "^owner$": "{folder}/etdeploy on the board belongs to another user",
            "^write$": "etdeploy cannot write to {folder} on the board: it is read-only, full, or "
            "another's",
            "": "etdeploy cannot use the folder {folder} on the board",
        }.items()
    ),
)
"""By the word that `place_command` prints."""

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
    """Prints what is wrong with the folder, its path, and a folder that could be used instead."""
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


def parse_place(output: str, address: Address) -> DevicePaths:
    """The folder in the output of `place_command`."""
    state, base, *rest = [*output.splitlines(), "", ""]
    if state == "ok" and base.startswith("/") and ":" not in base:
        return DevicePaths(base)
    other = next((line for line in rest if line.startswith("/") and " " not in line), None)
    look = f"df -h {quote(base)}; ls -ld {quote(base)}; mount"
    raise FOLDER_FAILURES.error(
        DeviceError, state, address.name,
        folder=base or repr(output.strip()),
        look=manual_command(address, look),
        other=quote(address.in_folder(other or "/FOLDER")),
    )  # fmt: skip


# No word may begin with a dash, which ssh would take for an option. Names go into the commands of
# ProxyCommand and Match exec in the user's configuration, so nothing that a shell reads is let in.
_FORM = re.compile(
    r"(?:(?P<user>[A-Za-z0-9_.][A-Za-z0-9_.@+\\-]*)@)?"
    r"(?P<host>[A-Za-z0-9_.][A-Za-z0-9_.-]*|\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9_.-]+)?\])"
    r"(?::(?P<port>\d{1,5}))?"
    r"(?::(?P<folder>/.*))?"
)
FORM = "ssh:[USER@]HOST[:PORT][:/FOLDER]"


@dataclass(frozen=True)
class Address:
    """A board as the user names it.

    Attributes:
        text: As it stands after `ssh:`.
        host: A name, an address, or an alias of the user's ssh configuration.
        user: To log in as; None leaves that to the configuration.
        port: None leaves it to the configuration.
        folder: Where etdeploy keeps things there; None for its usual place.
    """

    text: str
    host: str
    user: str | None = None
    port: int | None = None
    folder: str | None = None

    @property
    def name(self) -> str:
        """As `--device` takes it."""
        return f"ssh:{self.text}"

    @property
    def destination(self) -> tuple[str, ...]:
        """The words that name it to ssh."""
        port = ("-p", str(self.port)) if self.port else ()
        return (*port, f"{self.user}@{self.host}" if self.user else self.host)

    def with_port(self, port: str) -> str:
        """The name of the same board with another port."""
        user = f"{self.user}@" if self.user else ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        folder = f":{self.folder}" if self.folder else ""
        return f"ssh:{user}{host}:{port}{folder}"

    def in_folder(self, folder: str) -> str:
        """The name of the same board with another folder."""
        return re.sub(":/.*", "", self.name) + f":{folder}"


def parse_address(text: str) -> Address:
    """Reads what follows `ssh:`."""
    match = _FORM.fullmatch(text)
    if match is None or not 0 < int(match["port"] or 1) < 65536:
        raise _malformed(text)
    folder = match["folder"]
    if folder is not None:
        _check_folder(folder, text)
    return Address(
        text,
        host=match["host"].strip("[]"),
        user=match["user"],
        port=int(match["port"]) if match["port"] else None,
        folder=folder.rstrip("/") or "/" if folder else None,
    )


def _check_folder(folder: str, text: str) -> None:
    # A colon separates folders in LD_LIBRARY_PATH.
    if ":" in folder or not folder.isprintable() or ".." in folder.split("/"):
        raise UsageError(
            f"'ssh:{text}': etdeploy cannot use the folder {folder!r}",
            remedy="Name an absolute path without colons and `..`.",
        )


def _malformed(text: str) -> UsageError:
    return UsageError(
        f"'ssh:{text}' does not name a board",
        remedy=f"Boards are named {FORM}: ssh:pi@raspberrypi.local, ssh:board:2222,\n"
        "ssh:[fe80::1%eth0]:22, ssh:pi@board:/mnt/disk. Everything else that ssh needs belongs in\n"
        "~/.ssh/config, under an alias.",
    )
