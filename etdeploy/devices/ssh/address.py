"""Which board `ssh:[USER@]HOST[:PORT][:/FOLDER]` means; pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from etdeploy.core.errors import UsageError

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
    """Reads what follows `ssh:`.

    Raises:
        UsageError: It has another form.
    """
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
