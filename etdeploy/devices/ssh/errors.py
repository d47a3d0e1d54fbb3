"""Errors of ssh as a user can act on them: cause and remedy, from what ssh says."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from shlex import quote

from etdeploy.core.commands import system_command
from etdeploy.core.errors import DeviceError
from etdeploy.devices.ssh.connection import Address, SshError, by_hand, config_words, effective

_GO_ON = "Then run the same command again: what has arrived is kept."


def not_installed(address: Address) -> DeviceError:
    """The error where there is no ssh program."""
    return DeviceError(
        "OpenSSH's client, ssh, is not installed",
        place=address.name,
        remedy=system_command("openssh-client"),
    )


def explained(error: SshError, address: Address, doing: str) -> DeviceError:
    """An error of the connection, with what usually causes it and what to do."""
    said = str(error)
    for words, explain in _KNOWN:
        if re.search(words, said):
            message, remedy = explain(said, address)
            return DeviceError(message, place=address.name, remedy=remedy)
    last = _last(said)
    if error.connected:
        return DeviceError(
            f"the board went away while {doing} ({last})",
            place=address.name,
            remedy=f"Check its power and the network, and that this works:\n"
            f"{by_hand(address, 'true')}\n{_GO_ON}",
        )
    return DeviceError(
        f"ssh cannot connect to the board: {last}",
        place=address.name,
        remedy=f"See whether this works, and what it says:\n{by_hand(address, 'true')}",
    )


def foreign(said: str, address: Address) -> DeviceError:
    """The error where something other than etdeploy's command ran on the board."""
    words = f", and it says: {_last(said)}" if said.strip() else ""
    return DeviceError(
        f"the board does not run commands for this user{words}",
        place=address.name,
        remedy="The user needs an ordinary login shell (not nologin or a restricted one), and a "
        "key without\n`command=` in authorized_keys; sshd_config must not have ForceCommand for "
        f"it. This must print 1:\n{by_hand(address, 'echo', '1')}",
    )


_Explained = tuple[str, str]


def _changed_key(said: str, address: Address) -> _Explained:
    found = re.search(r"^Offending \S+ key in (.+):\d+\s*$", said, re.MULTILINE)
    file = f"-f {quote(found[1])} " if found else ""
    forget = f"ssh-keygen {file}-R {quote(_known_as(_settings(address), address))}"
    return (
        "the board's host key is not the one that is known: it was reinstalled, or another "
        "computer answers in its place",
        f"If it was reinstalled, forget the old key, then log in once and confirm the new one:\n"
        f"{forget}\n{by_hand(address)}",
    )


def _unknown_key(_said: str, address: Address) -> _Explained:
    return (
        "the board's host key is not known on this computer yet",
        "Log in once, compare the fingerprint with the board's, and confirm it:\n"
        f"{by_hand(address)}",
    )


def _refused_key(said: str, address: Address) -> _Explained:
    user = address.user or _settings(address).get("user")
    copy = " ".join(map(quote, ("ssh-copy-id", *config_words(), *address.destination)))
    offered = re.search(r"Permission denied \(([^)]*)\)", said)
    methods = f" (it accepts {offered[1].replace(',', ', ')})" if offered else ""
    return (
        f"the board refuses to log {user or 'the user'} in with the keys of this computer{methods}",
        "etdeploy never asks for a password. Copy your key to the board once; if you have none,\n"
        f"ssh-keygen makes one:\n{copy}\n"
        "A key with a passphrase has to be in the agent: ssh-add",
    )


def _unknown_host(_said: str, address: Address) -> _Explained:
    return (
        f"there is no host {_hostname(address)}: this computer cannot find its address",
        "Check the spelling, and that the board is on the network. A name that only ssh knows "
        "belongs\nin ~/.ssh/config, as a Host with a HostName.",
    )


def _refused(_said: str, address: Address) -> _Explained:
    port = _settings(address).get("port", "22")
    return (
        f"nothing accepts connections on port {port} of {_hostname(address)}",
        "Start the ssh server on the board:  sudo systemctl enable --now ssh\n"
        f"If it listens on another port:  --device {quote(address.with_port('PORT'))}",
    )


def _unreachable(said: str, address: Address) -> _Explained:
    host = _hostname(address)
    return (
        f"{host} does not answer: {_last(said)}",
        f"Check that the board is on, and on the same network:  ping {quote(host)}\n"
        "A firewall between it and this computer has to let the port through.",
    )


def _bad_config(said: str, _address: Address) -> _Explained:
    return (
        f"ssh refuses its own configuration: {_last(said)}",
        "Correct that file; `man ssh_config` describes it.",
    )


def _too_many(_said: str, address: Address) -> _Explained:
    return (
        "the board allows too few commands at a time on one connection",
        "Set MaxSessions to 10, sshd's usual value, in /etc/ssh/sshd_config on the board:\n"
        f"{by_hand(address, 'grep -rn MaxSessions /etc/ssh')}",
    )


def _stuck(_said: str, address: Address) -> _Explained:
    return (
        "the board accepts the connection, but does not complete the log-in",
        f"See where it stops:\n{by_hand(address, '-v')}",
    )


_KNOWN: tuple[tuple[str, Callable[[str, Address], _Explained]], ...] = (
    ("REMOTE HOST IDENTIFICATION HAS CHANGED", _changed_key),
    (r"Host key verification failed|No \S+ host key is known", _unknown_key),
    (r"Permission denied \(|Too many authentication failures", _refused_key),
    (r"Could not resolve hostname", _unknown_host),
    (r"Connection refused", _refused),
    (r"No route to host|Network is (unreachable|down)|[Tt]imed out during banner|"
     r"connect to .*timed out|Host is down", _unreachable),
    (r"Bad owner or permissions|Bad configuration option|terminating, \d+ bad configuration|"
     r"Can't open user config file|: [Bb]ad ", _bad_config),
    (r"Session open refused by peer|open failed: administratively prohibited", _too_many),
    (r"does not complete the log-in", _stuck),
)  # fmt: skip


def _settings(address: Address) -> Mapping[str, str]:
    try:
        return effective(address)
    except OSError:
        return {}


def _hostname(address: Address) -> str:
    return _settings(address).get("hostname", address.host)


def _known_as(settings: Mapping[str, str], address: Address) -> str:
    """The name under which known_hosts has the board (sshd(8))."""
    alias = settings.get("hostkeyalias")
    host, port = settings.get("hostname", address.host), settings.get("port", "22")
    return alias or (host if port == "22" else f"[{host}]:{port}")


def _last(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else "it says nothing"
