"""Which Android SDK is taken, and what is said of those that are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.apps.android.sdk import Sdk, find_sdk
from etdeploy.backends.values import Workstation
from etdeploy.core.errors import Blocker


def sdk(
    folder: Path, tools: tuple[str, ...] = ("36.0.0",), levels: tuple[str, ...] = ("36",)
) -> Path:
    for version in tools:
        for name in ("aapt2", "lib/d8.jar", "lib/apksigner.jar"):
            touch(folder / "build-tools" / version / name)
    for level in levels:
        touch(folder / f"platforms/android-{level}/android.jar")
    return folder


def touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def found(environ: dict[str, str], home: Path, level: int = 36, project: Path | None = None) -> Sdk:
    result = find_sdk(Workstation(environ, home), level, project)
    assert isinstance(result, Sdk), result
    return result


def missing(environ: dict[str, str], home: Path, level: int = 36) -> Blocker:
    result = find_sdk(Workstation(environ, home), level)
    assert isinstance(result, Blocker), result
    return result


def test_the_newest_build_tools_and_the_apps_platform_are_taken(tmp_path: Path) -> None:
    path = sdk(tmp_path / "sdk", ("34.0.0", "36.1.0", "36.0.0", "37.0.0-rc1"), ("35", "36", "37"))
    result = found({"ANDROID_HOME": str(path)}, tmp_path)
    assert result.build_tools.name == "36.1.0"
    assert result.platform.name == "android-36"
    assert result.aapt2 == path / "build-tools/36.1.0/aapt2"
    assert result.android_jar == path / "platforms/android-36/android.jar"


def test_a_newer_platform_does_where_the_apps_is_absent(tmp_path: Path) -> None:
    path = sdk(tmp_path / "sdk", levels=("35", "37.1", "Baklava"))
    assert found({"ANDROID_HOME": str(path)}, tmp_path).platform.name == "android-37.1"


def test_incomplete_build_tools_are_passed_over(tmp_path: Path) -> None:
    path = sdk(tmp_path / "sdk", ("35.0.0",))
    touch(path / "build-tools/36.0.0/aapt2")
    assert found({"ANDROID_HOME": str(path)}, tmp_path).build_tools.name == "35.0.0"


def test_what_is_incomplete_is_named_if_it_is_all(tmp_path: Path) -> None:
    path = sdk(tmp_path / "sdk", ())
    touch(path / "build-tools/36.0.0/aapt2")
    problem = missing({"ANDROID_HOME": str(path)}, tmp_path)
    assert problem.why.endswith("build-tools/36.0.0 is incomplete: there is no lib/d8.jar")
    assert problem.remedy == f"sdkmanager --sdk_root={path} 'build-tools;36.0.0'"


@pytest.mark.parametrize(
    ("tools", "levels", "why", "remedy"),
    [
        ((), ("36",), "has no build tools", "'build-tools;36.0.0'"),
        (("30.0.3",), ("36",), "30.0.3 is too old", "'build-tools;36.0.0'"),
        (("36.0.0",), ("33", "34"), "it has android-33, android-34", "'platforms;android-36'"),
        (("36.0.0",), (), "it has none", "'platforms;android-36'"),
    ],
)
def test_what_an_sdk_lacks_is_named(
    tmp_path: Path, tools: tuple[str, ...], levels: tuple[str, ...], why: str, remedy: str
) -> None:
    path = sdk(tmp_path / "sdk", tools, levels)
    path.mkdir(exist_ok=True)
    problem = missing({"ANDROID_SDK_ROOT": str(path)}, tmp_path)
    assert why in problem.why
    assert problem.remedy.endswith(remedy)


def test_a_variable_is_the_users_choice(tmp_path: Path) -> None:
    sdk(tmp_path / "Android/Sdk")
    assert found({}, tmp_path).path == tmp_path / "Android/Sdk"
    problem = missing({"ANDROID_HOME": "/nowhere"}, tmp_path)
    assert problem.why == "ANDROID_HOME names /nowhere, which is not a folder"


def test_the_projects_own_choice_comes_first(tmp_path: Path) -> None:
    other = sdk(tmp_path / "other")
    own = sdk(tmp_path / "with: space")
    text = str(own).replace(":", "\\:")
    (tmp_path / "local.properties").write_text(f"# mine\nsdk.dir={text}\n")
    assert found({"ANDROID_HOME": str(other)}, tmp_path, project=tmp_path).path == own


def test_nothing_at_all_names_the_places_and_the_way(tmp_path: Path) -> None:
    problem = missing({}, tmp_path)
    assert "ANDROID_HOME and ANDROID_SDK_ROOT are not set" in problem.why
    assert "~/Android/Sdk" in problem.why
    assert "command line tools" in problem.remedy
