"""Failures of an Android device: its connection, the installation of an app, and an app's run."""

from __future__ import annotations

import re
from pathlib import Path
from shlex import quote

from etdeploy.core.diagnostics import FailurePattern, FailureTable
from etdeploy.core.errors import DeviceError
from etdeploy.devices.adb.stream import (
    AdbBrokenKeyError,
    AdbBusyError,
    AdbError,
    AdbGoneError,
    AdbKeyError,
    AdbReconnectError,
    AdbServerError,
    AdbStateError,
    AdbTimeoutError,
    AdbTlsError,
    AdbUnreachableError,
)

_RUN_AGAIN = "run the same command again: what has arrived is kept."
_BAD_KEY = "this computer's key for adb, {key}, cannot be used: {error}"

ADB_FAILURES = FailureTable(
    "Android: the connection",
    DeviceError.exit_code,
    (
        FailurePattern(
            r"^it is not connected any more$",
            "the device is not connected any more",
            "Plug it in again, or connect to it again (`etdeploy devices` shows it), then "
            + _RUN_AGAIN,
        ),
        FailurePattern(
            r"^its state is (unauthorized|authorizing)$",
            "the device does not allow USB debugging from this computer yet",
            "Unlock the phone and confirm the prompt `Allow USB debugging?` on its screen,\n"
            "then run the same command again. If no prompt shows: Settings > Developer options >\n"
            "Revoke USB debugging authorizations, and plug the phone in again.",
        ),
        FailurePattern(
            r"^its state is offline$",
            "the device is offline: the adb server knows it, but it does not answer",
            "Wake the phone or plug it in again, or:\n{reconnect}",
        ),
        FailurePattern(
            r"^its state is no permissions$",
            "this user has no permission to use the device's USB interface",
            "sudo apt install android-sdk-platform-tools-common && "
            "sudo usermod -aG plugdev $USER\n"
            "Then log in again, and plug the phone in again.",
        ),
        FailurePattern(
            AdbStateError,
            "the device cannot be used: {error}",
            "Wait until it has started, or start it again:\nadb -s {serial} reboot",
        ),
        FailurePattern(
            AdbReconnectError,
            "the device is offline, and the adb server could not reconnect to it: {error}",
            "Wake the device, check that it is on the network and its debugger is on, then:\n"
            "adb connect {serial}",
        ),
        FailurePattern(
            AdbBrokenKeyError,
            _BAD_KEY,
            "Move it away; a new one is made, and the phone asks once more:\n"
            "mv {key_quoted} {key_broken}; rm -f {key_quoted}.pub",
        ),
        FailurePattern(
            AdbKeyError,
            _BAD_KEY,
            'sudo chown -R "$USER" {key_folder} && chmod -R u+rwX {key_folder}',
        ),
        FailurePattern(
            AdbUnreachableError,
            "nothing answers at this address ({error})",
            "Is the address right, and is the device on and on the same network? Its debugger\n"
            "must listen on that port. To make a phone on a cable listen:\n"
            "adb tcpip {port}\n"
            "With wireless debugging: the port on its screen, after `adb pair` and `adb connect`.",
        ),
        FailurePattern(
            AdbServerError,
            "{error}, while {activity}",
            "adb kill-server && adb start-server",
        ),
        FailurePattern(
            AdbTlsError,
            "the device requires an encrypted connection (wireless debugging), "
            "which only the adb program speaks",
            "Pair once, with the address and code from Settings > Developer options > Wireless\n"
            "debugging, then connect:\n"
            "adb pair HOST:PAIRING_PORT && adb connect {serial}",
        ),
        FailurePattern(
            AdbBusyError,
            "another program holds the phone's USB interface",
            "Let the adb server have it:  adb start-server\n"
            "or end what holds it: Android Studio, scrcpy, another etdeploy.",
        ),
        FailurePattern(
            AdbTimeoutError,
            "the device stopped answering while {activity} ({error})",
            "Look at its screen and cable, then run the same command again.",
        ),
        FailurePattern(
            AdbGoneError,
            "the device went away while {activity} ({error})",
            "Check the cable or the network; `etdeploy devices` shows what can be reached.\nThen "
            + _RUN_AGAIN,
        ),
        FailurePattern(
            AdbError,
            "the device failed while {activity}: {error}",
            "Run the same command again; if it fails again, restart the device.",
        ),
    ),
)


