"""The folder on a device that one push sends into, held by a shell there while the push lasts.

    incoming/TOKEN.PID/   what one push sends; PID is the shell that holds the folder

The shell ends with the connection, whatever broke it, and then removes the folder. The next push
removes a folder whose shell is gone anyway (the device restarted, or ended it). No date is
compared: a device's clock may be wrong, and a push may take hours.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Iterator
from shlex import quote

from etdeploy.core.errors import DeviceError
from etdeploy.devices.remote.shell import RemoteShell


def sweep_command(incoming: str) -> str:
    """Removes what finished pushes left, and anything that no push of this layout made."""
    return (
        f"cd {quote(incoming)} 2>/dev/null && for d in *; do\n"
        # A process with this number that has the token in its command is the folder's holder.
        '  p=${d##*.}; grep -q "${d%.*}" /proc/$p/cmdline 2>/dev/null || rm -rf -- "$d"\n'
        "done"
    )


def hold_command(incoming: str, token: str) -> str:
    """Makes a folder, prints its name, and removes it when nobody listens any longer."""
    return "\n".join(
        (
            f"cd {quote(incoming)} && d={token}.$$ && mkdir $d || exit 1",
            # An adbd that ends tells its shells so by this signal.
            "trap : HUP",
            "echo $d; read -r _; rm -rf $d",
        )
    )


@contextlib.contextmanager
def held_folder(shell: RemoteShell, incoming: str) -> Iterator[str]:
    """A new folder in `incoming`, for this push alone; it is removed when the block ends.

    Raises:
        DeviceError: The device went away, or cannot make it.
    """
    token = secrets.token_hex(8)
    doing = "making a folder for the push"
    with shell.held(hold_command(incoming, token), doing) as answer:
        if not re.fullmatch(rf"{token}\.\d+", answer):
            raise DeviceError(f"the device failed while {doing}: {answer}", place=shell.name)
        folder = f"{incoming}/{answer}"
        try:
            yield folder
        finally:
            # The holder does so too, a moment later, unless the device ended it.
            shell.tidy(f"rm -rf {quote(folder)}")
