"""The generated Xcode project: whole, plain, and the same every time."""

from __future__ import annotations

import json
import plistlib
import re
import zlib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import openstep_plist  # type: ignore[import-not-found,import-untyped,unused-ignore]
import pytest

from etdeploy.apps.ios.platform import IosApp
from tests.support.ios_template import SCREENS, Workload, make_app, render_project

pytestmark = pytest.mark.integration

# Workloads with the task of the first screen.
APPS: tuple[tuple[Workload, str], ...] = (
    ("inference", "tensor"),
    ("inference", "image-classification"),
    ("inference", "automatic-speech-recognition"),
    ("generation", "tensor"),
    ("generation", "text-generation"),
)
_ID = re.compile(r"[0-9A-F]{24}")


@pytest.fixture(params=APPS, ids=lambda app: "-".join(app))
def app(request: pytest.FixtureRequest) -> IosApp:
    workload, task = request.param
    return make_app(workload, task=task)


@pytest.fixture
def folder(app: IosApp, tmp_path: Path) -> Path:
    folder = render_project(app, tmp_path)
    (folder / "Model").mkdir()
    return folder


def _project(folder: Path) -> dict[str, Any]:
    text = (folder / "Convnet.xcodeproj/project.pbxproj").read_text()
    found: dict[str, Any] = openstep_plist.loads(text, use_numbers=False)
    return found


def _strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for each in value.values() for text in _strings(each)]
    if isinstance(value, list):
        return [text for each in value for text in _strings(each)]
    return [str(value)]


def _settings(folder: Path, configuration: str = "Release") -> dict[str, Any]:
    objects = _project(folder)["objects"].values()
    found: dict[str, Any] = {}
    for each in objects:
        if each["isa"] == "XCBuildConfiguration" and each["name"] == configuration:
            # Those of the tests are looked at alone.
            found |= {} if "TEST_HOST" in each["buildSettings"] else each["buildSettings"]
    return found


def test_no_id_dangles_and_none_is_unused(folder: Path) -> None:
    project = _project(folder)
    objects = project["objects"]
    assert all(_ID.fullmatch(name) for name in objects)
    assert {text for text in _strings(project) if _ID.fullmatch(text)} <= objects.keys()
    referred = {text for each in objects.values() for text in _strings(each)}
    referred |= {project["rootObject"]}
    assert objects.keys() <= referred
    # As in files that Xcode writes, each comment says what an id is.
    text = (folder / "Convnet.xcodeproj/project.pbxproj").read_text()
    said = dict(re.findall(r"([0-9A-F]{24}) /\* ([^*]+) \*/ = \{", text))
    assert all(said[name] == comment for name, comment in re.findall(
        r"([0-9A-F]{24}) /\* ([^*]+) \*/[,;]", text))  # fmt: skip


def test_every_file_is_there_and_every_source_is_in_the_project(folder: Path) -> None:
    objects = _project(folder)["objects"]
    sources = folder / "Convnet"
    listed = {
        each["path"]
        for each in objects.values()
        if each["isa"] == "PBXFileReference" and each["sourceTree"] == "<group>"
    }
    there = [*sources.iterdir(), *sources.glob("Tokens/*"), *(folder / "ConvnetTests").iterdir()]
    assert {path.name for path in there} - {"Tokens"} == listed - {"Model", "README.md"}
    tokens = [each for each in objects.values() if each.get("path") == "Tokens"]
    assert [{objects[child]["path"] for child in group["children"]} for group in tokens] == [
        {path.name for path in folder.iterdir()} for folder in sources.glob("Tokens")
    ]
    compiled = {
        objects[objects[file]["fileRef"]]["path"]
        for each in objects.values()
        if each["isa"] == "PBXSourcesBuildPhase"
        for file in each["files"]
    }
    assert compiled == {p.name for p in there if p.suffix in (".swift", ".cpp")}


def test_the_model_is_copied_as_a_folder(folder: Path) -> None:
    objects = _project(folder)["objects"]
    (resources,) = (each for each in objects.values() if each["isa"] == "PBXResourcesBuildPhase")
    copied = [objects[objects[file]["fileRef"]] for file in resources["files"]]
    assert {"isa": "PBXFileReference", "lastKnownFileType": "folder", "path": "Model",
            "sourceTree": "<group>"} in copied  # fmt: skip


def test_executorch_comes_as_the_products_that_the_program_needs(folder: Path) -> None:
    objects = _project(folder)["objects"].values()
    (package,) = (each for each in objects if each["isa"] == "XCRemoteSwiftPackageReference")
    assert package["requirement"] == {"branch": "swiftpm-1.5.1", "kind": "branch"}
    linked = [each["productName"] for each in objects
              if each["isa"] == "XCSwiftPackageProductDependency"]  # fmt: skip
    assert linked == ["backend_xnnpack", "executorch", "kernels_optimized"]