def explain(error: AdbError, name: str, activity: str = "connecting") -> DeviceError:
    """Return the error of a connection for the user."""
    serial = name.partition(":")[2]
    port = serial.rpartition(":")[2]
    quoted = quote(serial)
    reconnect = f"adb disconnect {quoted} && adb connect {quoted}"
    key = error.path if isinstance(error, AdbKeyError) else Path()
    return ADB_FAILURES.error(
        DeviceError, error, name,
        activity=activity,
        serial=quoted,
        port=port if port.isdigit() else "5555",
        reconnect=reconnect if ":" in serial else "adb reconnect",
        key=str(key),
        key_quoted=quote(str(key)),
        key_broken=quote(f"{key}.broken"),
        key_folder=quote(str(key.parent)),
    )  # fmt: skip


_UNINSTALL = "or remove the installed app, and its data with it:\n{adb} uninstall {app}"
_BROKEN = (
    "the device cannot read the app's file ({output})",
    "Build the app again. What is wrong with the file:\n"
    "apksigner verify --verbose {apk}; aapt2 dump badging {apk}",
)
_NOT_REQUIRED = 'Mark it with android:required="false" in the manifest, or use another device.'

INSTALL_FAILURES = FailureTable(
    "Android: installing an app",
    DeviceError.exit_code,
    (
        FailurePattern(
            r"^INSTALL_FAILED_VERSION_DOWNGRADE$",
            "a newer version of {app} is installed ({output})",
            f"Give the app a higher version code in the recipe,\n{_UNINSTALL}",
        ),
        FailurePattern(
            r"^INSTALL_(FAILED_(UPDATE|SHARED_USER)_INCOMPATIBLE"
            r"|PARSE_FAILED_INCONSISTENT_CERTIFICATES)$",
            "{app} is installed there, signed with another key, and Android takes updates only "
            "from the key that\nthe app was installed with ({output})",
            "Sign with that key (another computer's debug key is another key), give the app "
            f"another id in the recipe,\n{_UNINSTALL}",
        ),
        FailurePattern(
            r"^INSTALL_FAILED_(INSUFFICIENT_STORAGE|MEDIA_UNAVAILABLE)$",
            "the device has no room for {app} ({output})",
            "Free some space on it: an app takes about twice the size of its file while it is "
            "installed. etdeploy's own\nfiles go with: etdeploy clean --device {device}",
        ),
        FailurePattern(
            r"^INSTALL_FAILED_USER_RESTRICTED$",
            "the device's settings do not let adb install {app} ({output})",
            "Xiaomi, Redmi, POCO: Settings > Additional settings > Developer options > turn on "
            "`Install via USB`\n(it wants a Mi account and mobile data for that), and confirm the "
            "prompt within ten seconds.\nOppo, realme, vivo: turn off the permission monitoring "
            "there. A phone that a company\nmanages: its administrator forbids it.",
        ),
        FailurePattern(
            r"^INSTALL_(FAILED_ABORTED|CANCELED_BY_USER)$",
            "the installation of {app} was declined or cancelled on the device ({output})",
            "Unlock the phone, run the same command again, and confirm the prompt on its screen "
            "within its time.\nHuawei and Honor: Developer options > turn off "
            "`Monitor ADB installs`.",
        ),
        FailurePattern(
            r"^INSTALL_FAILED_(NO_MATCHING_ABIS|CPU_ABI_INCOMPATIBLE)$",
            "{app} has native libraries, and none for this device's processor ({output})",
            "Build the app for one of its ABIs:\n{adb} shell getprop ro.product.cpu.abilist",
        ),
        FailurePattern(
            r"^INSTALL_FAILED_OLDER_SDK$",
            "the device's Android is older than the oldest that {app} is built for ({output})",
            "Use a newer device, or lower the app's minimum in the recipe. The device's API "
            "level:\n{adb} shell getprop ro.build.version.sdk",
        ),
        FailurePattern(
            r"^INSTALL_FAILED_DEPRECATED_SDK_VERSION$",
            "the Android version that {app} is built for is too old for this device ({output})",
            "Raise the app's target version in the recipe.",
        ),
        FailurePattern(
            r"^INSTALL_FAILED_TEST_ONLY$",
            "the device does not take apps that are marked as being for tests only, as {app} is "
            "({output})",
            "Leave android:testOnly out of its manifest, and build it again.",
        ),
        FailurePattern(
            r"^INSTALL_(PARSE_FAILED_NO_CERTIFICATES|FAILED_BAD_SIGNATURE)$",
            "the app's file is not signed, or its signature is damaged ({output})",
            "Build the app again; to look at the signature:\napksigner verify --verbose {apk}",
        ),
        FailurePattern(r"^INSTALL_FAILED_INVALID_APK$|_PARSE_FAILED_", *_BROKEN),
        FailurePattern(
            r"^INSTALL_FAILED_(VERIFICATION_(FAILURE|TIMEOUT)|REJECTED_BY_BUILDTYPE)$",
            "a check of apps on the device, Play Protect or the maker's own, refused {app} "
            "({output})",
            "Look at the phone's screen and choose `Install anyway`; or turn the check off for "
            "adb: Developer\noptions > `Verify apps over USB`.",
        ),
        FailurePattern(
            r"^INSTALL_FAILED_MISSING_SHARED_LIBRARY$",
            "{app} needs a library of the system that this device does not have ({output})",
            _NOT_REQUIRED,
        ),
        FailurePattern(
            r"^INSTALL_FAILED_MISSING_FEATURE$",
            "{app} needs a feature that this device does not have ({output})",
            _NOT_REQUIRED,
        ),
        FailurePattern(
            r"",
            "the device did not install {app} ({output})",
            "Look at its screen, and run the same command again; by hand:\n"
            "{adb} install -r -t {apk}",
        ),
    ),
)
"""By the code that `pm install` prints."""

