"""Failures of an iPhone, by what pymobiledevice3 and the phone's services say."""

from __future__ import annotations

from pathlib import Path

from etdeploy.core.diagnostics import FailurePattern, FailureTable
from etdeploy.core.errors import DeviceError
from etdeploy.devices.ios.command import PROGRAM, PhoneCommand, PhoneCommandResult

INSTALLING = "installing the app"
"""The activity in which installd's errors are looked for."""

CONNECT_STEPS = (
    "1. Connect the iPhone with a cable and unlock it.\n"
    "2. Tap Trust on its screen, and enter its passcode.\n"
    "3. etdeploy devices    (shows the phone)"
)
_AGAIN = "Then run the same command again."
_TRUST_STEPS = (
    "Unlock the phone, tap Trust on its screen, and enter its passcode.\n"
    "If nothing is asked there: unplug the phone and plug it in again, or Settings > General >\n"
    f"Transfer or Reset iPhone > Reset > Reset Location & Privacy, which asks again. {_AGAIN}"
)
_UNPLUGGED_STEPS = (
    "Plug it in again and unlock it. `etdeploy devices` shows what is connected.\n"
    "Then run the same command again: what has arrived is kept."
)
_LOCKED = (
    "the phone is locked",
    "Unlock it and leave its screen on. For a longer run: Settings >\n"
    f"Display & Brightness > Auto-Lock > Never. {_AGAIN}",
)


class UntrustedError(DeviceError):
    """The phone does not trust this computer yet."""


class UnavailableError(DeviceError):
    """The phone does not offer the services that developers use: mode or image is missing."""


TRUST_FAILURES = FailureTable(
    "iPhones: trust",
    DeviceError.exit_code,
    (
        FailurePattern(
            r"refused to trust", "its user declined to trust this computer", _TRUST_STEPS
        ),
        FailurePattern(
            r"not paired|Trust dialog|does not trust|pairing record|Pairing with the device|"
            r"waiting user pairing dialog",
            "the phone does not trust this computer yet",
            _TRUST_STEPS,
        ),
    ),
)

PHONE_FAILURES = FailureTable(
    "iPhones: usbmuxd, lock and Developer Mode",
    DeviceError.exit_code,
    (
        FailurePattern(
            r"connect to usbmuxd|usbmuxd closed|Lost the connection to usbmuxd",
            "usbmuxd, the service that finds iPhones on USB, does not run on this computer",
            "On Linux: sudo apt-get install usbmuxd\nThen plug the phone in again, which starts "
            "it; or: sudo systemctl restart usbmuxd\n"
            f"On a Mac it always runs: restart the Mac.\n{CONNECT_STEPS}",
        ),
        FailurePattern(
            r"not, or could not be, unlocked|BSErrorCodeDescription = Locked|password protected|"
            r"protected with a passcode|Unlock the device",
            *_LOCKED,
        ),
        FailurePattern(
            r"[Dd]eveloper [Mm]ode (is )?(disabled|off|not enabled)",
            "Developer Mode is off on the phone, so it starts only apps from the App Store",
            "On the phone: Settings > Privacy & Security > Developer Mode > on. It restarts; "
            "unlock it\nand confirm `Turn On`. Where the entry is missing, this shows it:\n"
            f"{PROGRAM} amfi reveal-developer-mode\n{_AGAIN}",
        ),
    ),
)

SERVICE_FAILURES = FailureTable(
    "iPhones: developer services",
    DeviceError.exit_code,
    (
        FailurePattern(
            r"Failed to start service|does not offer the|InvalidService",
            "the phone does not offer the services that start apps",
            f"Mount the developer image, and see what it says:\n{PROGRAM} mounter auto-mount",
        ),
    ),
)

IMAGE_FAILURES = FailureTable(
    "iPhones: the developer image",
    DeviceError.exit_code,
    tuple(
        FailurePattern(
            pattern,
            "the phone needs Apple's developer image to start apps, and it cannot be mounted: "
            + cause,
            "It is downloaded once (about 20 MB) and signed by Apple for this phone, so this "
            "computer\nneeds the Internet. To see what it says:\n"
            f"{PROGRAM} mounter auto-mount",
        )
        for pattern, cause in {
            r"resolve|Max retries|URLError|query DeveloperDiskImage|SSLError": "this computer "
            "cannot download it",
            r"": "{output}",
        }.items()
    ),
)

