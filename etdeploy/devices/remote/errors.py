"""What a push tells its user when a file could not be sent."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

from etdeploy.core import console
from etdeploy.core.errors import DeviceError
from etdeploy.core.hashing import sha256_file
from etdeploy.devices.base import BundleFile
from etdeploy.devices.remote import layout
from etdeploy.devices.remote.shell import RemoteShell


def no_room(
    shell: RemoteShell, needed: int, free: int | None, path: str | None = None
) -> DeviceError:
    """The device has less room than the bundle, or the file of it at `path`, needs; in bytes."""
    room = "unknown" if free is None else console.size(free)
    what = path or "the bundle"
    return DeviceError(
        f"no room on the device: {what} needs {console.size(needed)} ({needed} bytes), and "
        f"{shell.place.base} has {room} free" + ("" if free is None else f" ({free} bytes)"),
        place=shell.name,
        remedy=f"Free some space, or remove what etdeploy keeps there:\n"
        f"etdeploy clean --device {quote(shell.name)}",
    )


def refused(shell: RemoteShell, file: BundleFile, said: str) -> DeviceError:
    """The device could not write a file, and said this."""
    base = shell.place.base
    checking = shell.shell(f"df -k {quote(base)}", "checking its free space")
    free = layout.parse_df(checking.output)
    if "space" in said.lower() or (free is not None and free < file.size_bytes):
        return no_room(shell, file.size_bytes, free, file.path)
    return DeviceError(
        f"the device cannot write {file.path}: {said}",
        place=shell.name,
        remedy=f"Is {base} writable there?\n{shell.advice.prefix} ls -ld {quote(base)}",
    )


def changed(shell: RemoteShell, file: BundleFile, arrived: str, kept: bool = False) -> DeviceError:
    """What arrived has another digest than the source; reads the source again."""
    try:
        if sha256_file(Path(file.source)) != file.sha256:
            return source_changed(file)
    except OSError as error:
        return unreadable(file, error)
    return DeviceError(
        f"{file.path} arrived changed: its SHA-256 is {arrived[:12]}... there "
        f"and {file.sha256[:12]}... here; nothing of it was kept"
        if not kept
        else f"{file.path} arrived changed; the next push sends its damaged parts again",
        place=shell.name,
        remedy=f"{shell.advice.damaged}, then run the same command again.",
    )


def unreadable(file: BundleFile, error: OSError) -> DeviceError:
    """The file here cannot be read."""
    return DeviceError(f"cannot read {file.source}: {error.strerror}")


def source_changed(file: BundleFile) -> DeviceError:
    """The file here is another one than when the bundle was made."""
    return DeviceError(
        f"{file.source} is not the file that the bundle lists: it changed meanwhile",
        remedy="Run the same command again.",
    )
