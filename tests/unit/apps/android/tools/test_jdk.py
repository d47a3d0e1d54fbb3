"""Which Java development kit is taken, and what is said of those that are not."""

from __future__ import annotations

from pathlib import Path

from etdeploy.apps.android.sdk import Jdk, find_jdk
from etdeploy.backends.values import Workstation
from etdeploy.core.errors import Blocker


def jdk(folder: Path, version: str = "17.0.15", without: str = "") -> Path:
    (folder / "bin").mkdir(parents=True)
    for name in {"java", "javac", "keytool"} - {without}:
        (folder / "bin" / name).touch(0o755)
    (folder / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return folder


def found(environ: dict[str, str], home: Path) -> Jdk | Blocker:
    return find_jdk(Workstation(environ, home))


def why(environ: dict[str, str], home: Path) -> str:
    result = found(environ, home)
    assert isinstance(result, Blocker)
    assert "export JAVA_HOME=" in result.remedy
    return result.why


def test_the_one_that_java_home_names_is_taken(tmp_path: Path) -> None:
    path = jdk(tmp_path / "a", "21.0.1")
    other = jdk(tmp_path / "b")
    environ = {"JAVA_HOME": str(path), "PATH": str(other / "bin")}
    assert found(environ, tmp_path) == Jdk(path, "21.0.1")


def test_that_of_the_path_is_found_behind_its_links(tmp_path: Path) -> None:
    path = jdk(tmp_path / "jvm")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/javac").symlink_to(path / "bin/javac")
    assert found({"PATH": str(tmp_path / "bin")}, tmp_path) == Jdk(path, "17.0.15")


def test_android_studio_brings_one(tmp_path: Path) -> None:
    path = jdk(tmp_path / "android-studio/jbr", "21.0.6")
    assert found({"PATH": ""}, tmp_path) == Jdk(path, "21.0.6")


def test_one_that_is_too_old_is_passed_over_for_android_studios(tmp_path: Path) -> None:
    old = jdk(tmp_path / "old", "1.8.0_402")
    environ = {"PATH": str(old / "bin")}
    assert (
        why(environ, tmp_path) == f"there is Java 8.0_402 in {old}, and the tools need 17 or newer"
    )
    path = jdk(tmp_path / "android-studio/jbr")
    assert found(environ, tmp_path) == Jdk(path, "17.0.15")


def test_what_java_home_names_is_judged(tmp_path: Path) -> None:
    assert (
        why({"JAVA_HOME": "/nowhere"}, tmp_path) == "JAVA_HOME names /nowhere, which does not exist"
    )
    assert "which is no JDK" in why({"JAVA_HOME": str(tmp_path)}, tmp_path)
    runtime = jdk(tmp_path / "jre", without="javac")
    assert "it is only a Java runtime" in why({"JAVA_HOME": str(runtime)}, tmp_path)
    old = jdk(tmp_path / "old", "11.0.2")
    assert "names Java 11.0.2" in why({"JAVA_HOME": str(old)}, tmp_path)


def test_a_stub_that_only_asks_to_install_one_is_none(tmp_path: Path) -> None:
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/javac").touch(0o755)
    (tmp_path / "usr/bin/java").touch(0o755)
    (tmp_path / "usr/bin/keytool").touch(0o755)
    text = why({"PATH": str(tmp_path / "usr/bin")}, tmp_path)
    assert "cannot be read" in text


def test_nothing_at_all_names_the_places(tmp_path: Path) -> None:
    text = why({"PATH": ""}, tmp_path)
    assert text.startswith("no Java development kit was found: JAVA_HOME is not set")