REQUEST_FAILURES = FailureTable(
    "iPhones: requests",
    DeviceError.exit_code,
    (
        FailurePattern(
            r"is not connected|no device matching|serves no tunnel",
            "the phone is not connected",
            _UNPLUGGED_STEPS,
        ),
        FailurePattern(
            r"tunneld|userspace tunnel",
            "the phone's developer services are behind a tunnel, which this computer cannot open "
            "by itself: iOS 17.0 to 17.3",
            "Update the phone to iOS 17.4 or newer, or leave this running in another terminal:\n"
            "sudo {program} remote tunneld",
        ),
        FailurePattern(
            r"terminated abruptly|closed the (stream|connection)|reset the stream",
            "the phone was unplugged while etdeploy talked to it",
            _UNPLUGGED_STEPS,
        ),
        FailurePattern(
            r"No app with bundle ID (?P<app>\S+)|"
            r"The requested application (?P<app2>\S+) is not installed",
            "the app {app} is not installed on the phone any more",
            "Run the same command again: it installs the app.",
        ),
        FailurePattern(
            r"refused to open the container",
            "the phone does not open the app's files: the installed app is not signed for "
            "development",
            "Delete the app on the phone, and build the .ipa with an Apple Development "
            "certificate\n(the entitlement get-task-allow), not for the App Store or Ad Hoc.",
        ),
        FailurePattern(
            r"NO_SPACE_LEFT|[Nn]ot ?[Ee]nough ?(Disk)?[Ss]pace|InsufficientSpace|No space left",
            "the phone's storage is full",
            "Settings > General > iPhone Storage shows what takes the room. To remove what\n"
            "etdeploy left: etdeploy clean --device {device}",
        ),
        FailurePattern(
            r"invalid code signature|not been explicitly trusted|inadequate entitlements",
            "the phone does not trust the developer that signed the app, or the signature has "
            "expired",
            "On the phone: Settings > General > VPN & Device Management > your Apple ID >\n"
            "Trust. A free Apple ID's apps run for 7 days: build and sign the app again after "
            "that.",
        ),
        FailurePattern(
            r"launchapplication",
            "the phone refuses to start the app: {output}",
            "Unlock the phone, and open the app by its icon once: iOS says there what it\n"
            "lacks, such as trust in the developer (Settings > General > VPN & Device "
            "Management).",
        ),
        FailurePattern(
            r"^no answer$",
            "the phone does not answer while {activity}",
            f"Unlock it, look at its screen, and plug it in again. {_AGAIN}",
        ),
    ),
)

_PROFILE = (
    "In Xcode, choose your team under Signing & Capabilities with this phone connected, so that\n"
    "it is registered; or let xcodebuild do it with -allowProvisioningUpdates."
)

