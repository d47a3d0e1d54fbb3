"""Errors of an iPhone as a user can act on them: cause and remedy, from what is said of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from etdeploy.core.errors import DeviceError
from etdeploy.devices.ios.command import PhoneCommand, PhoneCommandResult

Known = tuple[tuple[str, Callable[[str, PhoneCommand], DeviceError]], ...]
"""Words of an error, and what explains it."""

INSTALLING = "installing the app"
"""What etdeploy was doing then."""


def short(text: str) -> str:
    """A text of any length as one line."""
    line = " ".join(text.split())
    return line if len(line) <= 300 else line[:300] + "…"


def _unsigned(said: str, command: PhoneCommand) -> DeviceError:
    code = re.search(r"0xe800[0-9a-f]{4}", said)
    reason = _SIGNING.get(code[0]) if code else None
    cause, remedy = reason or (
        "the phone does not accept the app's signature",
        "Build and sign it again with Xcode, for this phone.",
    )
    return DeviceError(
        f"{cause}{f' ({code[0]})' if code else ''}", place=command.name, remedy=remedy
    )


_PROFILE = (
    "In Xcode, choose your team under Signing & Capabilities with this phone connected, so that\n"
    "it is registered; or let xcodebuild do it with -allowProvisioningUpdates."
)
# Codes of the service that checks signatures (MobileDevice), as Xcode explains them.
_SIGNING: dict[str, tuple[str, str]] = {
    "0xe8008012": ("the phone is not in the app's provisioning profile", _PROFILE),
    "0xe8008014": ("the app was changed after it was signed", "Build and sign the .ipa again."),
    "0xe8008015": ("the app has no provisioning profile that is valid on this phone", _PROFILE),
    "0xe8008016": (
        "the app asks for entitlements that its provisioning profile does not allow",
        "A free team has no increased-memory-limit: remove that entitlement, or use a paid team.\n"
        + _PROFILE,
    ),
    "0xe8008017": ("a file of the app was changed after it was signed", "Build the .ipa again."),
    "0xe8008018": (
        "the certificate that signed the app is not valid any more",
        "Make a new one in Xcode > Settings > Accounts > Manage Certificates, and build again.",
    ),
    "0xe800801c": (
        "the app is not signed",
        "Build it with a team: DEVELOPMENT_TEAM=... CODE_SIGN_STYLE=Automatic.",
    ),
    "0xe8008021": (
        "the phone has the most apps that a free Apple ID may install (3)",
        "Delete another app that you installed with this Apple ID.",
    ),
}


def _another_signer(_said: str, command: PhoneCommand) -> DeviceError:
    return DeviceError(
        "an app with the same bundle id, signed by another team, is installed on the phone",
        place=command.name,
        remedy="Delete that app on the phone (its data goes with it), or give yours another bundle "
        "id\n(app.id in the recipe).",
    )


def _wrong_processor(_said: str, command: PhoneCommand) -> DeviceError:
    return DeviceError(
        "the app was built for the simulator, not for an iPhone",
        place=command.name,
        remedy="Build it with -destination 'generic/platform=iOS'.",
    )


def _newer_system(said: str, command: PhoneCommand) -> DeviceError:
    return DeviceError(
        f"the app needs a newer iOS than the phone has: {short(said)}",
        place=command.name,
        remedy="Update the phone, or lower IPHONEOS_DEPLOYMENT_TARGET (ExecuTorch needs 17.0).",
    )


def _refused_install(said: str, command: PhoneCommand) -> DeviceError:
    return DeviceError(
        f"the phone refuses to install the app: {short(said)}",
        place=command.name,
        remedy="See what Xcode says when it installs it: Window > Devices and Simulators.",
    )


def _no_archive(said: str, command: PhoneCommand) -> DeviceError:
    return DeviceError(
        f"the archive is no app: {short(said)}",
        place=command.name,
        remedy="An .ipa is a ZIP file with the folder Payload and the .app in it; export it again.",
    )


REFUSED: Known = (
    (r"MismatchedApplicationIdentifier", _another_signer),
    (r"IncorrectArchitecture|matching arch|built for .*[Ss]imulator", _wrong_processor),
    (r"DeviceOSVersionTooLow|OSVersion|MinimumOSVersion", _newer_system),
    (r"0xe800[0-9a-f]{4}|ApplicationVerificationFailed", _unsigned),
    (r"not a valid (\.ipa|ZIP)|PackageExtractionFailed|PackageInspectionFailed", _no_archive),
    (r"^\w+: ", _refused_install),
)  # fmt: skip
"""Errors of installd, the last for those that are not known by their names."""


AGAIN = "Then run the same command again."
CONNECT_STEPS = (
    "1. Connect the iPhone with a cable and unlock it.\n"
    "2. Tap Trust on its screen, and enter its passcode.\n"
    "3. etdeploy devices    (shows the phone)"
)
TRUST_STEPS = (
    "Unlock the phone, tap Trust on its screen, and enter its passcode.\n"
    "If nothing is asked there: unplug the phone and plug it in again, or Settings > General >\n"
    f"Transfer or Reset iPhone > Reset > Reset Location & Privacy, which asks again. {AGAIN}"
)
DEVELOPER_MODE_STEPS = (
    "On the phone: Settings > Privacy & Security > Developer Mode > on. It restarts; unlock it\n"
    "and confirm `Turn On`. Where the entry is missing, this shows it:\n"
)
_IMAGE_STEPS = (
    "It is downloaded once (about 20 MB) and signed by Apple for this phone, so this computer\n"
    "needs the Internet. To see what is said:\n"
)


class UntrustedError(DeviceError):
    """The phone does not trust this computer yet."""


class UnavailableError(DeviceError):
    """The phone does not offer the services that developers use: mode or image is missing."""


def explained(answer: PhoneCommandResult, command: PhoneCommand, doing: str) -> DeviceError:
    """An error of a request, with what usually causes it and what to do."""
    if answer.timed_out:
        return _silent(answer, command, doing)
    for words, explain in (*_KNOWN, *(REFUSED if doing == INSTALLING else ())):
        if re.search(words, answer.said):
            return explain(answer.said, command)
    said = answer.said.rstrip(".") or f"it ended with exit code {answer.exit_code} and says nothing"
    return DeviceError(
        f"pymobiledevice3 failed while {doing}: {short(said)}",
        place=command.name,
        remedy=f"Unlock the phone, plug it in again, and see what this says:\n"
        f"{command.by_hand('lockdown', 'info')}",
    )


def unplugged(name: str, doing: str | None = None) -> DeviceError:
    """The error for a phone that is gone."""
    return DeviceError(
        f"the phone was unplugged while {doing}" if doing else "the phone is not connected",
        place=name,
        remedy="Plug it in again and unlock it. `etdeploy devices` shows what is connected.\n"
        f"{AGAIN.replace('again.', 'again: what has arrived is kept.')}",
    )


def developer_mode_off(command: PhoneCommand) -> DeviceError:
    """The error for a phone that starts no apps of developers."""
    reveal = command.by_hand("amfi", "reveal-developer-mode")
    return DeviceError(
        "Developer Mode is off on the phone, so it starts no apps that are not from the App Store",
        place=command.name,
        remedy=f"{DEVELOPER_MODE_STEPS}{reveal}\n{AGAIN}",
    )


def image_not_mounted(answer: PhoneCommandResult, command: PhoneCommand) -> DeviceError:
    """The error for a phone whose developer image cannot be mounted."""
    mount = command.by_hand("mounter", "auto-mount")
    offline = re.search(
        r"resolve|Max retries|URLError|query DeveloperDiskImage|SSLError", answer.said
    )
    why = "this computer cannot download it" if offline else short(answer.said) or "no answer"
    return DeviceError(
        f"the phone needs Apple's developer image to start apps, and it cannot be mounted: {why}",
        place=command.name,
        remedy=f"{_IMAGE_STEPS}{mount}",
    )


def too_old(version: Sequence[int], name: str) -> DeviceError:
    """The error for a system that cannot run the app."""
    return DeviceError(
        f"the phone has iOS {'.'.join(map(str, version))}, and ExecuTorch's apps need iOS 17",
        place=name,
        remedy="Update it: Settings > General > Software Update. An iPhone XS, XR or newer can.",
    )


def _silent(answer: PhoneCommandResult, command: PhoneCommand, doing: str) -> DeviceError:
    if "waiting user pairing dialog" in answer.log:
        return _untrusted(answer.said, command)
    return DeviceError(
        f"the phone does not answer while {doing}",
        place=command.name,
        remedy=f"Unlock it, look at its screen, and plug it in again. {AGAIN}",
    )


def _untrusted(_said: str, command: PhoneCommand) -> DeviceError:
    return UntrustedError(
        "the phone does not trust this computer yet", place=command.name, remedy=TRUST_STEPS
    )


def _denied(_said: str, command: PhoneCommand) -> DeviceError:
    return UntrustedError(
        "the phone was told not to trust this computer", place=command.name, remedy=TRUST_STEPS
    )


def _locked(_said: str, command: PhoneCommand) -> DeviceError:
    return DeviceError(
        "the phone is locked",
        place=command.name,
        remedy="Unlock it and leave its screen on. For a longer run: Settings >\n"
        f"Display & Brightness > Auto-Lock > Never. {AGAIN}",
    )


def _no_mux(_said: str, command: PhoneCommand) -> DeviceError:
    return no_usbmuxd(command.name)


def no_usbmuxd(name: str) -> DeviceError:
    """The error where nothing on this computer finds iPhones."""
    import sys

    start = (
        "On a Mac it always runs: restart the Mac."
        if sys.platform == "darwin"
        else "sudo apt-get install usbmuxd\nThen plug the phone in again, which starts it; or: "
        "sudo systemctl restart usbmuxd"
    )
    return DeviceError(
        "usbmuxd, the service that finds iPhones on USB, does not run on this computer",
        place=name,
        remedy=f"{start}\n{CONNECT_STEPS}",
    )


def _mode_off(_said: str, command: PhoneCommand) -> DeviceError:
    return developer_mode_off(command)


def _unavailable(_said: str, command: PhoneCommand) -> DeviceError:
    return UnavailableError(
        "the phone does not offer the services that start apps",
        place=command.name,
        remedy=f"Mount the developer image, and see what is said:\n"
        f"{command.by_hand('mounter', 'auto-mount')}",
    )


def _no_tunnel(_said: str, command: PhoneCommand) -> DeviceError:
    return DeviceError(
        "the phone's developer services are behind a tunnel, which this computer cannot open by "
        "itself: iOS 17.0 to 17.3",
        place=command.name,
        remedy="Update the phone to iOS 17.4 or newer, or leave this running in another terminal:\n"
        f"sudo {command.program} remote tunneld",
    )


def _gone(_said: str, command: PhoneCommand) -> DeviceError:
    return unplugged(command.name)


def _broken_off(_said: str, command: PhoneCommand) -> DeviceError:
    return unplugged(command.name, "etdeploy talked to it")


def _no_app(said: str, command: PhoneCommand) -> DeviceError:
    app = re.search(r"bundle ID (\S+)|application (\S+) is not installed", said)
    named = f" {app[1] or app[2]}" if app else ""
    return DeviceError(
        f"the app{named} is not installed on the phone any more",
        place=command.name,
        remedy="Run the same command again: it installs the app.",
    )


def _closed_container(_said: str, command: PhoneCommand) -> DeviceError:
    return DeviceError(
        "the phone does not open the app's files: the installed app is not signed for development",
        place=command.name,
        remedy="Delete the app on the phone, and build the .ipa with an Apple Development "
        "certificate\n(the entitlement get-task-allow), not for the App Store or Ad Hoc.",
    )


def _full(_said: str, command: PhoneCommand) -> DeviceError:
    return DeviceError(
        "the phone's storage is full",
        place=command.name,
        remedy="Settings > General > iPhone Storage shows what takes the room. To remove what\n"
        f"etdeploy left: etdeploy clean --device {command.name}",
    )


def _distrusted_developer(_said: str, command: PhoneCommand) -> DeviceError:
    return DeviceError(
        "the phone does not trust the developer that signed the app, or the signature has expired",
        place=command.name,
        remedy="On the phone: Settings > General > VPN & Device Management > your Apple ID >\n"
        "Trust. A free Apple ID's apps run for 7 days: build and sign the app again after that.",
    )


def _refused_start(said: str, command: PhoneCommand) -> DeviceError:
    return DeviceError(
        f"the phone refuses to start the app: {short(said)}",
        place=command.name,
        remedy="Unlock the phone, and open the app by its icon once: iOS says there what it\n"
        "lacks, such as trust in the developer (Settings > General > VPN & Device Management).",
    )


_KNOWN: Known = (
    (r"connect to usbmuxd|usbmuxd closed|Lost the connection to usbmuxd", _no_mux),
    (r"refused to trust", _denied),
    (r"not paired|Trust dialog|does not trust|pairing record|Pairing with the device", _untrusted),
    (r"not, or could not be, unlocked|BSErrorCodeDescription = Locked", _locked),
    (r"password protected|protected with a passcode|Unlock the device", _locked),
    (r"[Dd]eveloper [Mm]ode (is )?(disabled|off|not enabled)", _mode_off),
    (r"Failed to start service|does not offer the|InvalidService", _unavailable),
    (r"is not connected|no device matching|serves no tunnel", _gone),
    (r"tunneld|userspace tunnel", _no_tunnel),
    (r"terminated abruptly|closed the (stream|connection)|reset the stream", _broken_off),
    (r"No app with bundle ID|The requested application \S+ is not installed", _no_app),
    (r"refused to open the container", _closed_container),
    (r"NO_SPACE_LEFT|[Nn]ot ?[Ee]nough ?(Disk)?[Ss]pace|InsufficientSpace|No space left", _full),
    (r"invalid code signature|not been explicitly trusted|inadequate entitlements",
     _distrusted_developer),
    (r"launchapplication", _refused_start),
)  # fmt: skip
