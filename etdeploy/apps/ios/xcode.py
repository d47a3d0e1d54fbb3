"""Xcode: its command lines, what it says where its product is, and what its errors mean."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from etdeploy.backends.base import Backend
from etdeploy.backends.registry import backend_of, known_backends
from etdeploy.backends.schemes import OTHER_PROGRAM
from etdeploy.core.diagnostics import Diagnosis, FailurePattern, FailureTable
from etdeploy.core.errors import Blocker, BuildError
from etdeploy.custom_ops.kernels import CustomOps
from etdeploy.plan.components import (
    KERNELS_ETDEPLOY,
    KERNELS_LLM,
    KERNELS_OPTIMIZED,
    KERNELS_QUANTIZED,
    KERNELS_TORCHAO,
    RUNTIME,
    operator_component,
    threaded,
)
from etdeploy.program.model import Program
from etdeploy.targets.platforms import find_target

CONFIGURATION = "Release"


@dataclass(frozen=True)
class XcodeBuild:
    """A build of a generated project, whose scheme has the target's name.

    One for the simulator needs no signature. Without a `team`, the project names it.
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
        """The command that prints where the app will be; see `find_built_app`."""
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


def find_built_app(output: str) -> Path:
    """The folder `NAME.app`, from what `XcodeBuild.settings` printed.

    Xcode prints notes before the list, and targets of packages may be in it.
    """
    for target in _target_settings(output):
        settings = target.get("buildSettings", {})
        folder, name = settings.get("TARGET_BUILD_DIR"), settings.get("WRAPPER_NAME", "")
        if folder and name.endswith(".app"):
            return Path(folder) / name
    raise BuildError(
        "Xcode does not print where the app is",
        remedy="See its output:  xcodebuild -showBuildSettings -json",
    )


def _target_settings(output: str) -> list[dict[str, dict[str, str]]]:
    start = re.search(r"^\[", output, re.MULTILINE)
    try:
        found = json.JSONDecoder().raw_decode(output[start.start() :])[0] if start else []
    except ValueError:
        return []
    return [each for each in found if isinstance(each, dict)]


_ACCOUNT = (
    "Add your Apple ID in Xcode (Settings, Accounts); a free one has a team, too.\n"
    "Then name its id of ten letters and digits: --set app.team=ABCDE12345"
)
# Failures further down are often consequences of those further up.
XCODE_FAILURES = FailureTable(
    "Building an iOS app with Xcode",
    BuildError.exit_code,
    (
        FailurePattern(
            r"requires Xcode, but active developer directory",
            "Xcode is not installed, or only its command line tools are selected",
            "Install Xcode from the App Store, then:\n"
            "sudo xcode-select --switch /Applications/Xcode.app",
        ),
        FailurePattern(
            r"agreed to the Xcode license|Agreeing to the Xcode.* license requires",
            "Xcode's licence is not accepted yet",
            "sudo xcodebuild -license accept",
        ),
        FailurePattern(
            r"iOS [\d.]+ is not installed|"
            r"Unable to find a destination matching[\s\S]*?generic/platform=iOS",
            "Xcode is installed without its support for iOS",
            "xcodebuild -downloadPlatform iOS",
        ),
        FailurePattern(
            r"[Cc]ould not resolve package dependencies:?\s*(?P<reason>.+)",
            "Xcode cannot fetch ExecuTorch's Swift package: {reason}",
            "Check that github.com and ossci-ios.s3.amazonaws.com can be reached from this Mac, "
            "and that the branch exists:\n"
            "git ls-remote https://github.com/pytorch/executorch 'swiftpm-*'",
        ),
        FailurePattern(r"requires a development team", "no team signs the app", _ACCOUNT),
        FailurePattern(
            r"No Account for Team \"?(?P<team>\w+)",
            "Xcode has no account of team {team}",
            _ACCOUNT,
        ),
        FailurePattern(
            r"do(?:es)? not support the (?P<name>[\w ]+?) capability",
            "a free team cannot use the capability {name}",
            "Remove it from App.entitlements, or use a team with a paid developer account.",
        ),
        FailurePattern(
            r"bundle identifier \"?(?P<id>[\w.-]+?)\"? cannot be registered|"
            r"identifier \"(?P<id2>[\w.-]+)\" is not available",
            "the bundle id {id} belongs to another team",
            "Choose one that nobody has: --set app.id=com.YOURNAME.mymodel",
        ),
        FailurePattern(
            r"no devices from which to generate a provisioning profile|"
            r"no devices (?:registered )?(?:in|on) your (?:team|account)",
            "your team has no registered phone yet, so Xcode cannot make a provisioning profile",
            "Connect the phone, open the project in Xcode and press Run once.",
        ),
        FailurePattern(
            r"No profiles for '(?P<id>[^']+)' were found",
            "no provisioning profile exists for {id}",
            "Open the project in Xcode once: Signing & Capabilities says what is missing.",
        ),
        FailurePattern(
            r"No signing certificate \"[^\"]+\" found|errSecInternalComponent|"
            r"Code[Ss]ign(?:ing)? error: No code signing identities found",
            "the keychain has no certificate to sign with, or is locked",
            "Create one in Xcode: Settings, Accounts, Manage Certificates, +, Apple Development.\n"
            "Over ssh, unlock the keychain first:  security unlock-keychain",
        ),
        FailurePattern(
            r"(?m)^(?:Undefined symbols? for architecture|ld: symbol\(s\) not found)",
            "the app does not link: symbols of ExecuTorch are missing",
            "See the log. Compare the project's Other Linker Flags and package products with those "
            "of a new project.",
        ),
        FailurePattern(
            r"(?m)^(?P<place>[^\s:][^:\n]*\.(?:swift|cpp|h|mm?):\d+):\d+: "
            r"(?:fatal )?error: (?P<reason>.+)",
            "{place}: {reason}",
            "Correct that line, or generate the project again.",
        ),
    ),
)


