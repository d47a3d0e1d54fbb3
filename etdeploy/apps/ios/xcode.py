"""Xcode: its command lines, what it says where its product is, and what its errors mean."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from etdeploy.core.errors import BuildError

CONFIGURATION = "Release"


@dataclass(frozen=True)
class XcodeBuild:
    """A build of a generated project.

    Attributes:
        project: The folder `NAME.xcodeproj`.
        scheme: Its scheme, which has the target's name.
        derived_data: Where Xcode puts everything that it makes.
        simulator: Whether it is for the simulator, which needs no signature.
        team: The developer team's id; empty where the project names one.
    """

    project: Path
    scheme: str
    derived_data: Path
    simulator: bool = False
    team: str = ""

    def build(self) -> tuple[str, ...]:
        """The command that builds and signs the app."""
        return (*self._base(), *self._signing(), "build")

    def settings(self) -> tuple[str, ...]:
        """The command that tells where the app will be; see `built_app`."""
        return (*self._base(), *self._signing(), "-showBuildSettings", "-json")

    def _base(self) -> tuple[str, ...]:
        platform = "iOS Simulator" if self.simulator else "iOS"
        return (
            "xcodebuild",
            "-project", str(self.project),
            "-scheme", self.scheme,
            "-configuration", CONFIGURATION,
            "-destination", f"generic/platform={platform}",
            "-derivedDataPath", str(self.derived_data),
        )  # fmt: skip

    def _signing(self) -> tuple[str, ...]:
        if self.simulator:
            return ("CODE_SIGNING_ALLOWED=NO",)
        team = (f"DEVELOPMENT_TEAM={self.team}",) if self.team else ()
        return ("-allowProvisioningUpdates", "CODE_SIGN_STYLE=Automatic", *team)


def built_app(output: str) -> Path:
    """The folder `NAME.app`, from what `XcodeBuild.settings` printed.

    Xcode prints notes before the list, and targets of packages may be in it.

    Raises:
        BuildError: The output names no app.
    """
    for target in _target_settings(output):
        settings = target.get("buildSettings", {})
        folder, name = settings.get("TARGET_BUILD_DIR"), settings.get("WRAPPER_NAME", "")
        if folder and name.endswith(".app"):
            return Path(folder) / name
    raise BuildError(
        "Xcode does not tell where the app is",
        remedy="Look at what it says:  xcodebuild -showBuildSettings -json",
    )


def _target_settings(output: str) -> list[dict[str, dict[str, str]]]:
    start = re.search(r"^\[", output, re.MULTILINE)
    try:
        found = json.JSONDecoder().raw_decode(output[start.start() :])[0] if start else []
    except ValueError:
        return []
    return [each for each in found if isinstance(each, dict)]


@dataclass(frozen=True)
class _Cause:
    """What some words of Xcode's mean: `say` gets what the pattern found."""

    pattern: re.Pattern[str]
    say: Callable[[re.Match[str]], str]
    remedy: str


def _cause(pattern: str, say: Callable[[re.Match[str]], str] | str, remedy: str) -> _Cause:
    told = say if callable(say) else lambda _: str(say)
    return _Cause(re.compile(pattern, re.MULTILINE), told, remedy)