_FAILURE = re.compile(r"Failure \[(?P<code>[A-Z_]+)(?::? ?(?P<text>[^\]]*))?", re.DOTALL)
_CODE = re.compile(r"\b(?P<code>INSTALL_[A-Z_]{4,})\b(?P<text>)")
# Of a path that the system's services may not read; a pipe gets around that.
_UNREADABLE = re.compile(
    r"(?:unable to|can't|cannot|failed to) open|has no access to|FileNotFoundException|EACCES",
    re.IGNORECASE,
)


def has_installed(output: str) -> bool:
    """Whether `pm install` installed the app; its exit code differs among versions."""
    return re.search(r"^\s*Success\b", output, re.MULTILINE) is not None


def is_unreadable(output: str) -> bool:
    """Whether the system's services may not read the file where it is."""
    return not _FAILURE.search(output) and _UNREADABLE.search(output) is not None


def explain_install(output: str, app_id: str, apk: str, device: str) -> DeviceError:
    """Return the error for what `pm install` printed."""
    match = _FAILURE.search(output) or _CODE.search(output)
    code = match["code"] if match else ""
    said = " ".join((f"{code}: {match['text']}" if match else output).split()).rstrip(": ")
    return INSTALL_FAILURES.error(
        DeviceError, code, device,
        output=said[:300] or "no output",
        app=app_id,
        adb=f"adb -s {quote(device.partition(':')[2])}",
        apk=quote(apk),
        device=quote(device),
    )  # fmt: skip


_BEHIND = "while {app} measured; a device slows down apps that are not in front"
_LEAVE_ALONE = (
    "Leave the device alone until the run ends, then run the same command again."
    "\nCalls and alarms come to the front by themselves: turn on Do not disturb."
)
_SCREEN_BY_HAND = "Turn its screen on by hand, unlock it, and run the same command again."

APP_FAILURES = FailureTable(
    "Android: running an app",
    DeviceError.exit_code,
    (
        FailurePattern(
            r"^locked$",
            "the phone is locked, so that no app can be in front",
            "Unlock it, and run the same command again. Settings > Developer options > `Stay "
            "awake` keeps the screen on while the phone is plugged in.",
        ),
        FailurePattern(r"^screen off$", "the phone's screen stays off", _SCREEN_BY_HAND),
        FailurePattern(
            r"^lock screen$", "the phone's lock screen does not go away", _SCREEN_BY_HAND
        ),
        FailurePattern(
            r"^behind (?P<front>[\w.]+)$",
            f"another app came to the front: {{front}}, {_BEHIND}",
            _LEAVE_ALONE,
        ),
        FailurePattern(
            r"^behind$", f"its screen went off, or it was locked, {_BEHIND}", _LEAVE_ALONE
        ),
        FailurePattern(
            r"^outside: (?P<state>.*)$",
            "{app} was {state} while it measured",
            "Leave the app alone until the run ends, then run the same command again.",
        ),
        FailurePattern(
            r"does not exist",
            "{component} is not installed for the user in front",
            "Run the same command again, which installs it. If the app's sources were changed:\n"
            "the class of its activity has to be MainActivity.",
        ),
        FailurePattern(
            r"",
            "the device does not start {app}: {output}",
            "Look at its screen, and run the same command again; by hand:\n"
            "{adb} am start -W -n {component}",
        ),
    ),
)
"""By what the script that watches an app prints, and what `am start` says."""