def test_the_settings_are_those_that_executorch_needs(folder: Path) -> None:
    settings = _settings(folder)
    assert settings["SWIFT_VERSION"] == "6.0"
    assert settings["IPHONEOS_DEPLOYMENT_TARGET"] == "17.0"
    assert settings["EXCLUDED_ARCHS[sdk=iphonesimulator*]"] == "x86_64"
    flags = settings["OTHER_LDFLAGS"]
    assert flags[:2] == ["$(inherited)", "-all_load"]
    named = set(flags) - {"$(inherited)", "-all_load", "-framework"}
    assert named == {"Accelerate", "CoreGraphics", "CoreImage", "CoreVideo", "Foundation"}
    assert settings["DEVELOPMENT_TEAM"] == ""
    for key in ("CODE_SIGN_ENTITLEMENTS", "INFOPLIST_FILE", "SWIFT_OBJC_BRIDGING_HEADER"):
        assert (folder / settings[key]).is_file(), key
    assert _settings(folder, "Debug")["SWIFT_ACTIVE_COMPILATION_CONDITIONS"] == "DEBUG"


def test_names_of_people_are_quoted(tmp_path: Path) -> None:
    name = 'My "best" \\ model; // 100 %'
    folder = render_project(make_app(name=name, team="ABCDE12345", id="org.a-b.c"), tmp_path)
    settings = _settings(folder)
    assert settings["INFOPLIST_KEY_CFBundleDisplayName"] == name
    assert settings["PRODUCT_BUNDLE_IDENTIFIER"] == "org.a-b.c"
    assert settings["DEVELOPMENT_TEAM"] == "ABCDE12345"


def test_the_scheme_runs_the_target_as_it_is_measured(folder: Path) -> None:
    project = _project(folder)
    path = folder / "Convnet.xcodeproj/xcshareddata/xcschemes/Convnet.xcscheme"
    scheme = ElementTree.fromstring(path.read_text())  # noqa: S314 - our own file
    references = list(scheme.iter("BuildableReference"))
    assert len(references) == 4
    for reference in references:
        target = project["objects"][reference.get("BlueprintIdentifier")]
        assert target["isa"] == "PBXNativeTarget"
        product = project["objects"][target["productReference"]]
        assert reference.get("BuildableName") == product["path"]
        assert reference.get("BlueprintName") == target["name"]
        assert reference.get("ReferencedContainer") == "container:Convnet.xcodeproj"
    launch = scheme.find("LaunchAction")
    assert launch is not None
    assert launch.get("buildConfiguration") == "Release"


def test_the_scheme_tests_inside_the_app(folder: Path) -> None:
    objects = _project(folder)["objects"]
    path = folder / "Convnet.xcodeproj/xcshareddata/xcschemes/Convnet.xcscheme"
    scheme = ElementTree.fromstring(path.read_text())  # noqa: S314 - our own file
    action = scheme.find("TestAction")
    assert action is not None
    # Its sources see what is internal to the app only in this configuration.
    assert action.get("buildConfiguration") == "Debug"
    assert _settings(folder, "Debug")["ENABLE_TESTABILITY"] == "YES"
    [reference] = action.iter("BuildableReference")
    tests = objects[reference.get("BlueprintIdentifier")]
    assert tests["productType"] == "com.apple.product-type.bundle.unit-test"
    # The app has ExecuTorch already: linked once more, its kernels would register twice.
    assert "packageProductDependencies" not in tests
    [dependency] = tests["dependencies"]
    app = objects[objects[dependency]["target"]]
    assert app["productType"] == "com.apple.product-type.application"
    proxy = objects[objects[dependency]["targetProxy"]]
    assert objects[proxy["remoteGlobalIDString"]] == app
    for name in objects[tests["buildConfigurationList"]]["buildConfigurations"]:
        settings = objects[name]["buildSettings"]
        assert settings["TEST_HOST"] == "$(BUILT_PRODUCTS_DIR)/Convnet.app/Convnet"
        assert settings["BUNDLE_LOADER"] == "$(TEST_HOST)"
        assert settings["PRODUCT_BUNDLE_IDENTIFIER"] == "org.example.convnet.tests"
    phases = [objects[name] for name in tests["buildPhases"]]
    assert [objects[objects[file]["fileRef"]]["path"] for each in phases for file in each["files"]
            ] == ["GoldenTests.swift"]  # fmt: skip


def test_permissions_are_asked_for_only_where_a_screen_needs_them(
    folder: Path, app: IosApp
) -> None:
    facts = plistlib.loads((folder / "Convnet/Info.plist").read_bytes())
    asked = {key: text for key, text in facts.items() if key.endswith("UsageDescription")}
    wanted = {
        "image-classification": ["NSCameraUsageDescription"],
        "automatic-speech-recognition": ["NSMicrophoneUsageDescription"],
    }
    assert list(asked) == wanted.get(app.task, [])
    assert all(text.endswith("on this device.") for text in asked.values())
    assert facts["ITSAppUsesNonExemptEncryption"] is False


