"""The folder on a device that one push sends into, held by a shell there while the push lasts.

    incoming/TOKEN.PID/   what one push sends; PID is the shell that holds the folder

The shell ends with the connection, whatever broke it, and then removes the folder, except what
arrived of large files (parts.py). The next push does the same with a folder whose shell is gone
(the device restarted, or ended it). No date is compared: a device's clock may be wrong, and a push
may take hours.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Iterator
from shlex import quote

from etdeploy.core.errors import DeviceError
from etdeploy.devices.remote import layout
from etdeploy.devices.remote.parts import release_command
from etdeploy.devices.remote.session import HASH_S, Session, loop_command
from etdeploy.devices.remote.shell import Place, RemoteShell


def sweep_command(place: Place) -> str:
    """Removes what finished pushes left, and anything that no push of this layout made.

    Spares `$own`, the folder of this push.
    """
    return (
        f"cd {quote(place.incoming)} || exit 1\n"
        'for d in *; do [ -e "$d" ] && [ "$d" != "$own" ] || continue\n'
        # A process with this number that has the token in its command is the folder's holder.
        '  p=${d##*.}; if ! grep -q "${d%.*}" /proc/$p/cmdline 2>/dev/null; then\n'
        f"""{release_command(place, '"$d"')}\n"""
        "  fi\n"
        "done"
    )


def hold_command(place: Place, token: str) -> str:
    """Makes a folder, prints its name, and runs scripts; releases it when nobody listens."""
    root = quote(place.root)
    return "\n".join(
        (
            # One tool makes all: to start one takes some ms on a phone, the shell's tests nothing.
            f"own={token}.$$; set -- {root}/incoming/$own",
            f"for d in {' '.join(layout.FOLDERS)}",
            f'do [ -d {root}/$d ] || set -- "$@" {root}/$d; done; mkdir -p "$@" || exit 1',
            # An adbd that ends tells its shells so by HUP, and PIPE comes when nobody listens. What
            # was begun is finished nevertheless, and the folder released.
            "trap '' HUP PIPE",
            sweep_command(place),
            "echo $own",
            loop_command(token),
            release_command(place, "$own"),
        )
    )


@contextlib.contextmanager
def opened_session(shell: RemoteShell) -> Iterator[Session]:
    """A shell with a new folder for this push alone; the folder is released when the block ends.

    Raises:
        DeviceError: The device went away, or cannot make it.
    """
    token = secrets.token_hex(8)
    doing = "checking what it has"
    with shell.held(hold_command(shell.place, token), doing) as holder:
        # Before that, it removes what others left.
        answer = holder.hear(doing, HASH_S)
        if not re.fullmatch(rf"{token}\.\d+", answer):
            raise DeviceError(f"the device failed while {doing}: {answer}", place=shell.name)
        folder = f"{shell.place.incoming}/{answer}"
        try:
            yield Session(shell, holder, folder, token)
        except BaseException:
            # The holder does so too, a moment later, unless the device ended it.
            shell.tidy(release_command(shell.place, quote(folder)))
            raise
