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
from etdeploy.devices.remote.parts import release_command
from etdeploy.devices.remote.shell import Place, RemoteShell


def sweep_command(place: Place) -> str:
    """Removes what finished pushes left, and anything that no push of this layout made."""
    incoming, partial = quote(place.incoming), quote(place.partial)
    return (
        f"[ -d {incoming} ] && [ -d {partial} ] || mkdir -p {incoming} {partial}\n"
        f"cd {incoming} || exit 1\n"
        'for d in *; do [ -e "$d" ] || continue\n'
        # A process with this number that has the token in its command is the folder's holder.
        '  p=${d##*.}; if ! grep -q "${d%.*}" /proc/$p/cmdline 2>/dev/null; then\n'
        f"""{release_command(place, '"$d"')}\n"""
        "  fi\n"
        "done"
    )


def hold_command(place: Place, token: str) -> str:
    """Makes a folder, prints its name, and releases it when nobody listens any longer."""
    return "\n".join(
        (
            f"cd {quote(place.incoming)} && d={token}.$$ && mkdir $d || exit 1",
            # An adbd that ends tells its shells so by this signal.
            "trap : HUP",
            "echo $d; read -r _",
            release_command(place, "$d"),
        )
    )


@contextlib.contextmanager
def held_folder(shell: RemoteShell) -> Iterator[str]:
    """A new folder for this push alone; it is released when the block ends.

    Raises:
        DeviceError: The device went away, or cannot make it.
    """
    token = secrets.token_hex(8)
    doing = "making a folder for the push"
    with shell.held(hold_command(shell.place, token), doing) as holder:
        answer = holder.hear()
        if not re.fullmatch(rf"{token}\.\d+", answer):
            raise DeviceError(f"the device failed while {doing}: {answer}", place=shell.name)
        folder = f"{shell.place.incoming}/{answer}"
        try:
            yield folder
        finally:
            # The holder does so too, a moment later, unless the device ended it.
            shell.tidy(release_command(shell.place, quote(folder)))