_ACCOUNT = (
    "Add your Apple ID in Xcode (Settings, Accounts); a free one has a team, too.\n"
    "Then name its id of ten letters and digits: --set app.team=ABCDE12345"
)
# The first that fits is the cause: those further down are often its consequences.
_CAUSES = (
    _cause(
        r"requires Xcode, but active developer directory '(?P<folder>[^']*)'",
        "Xcode is not installed, or not chosen: only its command line tools are",
        "Install Xcode from the App Store, then:\n"
        "sudo xcode-select --switch /Applications/Xcode.app",
    ),
    _cause(
        r"agreed to the Xcode license|Agreeing to the Xcode.* license requires",
        "Xcode's licence is not accepted yet",
        "sudo xcodebuild -license accept",
    ),
    _cause(
        r"iOS (?P<version>[\d.]+) is not installed|"
        r"Unable to find a destination matching[\s\S]*?generic/platform=iOS",
        "Xcode is installed without its support for iOS",
        "xcodebuild -downloadPlatform iOS",
    ),
    _cause(
        r"[Cc]ould not resolve package dependencies:?\s*(?P<why>.*)",
        lambda m: f"Xcode cannot fetch ExecuTorch's Swift package: {m['why'].strip()}",
        "Look whether github.com and ossci-ios.s3.amazonaws.com can be reached from here, and "
        "whether the branch exists:\n"
        "git ls-remote https://github.com/pytorch/executorch 'swiftpm-*'",
    ),
    _cause(
        r"requires a development team",
        "no team signs the app",
        _ACCOUNT,
    ),
    _cause(
        r"No Account for Team \"?(?P<team>\w+)",
        lambda m: f"Xcode has no account of team {m['team']}",
        _ACCOUNT,
    ),
    _cause(
        r"do(?:es)? not support the (?P<what>[\w ]+?) capability",
        lambda m: f"a free team may not use the capability {m['what']}",
        "Remove it from App.entitlements, or use a team with a paid developer account.",
    ),
    _cause(
        r"bundle identifier \"?(?P<id>[\w.-]+?)\"? cannot be registered|"
        r"identifier \"(?P<other>[\w.-]+)\" is not available",
        lambda m: f"the bundle id {m['id'] or m['other']} belongs to another team",
        "Choose one that nobody has: --set app.id=com.YOURNAME.mymodel",
    ),
    _cause(
        r"no devices from which to generate a provisioning profile|"
        r"no devices (?:registered )?(?:in|on) your (?:team|account)",
        "your team has no phone registered yet, so there is no profile to sign for",
        "Connect the phone, open the project in Xcode and press Run once.",
    ),
    _cause(
        r"No profiles for '(?P<id>[^']+)' were found",
        lambda m: f"there is no provisioning profile for {m['id']}",
        "Open the project in Xcode once and look at Signing & Capabilities: it says there what is "
        "missing.",
    ),
    _cause(
        r"No signing certificate \"(?P<name>[^\"]+)\" found|errSecInternalComponent|"
        r"Code[Ss]ign(?:ing)? error: No code signing identities found",
        "the keychain has no certificate to sign with, or is locked",
        "Create one in Xcode: Settings, Accounts, Manage Certificates, +, Apple Development.\n"
        "Over ssh, unlock the keychain first:  security unlock-keychain",
    ),
    _cause(
        r"^(?:Undefined symbols? for architecture|ld: symbol\(s\) not found)",
        "the app does not link: symbols of ExecuTorch are missing",
        "Look at the log. The project's Other Linker Flags and package products may have been "
        "changed.",
    ),
    _cause(
        r"^(?P<place>[^\s:][^:\n]*\.(?:swift|cpp|h|mm?):\d+):\d+: (?:fatal )?error: (?P<why>.*)",
        lambda m: f"{m['place']}: {m['why']}",
        "Correct that line, or generate the project anew.",
    ),
)


def build_failure(output: str, log: Path | None = None) -> BuildError:
    """What a failed build means, in words for somebody who never saw Xcode.

    Args:
        output: All that xcodebuild printed.
        log: Where it is, for the message.
    """
    for cause in _CAUSES:
        if found := cause.pattern.search(output):
            return BuildError(cause.say(found), remedy=cause.remedy, log=log)
    errors = re.findall(r"^.*\berror: (.*)", output, re.MULTILINE)
    return BuildError(
        f"xcodebuild failed: {errors[0] if errors else 'it tells no reason'}",
        remedy="Open the project in Xcode, which shows the reason at its place.",
        log=log,
    )


def no_xcode() -> BuildError:
    """Where there is no xcodebuild at all."""
    return BuildError(
        "an iOS app is built by Xcode, which runs on a Mac only",
        remedy="Copy the project to a Mac and open it in Xcode,\n"
        "or bring a built .ipa back:  etdeploy run --device ios --app MyApp.ipa",
    )