_SOURCES = ("KernelSupport/registration.cpp", "Kernels/a b/op.c", "Kernels/rms_norm.cpp")
_HEADERS = ("Kernels/include/op.hpp",)


def test_the_recipes_own_kernels_are_compiled_into_the_app(tmp_path: Path) -> None:
    app = make_app(kernel_sources=_SOURCES, kernel_headers=_HEADERS)
    folder = render_project(app, tmp_path)
    for path in (*_SOURCES, *_HEADERS):
        (folder / "Convnet" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "Convnet" / path).touch()
    test_no_id_dangles_and_none_is_unused(folder)
    objects = _project(folder)["objects"]
    by_path = {each["path"]: each for each in objects.values() if "path" in each}
    kinds = [by_path[path]["lastKnownFileType"] for path in (*_SOURCES, *_HEADERS)]
    assert kinds == [
        "sourcecode.cpp.cpp", "sourcecode.c.c", "sourcecode.cpp.cpp", "sourcecode.cpp.h",
    ]  # fmt: skip
    compiled = {
        objects[objects[file]["fileRef"]]["path"]
        for each in objects.values()
        if each["isa"] == "PBXSourcesBuildPhase"
        for file in each["files"]
    }
    assert set(_SOURCES) <= compiled
    # A group without a path: those of its files begin in the folder of the sources.
    [group] = (each for each in objects.values() if each.get("name") == "Kernels")
    assert "path" not in group
    assert {objects[child]["path"] for child in group["children"]} == {*_SOURCES, *_HEADERS}
    places = _settings(folder)["HEADER_SEARCH_PATHS"]
    assert places == ["$(inherited)"] + [
        f"$(SRCROOT)/Convnet/{name}" for name in ("Kernels", "Kernels/include", "KernelSupport")
    ]
    assert "HEADER_SEARCH_PATHS" not in _settings(render_project(make_app(), tmp_path / "plain"))


@pytest.mark.parametrize("more", [True, False])
def test_more_memory_is_asked_for_only_where_it_is_needed(tmp_path: Path, more: bool) -> None:
    folder = render_project(make_app(increased_memory=more), tmp_path)
    entitlements = plistlib.loads((folder / "Convnet/App.entitlements").read_bytes())
    wanted = {"com.apple.developer.kernel.increased-memory-limit": True} if more else {}
    assert entitlements == wanted
    assert ("free team" in (folder / "README.md").read_text().split("Good to know")[1]) == more


def test_every_text_of_the_screen_is_in_the_catalogue(folder: Path) -> None:
    catalogue = json.loads((folder / "Convnet/Localizable.xcstrings").read_text())
    screens = (path for path in (folder / "Convnet").glob("*.swift") if path.name in SCREENS)
    source = "".join(path.read_text() for path in screens)
    shows = (
        "Text|Section|Button|TextField|LabeledContent|ProgressView|PhotosPicker|NavigationLink|"
        "navigationTitle|row|value"
    )
    shown = set(re.findall(rf'(?:{shows})\("([^"\\]+)"', source))
    either = re.findall(r'Section\([\w.]+ \? "([^"]+)" : "([^"]+)"\)', source)
    shown |= {text for pair in either for text in pair}
    assert shown
    assert set(catalogue["strings"]) == shown


def test_the_asset_catalogue_has_an_icon_for_each_look(folder: Path) -> None:
    assets = folder / "Convnet/Assets.xcassets"
    for path in assets.rglob("Contents.json"):
        json.loads(path.read_text())
    icons = json.loads((assets / "AppIcon.appiconset/Contents.json").read_text())["images"]
    by_look = {
        tuple((each["appearance"], each["value"]) for each in icon.get("appearances", [])): icon
        for icon in icons
    }
    assert len(by_look) == len(icons) == 3
    # What iOS expects: no transparency; a transparent background; shades of grey.
    kinds = {(): (2, 3), (("luminosity", "dark"),): (6, 4), (("luminosity", "tinted"),): (0, 1)}
    for look, (colour_type, channels) in kinds.items():
        icon = by_look[look]
        assert (icon["idiom"], icon["platform"], icon["size"]) == ("universal", "ios", "1024x1024")
        png = (assets / "AppIcon.appiconset" / icon["filename"]).read_bytes()
        assert png[:8] == b"\x89PNG\r\n\x1a\n"
        sides = int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")
        assert (*sides, png[24], png[25]) == (1024, 1024, 8, colour_type)
        length = int.from_bytes(png[33:37], "big")
        pixels = zlib.decompress(png[41 : 41 + length])
        assert len(pixels) == 1024 * (1 + channels * 1024)
        if channels == 4:
            assert pixels[1:5] == bytes(4)


def test_the_project_speaks_of_nothing_that_is_not_there(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix != ".png":
            text = path.read_text()
            assert "{{" not in text, path
            assert "etdeploy/" not in text, path
    for name in re.findall(r"`([\w]+\.(?:swift|cpp))`", (folder / "README.md").read_text()):
        assert (folder / "Convnet" / name).is_file(), name
