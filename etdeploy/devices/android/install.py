"""Installs an app from the device's own store, if another one, or none, is installed.

The file does not travel again: `pm` reads what a push verified. It takes a path below
/data/local/tmp on every Android from 6 on; where a maker's policy keeps the system's services from
reading it, the same file goes through a pipe, which needs no permission but the shell's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from shlex import quote

from etdeploy.core import console
from etdeploy.core.values import Progress
from etdeploy.devices.android.diagnostics import explain_install, has_installed, is_unreadable
from etdeploy.devices.android.logs import check_app_id
from etdeploy.devices.base import AppLaunch, Bundle, BundleFile
from etdeploy.devices.remote.shell import DevicePaths, RemoteShell
from etdeploy.devices.shell import sections

_LOOKING = "looking which app is installed"
_HASH_S = 120.0
# A person may be asked on the phone's screen, and a large app is compiled.
_INSTALL_S = 600.0


@dataclass(frozen=True)
class InstalledApk:
    """What is installed under an app's id.

    Attributes:
        user: The number of the user in front of the device.
        paths: Of its files; more than one if it was split.
        sha256: Of the only one; None where that cannot be read.
    """

    user: int
    paths: tuple[str, ...] = ()
    sha256: str | None = None

    def is_content(self, sha256: str) -> bool:
        """Whether it is exactly this file."""
        return len(self.paths) == 1 and self.sha256 == sha256


def install(shell: RemoteShell, bundle: Bundle, app: AppLaunch, progress: Progress) -> None:
    """Installs the app of a bundle that was pushed, and makes the bundle's files readable to it."""
    file = archive_of(bundle, app)
    command = f"{open_command(shell.place)}\n{installed_command(app.id)}"
    there = parse_installed(shell.require(command, _LOOKING, _HASH_S))
    if there.is_content(file.sha256):
        return
    progress(f"installing {app.id} ({console.size(file.size_bytes)}); the phone may ask")
    said = ""
    for way in install_commands(shell.place, file, there.user):
        said = shell.shell(way, "installing the app", _INSTALL_S).output
        if has_installed(said):
            return
        if not is_unreadable(said):
            break
    raise explain_install(said, app.id, file.source, shell.name)


def archive_of(bundle: Bundle, app: AppLaunch) -> BundleFile:
    """The file that is installed."""
    check_app_id(app.id)
    for file in bundle.files:
        if file.path == app.archive:
            return file
    raise ValueError(f"the bundle does not have {app.archive}")


def open_command(place: DevicePaths) -> str:
    """Lets other users, which apps are, read what is pushed; nobody else may write.

    adb's user makes folders that only it may read where the device says so.
    """
    root = quote(place.root)
    return f"chmod 755 {root} {root}/store {root}/bundles {root}/runs || exit 1"


def installed_command(app_id: str) -> str:
    """Prints the user in front, the files of the installed app, and the digest of the first."""
    return "\n".join(
        (
            # Android 6 does not know the question; it, and most phones, have one user.
            "user=$(am get-current-user 2>/dev/null)",
            'case "$user" in ""|*[!0-9]*) user=0;; esac; echo "#user"; echo $user',
            f"paths=$(pm path --user $user {app_id} 2>/dev/null) ||"
            f" {{ [ $user != 0 ] || paths=$(pm path {app_id} 2>/dev/null); }}",
            'echo "#paths"; echo "$paths"; set -- $paths',
            'echo "#digest"; [ $# != 1 ] || sha256sum "${1#package:}" 2>/dev/null; true',
        )
    )


def parse_installed(output: str) -> InstalledApk:
    """Reads what `installed_command` printed."""
    parts = sections(output)
    user = parts.get("user", "").strip()
    digest = re.match(r"([0-9a-f]{64})\b", parts.get("digest", ""))
    return InstalledApk(
        user=int(user) if user.isdigit() else 0,
        paths=tuple(re.findall(r"^package:(\S+)\s*$", parts.get("paths", ""), re.MULTILINE)),
        sha256=digest[1] if digest else None,
    )


def install_commands(place: DevicePaths, file: BundleFile, user: int) -> tuple[str, str]:
    """The ways to install a file of the store: by its path, and by a pipe."""
    path = quote(f"{place.root}/store/{file.sha256}")
    # Replaces an installed one, keeps its data, and takes one that is marked as for tests.
    options = f"-r -t --user {user}"
    return (
        f"pm install {options} {path}",
        f"cat {path} | pm install {options} -S {file.size_bytes}",
    )
