"""What pymobiledevice3 says, as a user can act on it: recorded with 11.45."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.core.errors import DeviceError
from etdeploy.devices.ios.command import PhoneCommand, PhoneCommandResult, last_error
from etdeploy.devices.ios.diagnostics import UntrustedError, explain
from tests.support.ios_command import logged

PHONE = PhoneCommand(Path("/opt/pymobiledevice3"), "U")


def error_for(log: str, *, timed_out: bool = False) -> DeviceError:
    return explain(
        PhoneCommandResult(1, "", last_error(log), timed_out, log), PHONE, "installing the app"
    )


VERIFICATION = "ApplicationVerificationFailed: Failed to verify code signature of /var/x.app : "
LAUNCH = "Failed to invoke com.apple.coredevice.feature.launchapplication: "


@pytest.mark.parametrize(
    ("said", "message", "remedy"),
    [
        ("Failed to connect to usbmuxd socket. Make sure it's running.",
         "usbmuxd, the service that finds iPhones", "Trust"),
        ("Device not found: usbmux has no device matching udid 00008130-001A2B3C4D5E6F70",
         "the phone is not connected", "Plug it in"),
        ("Device is not connected.", "the phone is not connected", "Plug it in"),
        ("Device is not paired.", "does not trust this computer yet", "tap Trust"),
        ("Waiting for the user to answer the Trust dialog on the device.",
         "does not trust this computer yet", "tap Trust"),
        ("The user refused to trust this computer.", "declined to trust", "Reset Location"),
        ("The device no longer accepts this computer's pairing record. Pair it again.",
         "does not trust this computer yet", "tap Trust"),
        ("Device is password protected. Please unlock and retry.", "the phone is locked", "Unlock"),
        ("Developer Mode is disabled. You can try to enable it using: python3 -m pymobiledevice3 "
         "amfi enable-developer-mode", "Developer Mode is off", "Privacy & Security"),
        ("Unable to connect to tunneld. Start one with `sudo python3 -m pymobiledevice3 remote "
         "tunneld`.", "iOS 17.0 to 17.3", "sudo /opt/pymobiledevice3 remote tunneld"),
        ("Connection was terminated abruptly.", "was unplugged while", "Plug it in again"),
        ("No app with bundle ID org.none is installed.", "the app org.none is not installed",
         "installs the app"),
        ("The device refused to open the container of org.x: InstallationLookupFailed",
         "not signed for development", "get-task-allow"),
        ("Failed to write to the file (AFC status NO_SPACE_LEFT).", "storage is full",
         "etdeploy clean --device ios:U"),
        (VERIFICATION + "0xe8008015 (A valid provisioning profile for this executable was not "
         "found.)", "has no provisioning profile that is valid on this phone (0xe8008015)",
         "your team"),
        (VERIFICATION + "0xe8008016 (The executable was signed with invalid entitlements.)",
         "entitlements that its provisioning profile does not allow", "increased-memory-limit"),
        (VERIFICATION + "0xe8008021 (This device has reached the maximum number of installed apps "
         "using a free developer profile)", "the most apps that a free Apple ID", "Delete another"),
        (VERIFICATION + "0xe80080ff (?)", "does not accept the app's signature",
         "Build and sign"),
        ("MismatchedApplicationIdentifierEntitlement: Upgrade's application-identifier entitlement "
         "string (A.org.x) does not match installed application's application-identifier string "
         "(B.org.x); rejecting upgrade.", "signed by another team", "another bundle id"),
        ("IncorrectArchitecture: Failed to find matching arch for 64-bit Mach-O input file",
         "built for the simulator", "generic/platform=iOS"),
        ("DeviceOSVersionTooLow: The system version is lower than the minimum OS version",
         "needs a newer iOS", "IPHONEOS_DEPLOYMENT_TARGET"),
        ("The package is not a valid ZIP archive.", "the archive is not an app", "Payload"),
        ("InstallProhibited: Install prohibited by the profile", "refuses to install", "Xcode"),
        (LAUNCH + "Unable to launch org.x because the device was not, or could not be, unlocked. "
         "(code 10002)", "the phone is locked", "Auto-Lock"),
        (LAUNCH + "Unable to launch org.x because it has an invalid code signature, inadequate "
         "entitlements or its profile has not been explicitly trusted by the user. (code 10002)",
         "does not trust the developer", "VPN & Device Management"),
        (LAUNCH + "The application failed to launch. (code 10002)", "refuses to start the app",
         "by its icon"),
        ("Something new.", "pymobiledevice3 failed while installing the app: Something new",
         "pymobiledevice3 lockdown info"),
    ],
)  # fmt: skip
def test_what_is_said_has_a_cause_and_a_remedy(said: str, message: str, remedy: str) -> None:
    error = error_for(logged(said))
    assert message in error.message
    assert remedy.replace("\n", " ") in (error.remedy or "").replace("\n", " ")
    assert error.place == "ios:U"
    assert error.exit_code == 6


def test_a_phone_that_asks_its_owner_is_not_one_that_hangs() -> None:
    waiting = (
        "2026-11-23 01:22:51 vm pymobiledevice3.lockdown[1] INFO waiting user pairing dialog..."
    )
    assert isinstance(error_for(waiting, timed_out=True), UntrustedError)
    silent = error_for("", timed_out=True)
    assert "installing the app" in silent.message
    assert not isinstance(silent, UntrustedError)


def test_nothing_said_is_told_so() -> None:
    assert "exit code 1" in error_for("").message
