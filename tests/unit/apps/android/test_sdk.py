"""Which JDK and which Android SDK are taken, and what is wrong with the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.apps.android.sdk import Jdk, Sdk, find_jdk, find_sdk
from etdeploy.backends.values import Workstation
from etdeploy.core.errors import Blocker


def touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(0o755)


def jdk(folder: Path, version: str = "17.0.15", without: str = "") -> Path:
    for name in {"java", "javac", "keytool"} - {without}:
        touch(folder / "bin" / name)
    (folder / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return folder


def found_jdk(environ: dict[str, str], home: Path) -> Jdk | Blocker:
    return find_jdk(Workstation({"PATH": "", **environ}, home))


def no_jdk(environ: dict[str, str], home: Path) -> str:
    result = found_jdk(environ, home)
    assert isinstance(result, Blocker)
    assert "export JAVA_HOME=" in result.remedy
    return result.why


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    path, other = jdk(tmp_path / "a", "21.0.1"), jdk(tmp_path / "b")
    environ = {"JAVA_HOME": str(path), "PATH": str(other / "bin")}
    assert found_jdk(environ, tmp_path) == Jdk(path, "21.0.1")


def test_the_jdk_of_the_path_is_found_behind_its_links(tmp_path: Path) -> None:
    path = jdk(tmp_path / "jvm")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/javac").symlink_to(path / "bin/javac")
    assert found_jdk({"PATH": str(tmp_path / "bin")}, tmp_path) == Jdk(path, "17.0.15")


def test_android_studio_brings_a_jdk_which_counts_where_that_of_the_path_is_too_old(
    tmp_path: Path,
) -> None:
    old = jdk(tmp_path / "old", "1.8.0_402")
    environ = {"PATH": str(old / "bin")}
    why = no_jdk(environ, tmp_path)
    assert all(fact in why for fact in ("8.0_402", str(old), "17 or newer"))
    path = jdk(tmp_path / "android-studio/jbr", "21.0.6")
    assert found_jdk(environ, tmp_path) == found_jdk({}, tmp_path) == Jdk(path, "21.0.6")


def test_what_java_home_names_is_judged_and_not_replaced(tmp_path: Path) -> None:
    runtime = jdk(tmp_path / "jre", without="javac")
    old = jdk(tmp_path / "old", "11.0.2")
    (tmp_path / "empty").mkdir()
    jdk(tmp_path / "android-studio/jbr")
    for path, fact in (
        (Path("/nowhere"), "does not exist"),
        (tmp_path / "empty", "not a JDK"),
        (runtime, "bin/javac"),
        (old, "11.0.2"),
    ):
        why = no_jdk({"JAVA_HOME": str(path)}, tmp_path)
        assert why.startswith("JAVA_HOME names")
        assert str(path) in why
        assert fact in why


def test_a_stub_that_only_asks_to_install_a_jdk_is_none(tmp_path: Path) -> None:
    for name in ("javac", "java", "keytool"):
        touch(tmp_path / "usr/bin" / name)
    assert str(tmp_path / "usr") in no_jdk({"PATH": str(tmp_path / "usr/bin")}, tmp_path)
    assert "JAVA_HOME" in no_jdk({}, tmp_path)


def sdk(
    folder: Path, tools: tuple[str, ...] = ("36.0.0",), levels: tuple[str, ...] = ("36",)
) -> Path:
    for version in tools:
        for name in ("aapt2", "lib/d8.jar", "lib/apksigner.jar"):
            touch(folder / "build-tools" / version / name)
    for level in levels:
        touch(folder / f"platforms/android-{level}/android.jar")
    folder.mkdir(exist_ok=True)
    return folder


def found(environ: dict[str, str], home: Path, project: Path | None = None) -> Sdk:
    result = find_sdk(Workstation(environ, home), 36, project)
    assert isinstance(result, Sdk), result
    return result


def missing(environ: dict[str, str], home: Path) -> Blocker:
    result = find_sdk(Workstation(environ, home), 36)
    assert isinstance(result, Blocker), result
    return result


def test_the_newest_build_tools_and_the_apps_platform_are_taken(tmp_path: Path) -> None:
    path = sdk(tmp_path / "sdk", ("34.0.0", "36.1.0", "36.0.0", "37.0.0-rc1"), ("35", "36", "37"))
    result = found({"ANDROID_HOME": str(path)}, tmp_path)
    assert result.build_tools.name == "36.1.0"
    assert result.platform.name == "android-36"
    assert result.aapt2 == path / "build-tools/36.1.0/aapt2"
    assert result.android_jar == path / "platforms/android-36/android.jar"


def test_a_newer_platform_and_older_build_tools_do_where_others_are_absent(tmp_path: Path) -> None:
    path = sdk(tmp_path / "sdk", ("35.0.0",), ("35", "37.1", "Baklava"))
    touch(path / "build-tools/36.0.0/aapt2")
    result = found({"ANDROID_HOME": str(path)}, tmp_path)
    assert (result.platform.name, result.build_tools.name) == ("android-37.1", "35.0.0")


@pytest.mark.parametrize(
    ("tools", "levels", "incomplete", "facts", "package"),
    [
        ((), ("36",), "", ["build tools"], "build-tools;36.0.0"),
        (("30.0.3",), ("36",), "", ["30.0.3", "34"], "build-tools;36.0.0"),
        ((), ("36",), "36.0.0", ["build-tools/36.0.0", "lib/d8.jar"], "build-tools;36.0.0"),
        (("36.0.0",), ("33", "34"), "", ["android-33, android-34"], "platforms;android-36"),
        (("36.0.0",), (), "", ["level 36", "none"], "platforms;android-36"),
    ],
)
def test_what_an_sdk_lacks_is_named_with_the_command_that_installs_it(
    tmp_path: Path,
    tools: tuple[str, ...],
    levels: tuple[str, ...],
    incomplete: str,
    facts: list[str],
    package: str,
) -> None:
    path = sdk(tmp_path / "sdk", tools, levels)
    if incomplete:
        touch(path / "build-tools" / incomplete / "aapt2")
    problem = missing({"ANDROID_SDK_ROOT": str(path)}, tmp_path)
    assert str(path) in problem.why
    assert all(fact in problem.why for fact in facts)
    assert problem.remedy == f"sdkmanager --sdk_root={path} '{package}'"


def test_a_variable_is_the_users_choice(tmp_path: Path) -> None:
    assert "ANDROID_HOME=" in missing({}, tmp_path).remedy
    for place in ("ANDROID_HOME", "ANDROID_SDK_ROOT", "~/Android/Sdk"):
        assert place in missing({}, tmp_path).why
    sdk(tmp_path / "Android/Sdk")
    assert found({}, tmp_path).path == tmp_path / "Android/Sdk"
    assert "/nowhere" in missing({"ANDROID_HOME": "/nowhere"}, tmp_path).why


def test_the_projects_own_choice_comes_first(tmp_path: Path) -> None:
    other = sdk(tmp_path / "other")
    own = sdk(tmp_path / "with: space")
    text = str(own).replace(":", "\\:")
    (tmp_path / "local.properties").write_text(f"# mine\nsdk.dir={text}\n")
    assert found({"ANDROID_HOME": str(other)}, tmp_path, project=tmp_path).path == own
