"""Installs an app from the device's own store, if another one, or none, is installed.

The file does not travel again: `pm` reads what a push verified. It takes a path below
/data/local/tmp on every Android from 6 on; where a maker's policy keeps the system's services from
reading it, the same file goes through a pipe, which needs no permission but the shell's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from shlex import quote

from etdeploy.core import console
from etdeploy.core.errors import DeviceError
from etdeploy.core.values import Progress
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
        if has_succeeded(said):
            return
        if not cannot_open(said):
            break
    raise refusal(said, app.id, quote(file.source), quote(shell.name))


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


_FAILURE = re.compile(r"Failure \[(?P<code>[A-Z_]+)(?::? ?(?P<words>[^\]]*))?", re.DOTALL)
_CODE = re.compile(r"\b(?P<code>INSTALL_[A-Z_]{4,})\b(?P<words>)")
# Of a path that the system's services may not read; a pipe gets around that.
_UNREADABLE = re.compile(
    r"(?:unable to|can't|cannot|failed to) open|has no access to|FileNotFoundException|EACCES",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class InstallFailure:
    """What a code means, and what to do.

    `{id}` stands for the app's, `{adb}` for `adb -s SERIAL`, `{apk}` for its file here.
    """

    message: str
    remedy: str


_UNINSTALL = "or remove the installed app, and its data with it:\n{adb} uninstall {id}"
_OTHER_KEY = InstallFailure(
    "{id} is installed there, signed with another key, and Android takes updates only from the "
    "key that\nthe app was installed with",
    "Sign with that key (another computer's debug key is another key), give the app another id "
    f"in the recipe,\n{_UNINSTALL}",
)
_NO_ROOM = InstallFailure(
    "the device has no room for {id}",
    "Free some space on it: an app takes about twice the size of its file while it is installed. "
    "etdeploy's own\nfiles go with: etdeploy clean --device {device}",
)
_DECLINED = InstallFailure(
    "the installation of {id} was declined or cancelled on the device",
    "Unlock the phone, run the same command again, and confirm the prompt on its screen within its "
    "time.\nHuawei and Honor: Developer options > turn off `Monitor ADB installs`.",
)
_BLOCKED = InstallFailure(
    "the device's settings do not let adb install {id}",
    "Xiaomi, Redmi, POCO: Settings > Additional settings > Developer options > turn on `Install "
    "via USB`\n(it wants a Mi account and mobile data for that), and confirm the prompt within ten "
    "seconds.\nOppo, realme, vivo: turn off the permission monitoring there. A phone that a company"
    "\nmanages: its administrator forbids it.",
)
_WRONG_ABI = InstallFailure(
    "{id} has native libraries, and none for this device's processor",
    "Build the app for one of its ABIs:\n{adb} shell getprop ro.product.cpu.abilist",
)
_BROKEN = InstallFailure(
    "the device cannot read the app's file",
    "Build the app again. What is wrong with the file:\n"
    "apksigner verify --verbose {apk}; aapt2 dump badging {apk}",
)
_UNSIGNED = InstallFailure(
    "the app's file is not signed, or its signature is damaged",
    "Build the app again; to look at the signature:\napksigner verify --verbose {apk}",
)
_VERIFIER = InstallFailure(
    "a check of apps on the device, Play Protect or the maker's own, refused {id}",
    "Look at the phone's screen and choose `Install anyway`; or turn the check off for adb: "
    "Developer\noptions > `Verify apps over USB`.",
)
_REFUSALS: Mapping[str, InstallFailure] = {
    "INSTALL_FAILED_VERSION_DOWNGRADE": InstallFailure(
        "a newer version of {id} is installed",
        f"Give the app a higher version code in the recipe,\n{_UNINSTALL}",
    ),
    "INSTALL_FAILED_UPDATE_INCOMPATIBLE": _OTHER_KEY,
    "INSTALL_FAILED_SHARED_USER_INCOMPATIBLE": _OTHER_KEY,
    "INSTALL_PARSE_FAILED_INCONSISTENT_CERTIFICATES": _OTHER_KEY,
    "INSTALL_FAILED_INSUFFICIENT_STORAGE": _NO_ROOM,
    "INSTALL_FAILED_MEDIA_UNAVAILABLE": _NO_ROOM,
    "INSTALL_FAILED_USER_RESTRICTED": _BLOCKED,
    "INSTALL_FAILED_ABORTED": _DECLINED,
    "INSTALL_CANCELED_BY_USER": _DECLINED,
    "INSTALL_FAILED_NO_MATCHING_ABIS": _WRONG_ABI,
    "INSTALL_FAILED_CPU_ABI_INCOMPATIBLE": _WRONG_ABI,
    "INSTALL_FAILED_OLDER_SDK": InstallFailure(
        "the device's Android is older than the oldest that {id} is built for",
        "Use a newer device, or lower the app's minimum in the recipe. The device's API level:\n"
        "{adb} shell getprop ro.build.version.sdk",
    ),
    "INSTALL_FAILED_DEPRECATED_SDK_VERSION": InstallFailure(
        "the Android version that {id} is built for is too old for this device",
        "Raise the app's target version in the recipe.",
    ),
    "INSTALL_FAILED_TEST_ONLY": InstallFailure(
        "the device takes no app that is marked as being for tests only, as {id} is",
        "Leave android:testOnly out of its manifest, and build it again.",
    ),
    "INSTALL_FAILED_INVALID_APK": _BROKEN,
    "INSTALL_PARSE_FAILED_NO_CERTIFICATES": _UNSIGNED,
    "INSTALL_FAILED_BAD_SIGNATURE": _UNSIGNED,
    "INSTALL_FAILED_VERIFICATION_FAILURE": _VERIFIER,
    "INSTALL_FAILED_VERIFICATION_TIMEOUT": _VERIFIER,
    "INSTALL_FAILED_REJECTED_BY_BUILDTYPE": _VERIFIER,
    "INSTALL_FAILED_MISSING_SHARED_LIBRARY": InstallFailure(
        "{id} needs a library of the system that this device does not have",
        'Mark it with android:required="false" in the manifest, or use another device.',
    ),
    "INSTALL_FAILED_MISSING_FEATURE": InstallFailure(
        "{id} needs a feature that this device does not have",
        'Mark it with android:required="false" in the manifest, or use another device.',
    ),
}
_OTHER = InstallFailure(
    "the device did not install {id}",
    "Look at its screen, and run the same command again; by hand:\n{adb} install -r -t {apk}",
)


def has_succeeded(output: str) -> bool:
    """Whether `pm install` installed the app; its exit code differs among versions."""
    return re.search(r"^\s*Success\b", output, re.MULTILINE) is not None


def cannot_open(output: str) -> bool:
    """Whether the system's services may not read the file where it is."""
    return not _FAILURE.search(output) and _UNREADABLE.search(output) is not None


def refusal(output: str, app_id: str, apk: str, device: str) -> DeviceError:
    """The error for what `pm install` said."""
    found = _FAILURE.search(output) or _CODE.search(output)
    code = found["code"] if found else ""
    known = _REFUSALS.get(code) or (_BROKEN if "_PARSE_FAILED_" in code else _OTHER)
    said = " ".join((f"{code}: {found['words']}" if found else output).split()).rstrip(": ")
    fields = {
        "id": app_id,
        "adb": f"adb -s {device.partition(':')[2]}",
        "apk": apk,
        "device": device,
    }
    return DeviceError(
        f"{known.message.format(**fields)} ({said[:300] or 'it said nothing'})",
        place=device,
        remedy=known.remedy.format(**fields),
    )
