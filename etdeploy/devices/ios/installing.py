"""Why a phone refuses to install an app: what installd says, with a remedy."""

from __future__ import annotations

import re
from collections.abc import Callable

from etdeploy.core.errors import DeviceError
from etdeploy.devices.ios.command import Command

Known = tuple[tuple[str, Callable[[str, Command], DeviceError]], ...]
"""Words of an error, and what explains it."""

INSTALLING = "installing the app"
"""What etdeploy was doing then."""


def short(text: str) -> str:
    """A text of any length as one line."""
    line = " ".join(text.split())
    return line if len(line) <= 300 else line[:300] + "…"


def _unsigned(said: str, command: Command) -> DeviceError:
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


def _another_signer(_said: str, command: Command) -> DeviceError:
    return DeviceError(
        "an app with the same bundle id, signed by another team, is installed on the phone",
        place=command.name,
        remedy="Delete that app on the phone (its data goes with it), or give yours another bundle "
        "id\n(app.id in the recipe).",
    )


def _wrong_processor(_said: str, command: Command) -> DeviceError:
    return DeviceError(
        "the app was built for the simulator, not for an iPhone",
        place=command.name,
        remedy="Build it with -destination 'generic/platform=iOS'.",
    )


def _newer_system(said: str, command: Command) -> DeviceError:
    return DeviceError(
        f"the app needs a newer iOS than the phone has: {short(said)}",
        place=command.name,
        remedy="Update the phone, or lower IPHONEOS_DEPLOYMENT_TARGET (ExecuTorch needs 17.0).",
    )


def _refused_install(said: str, command: Command) -> DeviceError:
    return DeviceError(
        f"the phone refuses to install the app: {short(said)}",
        place=command.name,
        remedy="See what Xcode says when it installs it: Window > Devices and Simulators.",
    )


def _no_archive(said: str, command: Command) -> DeviceError:
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
