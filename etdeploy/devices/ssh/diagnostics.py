"""Failures of a board that is reached over ssh, by what ssh and the board's shell say."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from shlex import quote

from etdeploy.core.commands import system_command
from etdeploy.core.diagnostics import FailurePattern, FailureTable
from etdeploy.core.errors import DeviceError
from etdeploy.devices.ssh.channel import ForeignError
from etdeploy.devices.ssh.connection import (
    Address,
    SshError,
    SshLostError,
    config_words,
    manual_command,
    resolve_config,
)

_COPY_KEY = (
    "etdeploy never asks for a password. Copy your key to the board once; if you have none,\n"
    "ssh-keygen makes one:\n{copy_key}\n"
    "A key with a passphrase has to be in the agent: ssh-add"
)

SSH_FAILURES = FailureTable(
    "Boards over ssh: the connection",
    DeviceError.exit_code,
    (
        FailurePattern(
            FileNotFoundError, "OpenSSH's client, ssh, is not installed", "{install_ssh}"
        ),
        FailurePattern(
            TimeoutError,
            "the board stopped answering while {activity} (no answer within {idle_s} s)",
            "Check the board and the network, then run the same command again.",
        ),
        FailurePattern(
            ForeignError,
            "the board does not run commands for this user, and it says: {output}",
            "The user needs an ordinary login shell (not nologin or a restricted one), and a key "
            "without\n`command=` in authorized_keys; sshd_config must not have ForceCommand for "
            "it. This must print 1:\n{log_in} echo 1",
        ),
        FailurePattern(
            r"(?ms)REMOTE HOST IDENTIFICATION HAS CHANGED.*"
            r"^Offending \S+ key in (?P<known_hosts>[^\n]+):\d+\s*$",
            "the board's host key is not the one that is known: it was reinstalled, or another "
            "computer answers in its place",
            "If it was reinstalled, forget the old key, then log in once and confirm the new one:\n"
            "ssh-keygen -f {known_hosts} -R {known_as}\n{log_in}",
            formats={"known_hosts": quote},
        ),
        FailurePattern(
            r"REMOTE HOST IDENTIFICATION HAS CHANGED",
            "the board's host key is not the one that is known: it was reinstalled, or another "
            "computer answers in its place",
            "If it was reinstalled, forget the old key, then log in once and confirm the new one:\n"
            "ssh-keygen -R {known_as}\n{log_in}",
        ),
        FailurePattern(
            r"Host key verification failed|No \S+ host key is known",
            "the board's host key is not known on this computer yet",
            "Log in once, compare the fingerprint with the board's, and confirm it:\n{log_in}",
        ),
        FailurePattern(
            r"Permission denied \((?P<methods>[^)]*)\)",
            "the board refuses to log {user} in with the keys of this computer (it accepts "
            "{methods})",
            _COPY_KEY,
            formats={"methods": lambda text: text.replace(",", ", ")},
        ),
        FailurePattern(
            r"Permission denied \(|Too many authentication failures",
            "the board refuses to log {user} in with the keys of this computer",
            _COPY_KEY,
        ),
        FailurePattern(
            r"Could not resolve hostname",
            "the host name {host} cannot be resolved",
            "Check the spelling, and that the board is on the network. A name that only ssh knows "
            "belongs\nin ~/.ssh/config, as a Host with a HostName.",
        ),
        FailurePattern(
            r"Connection refused",
            "nothing accepts connections on port {port} of {host}",
            "Start the ssh server on the board:  sudo systemctl enable --now ssh\n"
            "If it listens on another port:  --device {other_port}",
        ),
        FailurePattern(
            r"No route to host|Network is (unreachable|down)|[Tt]imed out during banner|"
            r"connect to .*timed out|Host is down",
            "{host} does not answer: {output}",
            "Check that the board is on, and on the same network:  ping {host_quoted}\n"
            "A firewall between it and this computer has to let the port through.",
        ),
        FailurePattern(
            r"Bad owner or permissions|Bad configuration option|terminating, \d+ bad configuration|"
            r"Can't open user config file|: [Bb]ad ",
            "ssh refuses its own configuration: {output}",
            "Correct that file; `man ssh_config` describes it.",
        ),
        FailurePattern(
            r"Session open refused by peer|open failed: administratively prohibited",
            "the board allows too few commands at a time on one connection",
            "Set MaxSessions to 10, sshd's usual value, in /etc/ssh/sshd_config on the board:\n"
            "{log_in} grep -rn MaxSessions /etc/ssh",
        ),
        FailurePattern(
            r"does not complete the log-in",
            "the board accepts the connection, but does not complete the log-in",
            "See where it stops:\n{log_in} -v",
        ),
        FailurePattern(
            SshLostError,
            "the board went away while {activity} ({output})",
            "Check its power and the network, and that this works:\n{log_in} true\n"
            "Then run the same command again: what has arrived is kept.",
        ),
        FailurePattern(
            SshError,
            "ssh cannot connect to the board: {output}",
            "See whether this works, and what it says:\n{log_in} true",
        ),
    ),
)


def explain(error: Exception, address: Address, activity: str, idle_s: float = 0) -> DeviceError:
    """Return the error of a connection for the user."""
    settings: Mapping[str, str] = {}
    with suppress(OSError):
        settings = resolve_config(address)
    host, port = settings.get("hostname", address.host), settings.get("port", "22")
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # The name under which known_hosts has the board (sshd(8)).
    known_as = settings.get("hostkeyalias") or (host if port == "22" else f"[{host}]:{port}")
    return SSH_FAILURES.error(
        DeviceError, error, address.name,
        activity=activity,
        idle_s=f"{idle_s:g}",
        output=lines[-1].rstrip(".") if lines else "nothing",
        user=address.user or settings.get("user") or "the user",
        host=host,
        host_quoted=quote(host),
        port=port,
        other_port=quote(address.with_port("PORT")),
        known_as=quote(known_as),
        log_in=manual_command(address),
        copy_key=" ".join(map(quote, ("ssh-copy-id", *config_words(), *address.destination))),
        install_ssh=system_command("openssh-client"),
    )  # fmt: skip
