"""Why a device does not install an app, by what `pm install` says; all pure.

The codes are those of android.content.pm.PackageManager. Nothing here removes the installed app:
that would take its data along, so it is left to the user, with the command.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from etdeploy.core.errors import DeviceError

_FAILURE = re.compile(r"Failure \[(?P<code>[A-Z_]+)(?::? ?(?P<words>[^\]]*))?", re.DOTALL)
_CODE = re.compile(r"\b(?P<code>INSTALL_[A-Z_]{4,})\b(?P<words>)")
# Of a path that the system's services may not read; a pipe gets around that.
_UNREADABLE = re.compile(
    r"(?:unable to|can't|cannot|failed to) open|has no access to|FileNotFoundException|EACCES",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Refusal:
    """What a code means, and what to do.

    `{id}` stands for the app's, `{adb}` for `adb -s SERIAL`, `{apk}` for its file here.
    """

    message: str
    remedy: str


_UNINSTALL = "or remove the installed app, and its data with it:\n{adb} uninstall {id}"
_OTHER_KEY = Refusal(
    "{id} is installed there, signed with another key, and Android takes updates only from the "
    "key that\nthe app was installed with",
    "Sign with that key (another computer's debug key is another key), give the app another id "
    f"in the recipe,\n{_UNINSTALL}",
)
_NO_ROOM = Refusal(
    "the device has no room for {id}",
    "Free some space on it: an app takes about twice the size of its file while it is installed. "
    "etdeploy's own\nfiles go with: etdeploy clean --device {device}",
)
_DECLINED = Refusal(
    "the installation of {id} was declined or cancelled on the device",
    "Unlock the phone, run the same command again, and confirm the prompt on its screen within its "
    "time.\nHuawei and Honor: Developer options > turn off `Monitor ADB installs`.",
)
_BLOCKED = Refusal(
    "the device's settings do not let adb install {id}",
    "Xiaomi, Redmi, POCO: Settings > Additional settings > Developer options > turn on `Install "
    "via USB`\n(it wants a Mi account and mobile data for that), and confirm the prompt within ten "
    "seconds.\nOppo, realme, vivo: turn off the permission monitoring there. A phone that a company"
    "\nmanages: its administrator forbids it.",
)
_WRONG_ABI = Refusal(
    "{id} has native libraries, and none for this device's processor",
    "Build the app for one of its ABIs:\n{adb} shell getprop ro.product.cpu.abilist",
)
_BROKEN = Refusal(
    "the device cannot read the app's file",
    "Build the app again. What is wrong with the file:\n"
    "apksigner verify --verbose {apk}; aapt2 dump badging {apk}",
)
_UNSIGNED = Refusal(
    "the app's file is not signed, or its signature is damaged",
    "Build the app again; to look at the signature:\napksigner verify --verbose {apk}",
)
_VERIFIER = Refusal(
    "a check of apps on the device, Play Protect or the maker's own, refused {id}",
    "Look at the phone's screen and choose `Install anyway`; or turn the check off for adb: "
    "Developer\noptions > `Verify apps over USB`.",
)
_REFUSALS: Mapping[str, Refusal] = {
    "INSTALL_FAILED_VERSION_DOWNGRADE": Refusal(
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
    "INSTALL_FAILED_OLDER_SDK": Refusal(
        "the device's Android is older than the oldest that {id} is built for",
        "Use a newer device, or lower the app's minimum in the recipe. The device's API level:\n"
        "{adb} shell getprop ro.build.version.sdk",
    ),
    "INSTALL_FAILED_DEPRECATED_SDK_VERSION": Refusal(
        "the Android version that {id} is built for is too old for this device",
        "Raise the app's target version in the recipe.",
    ),
    "INSTALL_FAILED_TEST_ONLY": Refusal(
        "the device takes no app that is marked as being for tests only, as {id} is",
        "Leave android:testOnly out of its manifest, and build it again.",
    ),
    "INSTALL_FAILED_INVALID_APK": _BROKEN,
    "INSTALL_PARSE_FAILED_NO_CERTIFICATES": _UNSIGNED,
    "INSTALL_FAILED_BAD_SIGNATURE": _UNSIGNED,
    "INSTALL_FAILED_VERIFICATION_FAILURE": _VERIFIER,
    "INSTALL_FAILED_VERIFICATION_TIMEOUT": _VERIFIER,
    "INSTALL_FAILED_REJECTED_BY_BUILDTYPE": _VERIFIER,
    "INSTALL_FAILED_MISSING_SHARED_LIBRARY": Refusal(
        "{id} needs a library of the system that this device does not have",
        'Mark it with android:required="false" in the manifest, or use another device.',
    ),
    "INSTALL_FAILED_MISSING_FEATURE": Refusal(
        "{id} needs a feature that this device does not have",
        'Mark it with android:required="false" in the manifest, or use another device.',
    ),
}
_OTHER = Refusal(
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
    """The error for what `pm install` said.

    Args:
        output: Of it.
        app_id: The app's.
        apk: Its file here, quoted for a shell.
        device: The device's name, quoted for a shell.
    """
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