def build_failure(output: str, log: Path | None = None) -> BuildError:
    """Explain a failed build to somebody who never saw Xcode."""
    error = re.search(r"\berror: (.*)", output)
    found = XCODE_FAILURES.diagnose(output) or Diagnosis(
        f"xcodebuild failed: {error[1] if error else 'it names no reason'}",
        "Open the project in Xcode, which shows the reason at its place.",
    )
    return BuildError(found.cause, remedy=found.remedy, log=log)


def no_xcode() -> BuildError:
    """The error where xcodebuild is not installed."""
    return BuildError(
        "an iOS app is built by Xcode, which runs on a Mac only",
        remedy="Copy the project to a Mac and open it in Xcode,\n"
        "or bring a built .ipa back:  etdeploy run --device ios --app MyApp.ipa",
    )


RUNTIME_PRODUCT = "executorch"
_KERNELS = (KERNELS_OPTIMIZED, KERNELS_QUANTIZED, KERNELS_LLM, KERNELS_TORCHAO)
# Their libraries use the thread pool, and of these only that of aten's kernels brings it along.
_NEED_POOL = frozenset({KERNELS_QUANTIZED, KERNELS_LLM})


def swift_products(program: Program) -> tuple[str, ...]:
    """The package's products that an app with the program links, sorted.

    `package_blockers` has those that the package lacks.
    """
    found = {RUNTIME_PRODUCT}
    for delegate_id in program.backend_ids:
        backend = backend_of(delegate_id)
        if backend and backend.component and _has(backend):
            found.add(backend.component)
    found |= {name for o in program.operators if (name := operator_component(o)) in _KERNELS}
    if found & _NEED_POOL:
        found.add(KERNELS_OPTIMIZED)
    return tuple(sorted(found))


def _has(backend: Backend) -> bool:
    """The package has every backend that runs on iPhones."""
    return backend.runs_on(find_target("ios-arm64"))


def has_thread_pool(products: tuple[str, ...]) -> bool:
    """Whether any of the products brings ExecuTorch's thread pool along."""
    return bool(threaded(products))


def package_blockers(
    program: Program, *, finished: bool = False, own: CustomOps | None = None
) -> Iterator[Blocker]:
    """Reasons why the program cannot run with the package, and the recipe's `own` kernels."""
    for delegate_id in program.backend_ids:
        backend = backend_of(delegate_id)
        if backend is None or not _has(backend):
            yield Blocker(
                what=f"backend {delegate_id}",
                why=f"the program has parts for {delegate_id}, which does not run on iPhones",
                remedy=OTHER_PROGRAM if finished else _other_backends(),
                of_program=True,
            )
    lacking: dict[str | None, list[str]] = {}
    for operator in program.operators:
        component = operator_component(operator)
        if component is None and own and (own.operators is None or operator in own.operators):
            continue
        if component not in (RUNTIME, *_KERNELS):
            lacking.setdefault(component, []).append(operator)
    for component, names in lacking.items():
        yield _no_kernels(component, names, own)