IOS_INSTALL_FAILURES = FailureTable(
    "iPhones: installing an app",
    DeviceError.exit_code,
    (
        FailurePattern(
            r"MismatchedApplicationIdentifier",
            "an app with the same bundle id, signed by another team, is installed on the phone",
            "Delete that app on the phone (its data goes with it), or give yours another bundle "
            "id\n(app.id in the recipe).",
        ),
        FailurePattern(
            r"IncorrectArchitecture|matching arch|built for .*[Ss]imulator",
            "the app was built for the simulator, not for an iPhone",
            "Build it with -destination 'generic/platform=iOS'.",
        ),
        FailurePattern(
            r"DeviceOSVersionTooLow|OSVersion|MinimumOSVersion",
            "the app needs a newer iOS than the phone has: {output}",
            "Update the phone, or lower IPHONEOS_DEPLOYMENT_TARGET (ExecuTorch needs 17.0).",
        ),
        # Codes of the service that checks signatures (MobileDevice), as Xcode explains them.
        FailurePattern(
            r"0xe8008012", "the phone is not in the app's provisioning profile (0xe8008012)",
            _PROFILE,
        ),
        FailurePattern(
            r"0xe8008014", "the app was changed after it was signed (0xe8008014)",
            "Build and sign the .ipa again.",
        ),
        FailurePattern(
            r"0xe8008015",
            "the app has no provisioning profile that is valid on this phone (0xe8008015)",
            _PROFILE,
        ),
        FailurePattern(
            r"0xe8008016",
            "the app asks for entitlements that its provisioning profile does not allow "
            "(0xe8008016)",
            "A free team has no increased-memory-limit: remove that entitlement, or use a paid "
            f"team.\n{_PROFILE}",
        ),
        FailurePattern(
            r"0xe8008017", "a file of the app was changed after it was signed (0xe8008017)",
            "Build the .ipa again.",
        ),
        FailurePattern(
            r"0xe8008018",
            "the certificate that signed the app is not valid any more (0xe8008018)",
            "Make a new one in Xcode > Settings > Accounts > Manage Certificates, and build "
            "again.",
        ),
        FailurePattern(
            r"0xe800801c", "the app is not signed (0xe800801c)",
            "Build it with a team: DEVELOPMENT_TEAM=... CODE_SIGN_STYLE=Automatic.",
        ),
        FailurePattern(
            r"0xe8008021",
            "the phone has the most apps that a free Apple ID may install: 3 (0xe8008021)",
            "Delete another app that you installed with this Apple ID.",
        ),
        FailurePattern(
            r"(?P<code>0xe800[0-9a-f]{4})|ApplicationVerificationFailed",
            "the phone does not accept the app's signature: {output}",
            "Build and sign it again with Xcode, for this phone.",
        ),
        FailurePattern(
            r"not a valid (\.ipa|ZIP)|PackageExtractionFailed|PackageInspectionFailed",
            "the archive is not an app: {output}",
            "An .ipa is a ZIP file with the folder Payload and the .app in it; export it again.",
        ),
        FailurePattern(
            r"^\w+: ",
            "the phone refuses to install the app: {output}",
            "See what Xcode says when it installs it: Window > Devices and Simulators.",
        ),
    ),
)  # fmt: skip
"""Errors of installd, the last for those whose names are not known."""

RUN_FAILURES = FailureTable(
    "iPhones: running an app",
    DeviceError.exit_code,
    (
        FailurePattern(
            r"^interrupted$",
            "{app} was not in front until its run ended, so its times would not count: iOS slows "
            "down an app that something covers, and suspends one in the background",
            "Unlock the phone, keep the app on the screen and leave it alone, then run the same "
            "command again.\nCalls and alarms come to the front by themselves: turn on a Focus, "
            "such as Do Not Disturb.",
        ),
    ),
)
"""By the kind of the error that an app leaves."""

OTHER_FAILURES = FailureTable(
    "iPhones: other failures",
    DeviceError.exit_code,
    (
        FailurePattern(
            r"",
            f"{PROGRAM} failed while {{activity}}: {{output}}",
            f"Unlock the phone, plug it in again, and see what this says:\n{PROGRAM} lockdown info",
        ),
    ),
)


def short(text: str) -> str:
    """Return a text of any length as one line."""
    line = " ".join(text.split())
    return line if len(line) <= 300 else line[:300] + "…"


def explain(answer: PhoneCommandResult, command: PhoneCommand, activity: str) -> DeviceError:
    """Return the error of a request for the user."""
    failure = answer.said
    if answer.timed_out:
        asks = "waiting user pairing dialog"
        failure = asks if asks in answer.log else "no answer"
    said = failure.rstrip(".") or f"it ended with exit code {answer.exit_code} and says nothing"
    return phone_error(failure, command.name, activity, command.program, said)


def phone_error(
    failure: str,
    name: str,
    activity: str = "",
    program: Path = Path(PROGRAM),
    said: str | None = None,
) -> DeviceError:
    """Return the error of a phone; `said` is quoted in place of the failure."""
    tables: list[tuple[FailureTable, type[DeviceError]]] = [
        (TRUST_FAILURES, UntrustedError),
        (PHONE_FAILURES, DeviceError),
        (SERVICE_FAILURES, UnavailableError),
        (REQUEST_FAILURES, DeviceError),
    ]
    if activity == INSTALLING:
        tables.append((IOS_INSTALL_FAILURES, DeviceError))
    said = short(failure if said is None else said)
    values = {"activity": activity, "output": said, "device": name, "program": str(program)}
    for table, kind in tables:
        if diagnosis := table.diagnose(failure, **values):
            return kind(diagnosis.cause, place=name, remedy=diagnosis.remedy)
    return OTHER_FAILURES.error(DeviceError, failure, name, **values)
