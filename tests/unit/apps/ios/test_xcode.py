"""Xcode: command lines, failures, products of the Swift package, and whose signature an app gets.

What Xcode says of a missing team or profile, of packages that cannot be resolved and of undefined
symbols is of public reports (fastlane 12384, 15750, 18182 and 15301, lambdanative 206, lottie-ios
2655, LaunchAtLogin-Legacy 85, executorch 13066). The other messages are written after Apple's
documentation, without a log to compare them with.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.apps.ios.xcode import (
    XcodeBuild,
    build_failure,
    choose_team,
    find_built_app,
    has_thread_pool,
    identities,
    no_xcode,
    package_blockers,
    parse_team,
    swift_products,
)
from etdeploy.core.errors import Blocker, BuildError
from etdeploy.program.model import Program
from tests.support.runtime_values import make_method, make_program

_DATA = Path(__file__).parents[3] / "data/ios"


def _build(**changes: object) -> XcodeBuild:
    facts = {"project": Path("/p/Net.xcodeproj"), "scheme": "Net", "derived_data": Path("/d")}
    return XcodeBuild(**{**facts, **changes})  # type: ignore[arg-type]


def test_a_build_for_a_phone_is_signed_by_the_team() -> None:
    assert _build(team="ABCDE12345").build() == (
        "xcodebuild", "-project", "/p/Net.xcodeproj", "-scheme", "Net",
        "-configuration", "Release", "-destination", "generic/platform=iOS",
        "-derivedDataPath", "/d", "-allowProvisioningUpdates", "CODE_SIGN_STYLE=Automatic",
        "DEVELOPMENT_TEAM=ABCDE12345", "build",
    )  # fmt: skip


def test_a_build_for_the_simulator_is_not_signed() -> None:
    command = _build(simulator=True, team="ABCDE12345").build()
    assert command[command.index("-destination") + 1].endswith("=iOS Simulator")
    assert "CODE_SIGNING_ALLOWED=NO" in command
    assert "-allowProvisioningUpdates" not in command


def test_the_app_is_where_xcode_says() -> None:
    assert _build().settings()[-2:] == ("-showBuildSettings", "-json")
    output = (_DATA / "showBuildSettings.json.txt").read_text()
    found = find_built_app(output)
    assert found == Path("/Users/me/derived/Build/Products/Release-iphoneos/Convnet.app")


@pytest.mark.parametrize("output", ["", "[", "[]", "error: x", '[{"buildSettings": {}}]', "[1]"])
def test_xcode_that_names_no_app_is_told(output: str) -> None:
    with pytest.raises(BuildError, match="Xcode"):
        find_built_app(output)


@pytest.mark.parametrize(
    ("log", "named", "remedy"),
    [
        ("xcode-select: error: tool 'xcodebuild' requires Xcode, but active developer directory "
         "'/Library/Developer/CommandLineTools' is a command line tools instance",
         "only its command line tools", "sudo xcode-select --switch"),
        ("You have not agreed to the Xcode license agreements. Please run 'sudo xcodebuild "
         "-license' from within a Terminal window", "licence", "sudo xcodebuild -license accept"),
        ("Agreeing to the Xcode/iOS license requires admin privileges, please run as root via "
         "sudo.", "licence", "sudo xcodebuild -license accept"),
        ("xcodebuild: error: Unable to find a destination matching the provided destination "
         "specifier:\n\t\t{ generic:1, platform:iOS }\n\n\tIneligible destinations:\n\t\t"
         "{ platform:iOS, error:iOS 18.0 is not installed. To use with Xcode, first download",
         "support for iOS", "xcodebuild -downloadPlatform iOS"),
        ("xcodebuild: error: Could not resolve package dependencies: failed downloading "
         "'https://x/executorch-1.5.1.zip' which is required by binary target 'executorch': "
         'downloadError("A server with the specified hostname could not be found.")',
         "failed downloading 'https://x/executorch-1.5.1.zip'", "git ls-remote"),
        ("/p/Net.xcodeproj: error: Signing for \"Net\" requires a development team. Select a "
         "development team in the Signing & Capabilities editor. (in target 'Net' from project "
         "'Net')\n** BUILD FAILED **", "no team", "--set app.team="),
        ("/p/Net.xcodeproj: error: No Account for Team \"ABCDE12345\". Add a new account in "
         "Accounts settings", "ABCDE12345", "Settings, Accounts"),
        ("error: Cannot create a iOS App Development provisioning profile for "
         '"org.example.net". Personal development teams, including "John Doe", do not support the '
         "Increased Memory Limit capability.", "Increased Memory Limit", "App.entitlements"),
        ("error: Failed Registering Bundle Identifier: The app identifier \"org.example.net\" "
         "cannot be registered to your development team because it is not available. Change your "
         "bundle identifier to a unique string to try again.\n"
         "error: The bundle identifier \"org.example.net\" cannot be registered",
         "org.example.net", "--set app.id="),
        ('The app identifier "org.example.it" is not available', "org.example.it", "--set app.id="),
        ("error: Your team has no devices from which to generate a provisioning profile. Connect "
         "a device to use or manually add device IDs in Certificates, Identifiers & Profiles.\n"
         "error: No profiles for 'org.example.net' were found", "no registered phone", "press Run"),
        ("error: No profiles for 'com.example.myapptarget1.main' were found: Xcode couldn't find "
         "any iOS App Development provisioning profiles matching 'com.example.myapptarget1.main'.",
         "com.example.myapptarget1.main", "Signing & Capabilities"),
        ("error: No signing certificate \"iOS Development\" found: No \"iOS Development\" signing "
         "certificate matching team ID \"ABCDE12345\" with a private key was found.",
         "certificate", "Manage Certificates"),
        ("/d/Net.app: errSecInternalComponent\nCommand CodeSign failed with a nonzero exit code",
         "certificate", "security unlock-keychain"),
        ("Undefined symbols for architecture arm64:\n  \"_vImageScale_ARGB8888\", referenced "
         "from:\nld: symbol(s) not found for architecture arm64", "link", "Other Linker Flags"),
        ("/p/Net/ContentView.swift:12:7: error: cannot find 'x' in scope",
         "/p/Net/ContentView.swift:12: cannot find 'x' in scope", "Correct that line"),
        ("note: Building\nerror: something new\n", "xcodebuild failed: something new", "in Xcode"),
        ("", "no reason", "in Xcode"),
    ],
)  # fmt: skip
def test_a_failure_is_explained_to_somebody_who_never_saw_xcode(
    log: str, named: str, remedy: str
) -> None:
    error = build_failure(f"Command line invocation:\n{log}\n", Path("/l"))
    assert named in error.message
    assert remedy in str(error.remedy)
    assert error.log == Path("/l")


def test_without_a_mac_there_are_two_ways_on() -> None:
    assert "--app MyApp.ipa" in str(no_xcode())


def app_program(*, operators: tuple[str, ...] = (), delegates: tuple[str, ...] = ()) -> Program:
    return make_program(make_method(operators=operators, delegates=delegates))


@pytest.mark.parametrize(
    ("operators", "delegates", "products"),
    [
        (("aten::add.out",), (), ("executorch", "kernels_optimized")),
        ((), ("XnnpackBackend",), ("backend_xnnpack", "executorch")),
        ((), ("CoreMLBackend", "MPSBackend"), ("backend_coreml", "backend_mps", "executorch")),
        (("executorch_prim::add.Scalar", "aten::sym_size.int"), ("CoreMLBackend",),
         ("backend_coreml", "executorch")),
        # Its library needs the thread pool, which comes with the kernels of aten.
        (("quantized_decomposed::add.out",), (),
         ("executorch", "kernels_optimized", "kernels_quantized")),
        (("llama::custom_sdpa.out", "torchao::_linear_8bit_act_4bit_weight.out"), (),
         ("executorch", "kernels_llm", "kernels_optimized", "kernels_torchao")),
    ],
)  # fmt: skip
def test_only_what_the_program_needs_is_linked(
    operators: tuple[str, ...], delegates: tuple[str, ...], products: tuple[str, ...]
) -> None:
    program = app_program(operators=operators, delegates=delegates)
    assert swift_products(program) == products
    assert list(package_blockers(program)) == []


def test_the_thread_pool_comes_with_kernels_or_a_backend_that_uses_it() -> None:
    assert has_thread_pool(("executorch", "kernels_optimized"))
    assert has_thread_pool(("backend_xnnpack", "executorch"))
    assert not has_thread_pool(("backend_coreml", "executorch"))


@pytest.mark.parametrize("backend", ["QnnBackend", "VulkanBackend", "OpenvinoBackend", "Unheard"])
def test_a_backend_that_no_iphone_has_is_refused(backend: str) -> None:
    (blocker,) = package_blockers(app_program(delegates=(backend, "XnnpackBackend")))
    assert blocker.of_program
    assert backend in blocker.why
    assert "--set export.backend=coreml" in blocker.remedy


def test_a_finished_program_cannot_be_exported_by_a_setting() -> None:
    (blocker,) = package_blockers(app_program(delegates=("VulkanBackend",)), finished=True)
    assert "finished" in blocker.remedy
    assert "--set" not in blocker.remedy


def test_operators_without_a_kernel_are_refused() -> None:
    own, theirs = package_blockers(
        app_program(operators=("etdeploy::attention.out", "etdeploy::rotate.out", "mine::op.out"))
    )
    assert all(name in own.why for name in ("etdeploy::attention.out", "etdeploy::rotate.out"))
    assert own.remedy.endswith("--set export.generation.attention=stock")
    assert theirs.what == "operators mine::op.out"


_TEAM = "ABCDE12345"


def _no_keychain() -> tuple[str, ...]:
    raise AssertionError("the keychain is asked although a team is named")


def test_the_recipe_then_the_environment_then_the_keychain() -> None:
    environ = {"ETDEPLOY_TEAM": "ENV0000001", "DEVELOPMENT_TEAM": "ENV0000002"}
    assert choose_team(_TEAM, environ, _no_keychain) == _TEAM
    assert choose_team(None, environ, _no_keychain) == "ENV0000001"
    assert choose_team(None, {"DEVELOPMENT_TEAM": "ENV0000002"}, _no_keychain) == "ENV0000002"
    assert choose_team(None, {}, lambda: (_TEAM, _TEAM)) == _TEAM


@pytest.mark.parametrize(
    ("recipe", "environ", "keychain", "why"),
    [
        ("ABC", {}, (), "app.team is 'ABC'"),
        (None, {"ETDEPLOY_TEAM": "abcde12345"}, (), "ETDEPLOY_TEAM is 'abcde12345'"),
        (None, {}, ("TEAM000002", "TEAM000001"), "several teams: TEAM000001, TEAM000002"),
        (None, {}, (), "ETDEPLOY_TEAM"),
    ],
)
def test_what_is_missing_is_told(
    recipe: str | None, environ: dict[str, str], keychain: tuple[str, ...], why: str
) -> None:
    found = choose_team(recipe, environ, lambda: keychain)
    assert isinstance(found, Blocker)
    assert why in found.why


def test_certificates_for_development_are_found_in_the_keychains_list() -> None:
    listed = (_DATA / "find-identity.txt").read_text()
    found = identities(listed)
    assert [name.split(":")[0] for name in found] == ["iPhone Developer", "Apple Development"]
    assert [name.rpartition("(")[2] for name in found] == ["T5X7QWERMX)", "2XYVHABL7X)"]
    assert identities("     0 valid\n") == ()


@pytest.mark.parametrize(
    "subject",
    [
        "subject= /UID=A1B2C3D4E5/CN=Apple Development: J (2XYVHABL7X)/OU=ABCDE12345/O=J/C=US",
        'subject=UID = A1B2C3D4E5, CN = "Apple Development: J (2XYVHABL7X)", OU = ABCDE12345',
        "subject=UID=A1B2C3D4E5, CN=Apple Development: J (2XYVHABL7X), OU=ABCDE12345, O=J, C=US",
    ],
)
def test_the_team_is_the_certificates_unit_and_not_the_id_in_brackets(subject: str) -> None:
    assert parse_team(subject) == _TEAM