def kernel_blockers(own: CustomOps | None) -> Iterator[Blocker]:
    """Reasons why Xcode cannot build the recipe's own kernels."""
    if own and own.target:
        yield Blocker(
            what="runtime.custom_ops_target",
            why=f"{own.target} is a target of CMake's, and Xcode compiles the kernels of an iOS "
            "app from their sources",
            remedy="List the operators with their kernels in a yaml file beside the sources, as "
            "docs/custom_ops.md describes,\nand leave out runtime.custom_ops_target.",
        )


def _other_backends() -> str:
    names = [b.name for b in known_backends() if b.lowering and b.component and _has(b)]
    settings = "   or ".join(f"--set export.backend={name}" for name in names)
    return f"Export for another backend: {settings}"


def _no_kernels(component: str | None, names: list[str], own: CustomOps | None) -> Blocker:
    of_etdeploy = component == KERNELS_ETDEPLOY
    if of_etdeploy:
        remedy = (
            "Export the model without them: --set export.generation.layout=executorch   or "
            "--set export.generation.attention=stock"
        )
    elif own:
        remedy = f"List them in the yaml file of {own.folder}."
    else:
        remedy = "Name the folder with their C++ kernels: --set runtime.custom_ops=path/to/kernels"
    return Blocker(
        what=f"operators {', '.join(names)}",
        why=f"the program calls {', '.join(names)}; ExecuTorch's Swift package has no kernel for "
        + ("etdeploy's own operators" if of_etdeploy else "them"),
        remedy=remedy,
        of_program=True,
    )


VARIABLES = ("ETDEPLOY_TEAM", "DEVELOPMENT_TEAM")
LIST_IDENTITIES = ("security", "find-identity", "-v", "-p", "codesigning")

_IDENTITY = re.compile(r'^\s*\d+\) (?P<digest>[0-9A-F]{40}) "(?P<name>[^"]+)"', re.MULTILINE)
_DEVELOPS = re.compile(r"(?:Apple Development|iPhone Developer): ")
_UNIT = re.compile(r"\bOU ?= ?(?P<team>[A-Z0-9]{10})\b")
_TEAM = re.compile(r"[A-Z0-9]{10}")


def identities(listed: str) -> tuple[str, ...]:
    """The names of the certificates that sign apps in development."""
    names = (match["name"] for match in _IDENTITY.finditer(listed))
    return tuple(dict.fromkeys(name for name in names if _DEVELOPS.match(name)))


def certificate_command(name: str) -> tuple[str, ...]:
    """Prints a certificate of the keychain in PEM, for `subject_command`."""
    return ("security", "find-certificate", "-c", name, "-p")


def subject_command(certificate: str) -> tuple[str, ...]:
    """Prints the subject of a certificate in a file; OpenSSL's and LibreSSL's forms differ."""
    return ("openssl", "x509", "-noout", "-subject", "-in", certificate)


def parse_team(subject: str) -> str | None:
    """The team in `subject= /UID=.../CN=.../OU=ABCDE12345/...`; None if there is none."""
    found = _UNIT.search(subject)
    return found["team"] if found else None


def choose_team(
    recipe: str | None, environ: Mapping[str, str], keychain: Callable[[], Iterable[str]]
) -> str | Blocker:
    """The id of the team that signs."""
    named = [("app.team", recipe), *((name, environ.get(name)) for name in VARIABLES)]
    for place, team in named:
        if team:
            return team if _TEAM.fullmatch(team) else _malformed(place, team)
    found = sorted(set(keychain()))
    if len(found) == 1:
        return found[0]
    return _several(found) if found else _none()


def _malformed(place: str, team: str) -> Blocker:
    return Blocker(
        what="developer team",
        why=f"{place} is '{team}', and the id of a team has ten letters and digits, as in "
        "ABCDE12345",
        remedy="It is in Xcode, Settings, Accounts, or at developer.apple.com/account.",
    )


def _several(teams: list[str]) -> Blocker:
    return Blocker(
        what="developer team",
        why=f"the keychain has certificates of several teams: {', '.join(teams)}",
        remedy=f"Name the one that signs: --set app.team={teams[0]}",
    )


def _none() -> Blocker:
    return Blocker(
        what="developer team",
        why="no team can sign the app: neither app.team nor "
        f"{' nor '.join(VARIABLES)} names a team, and the keychain has no certificate for "
        "development",
        remedy="Open Xcode, Settings, Accounts, and add your Apple ID (a free one will do); then "
        "Manage\nCertificates, +, Apple Development.",
    )
