"""Which Kotlin compiler is taken, and what is said where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.apps.android.tools import Kotlin, find_kotlin
from etdeploy.backends.values import Workstation
from etdeploy.core.errors import Blocker

_GROUP = "org/jetbrains/kotlin"


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def distribution(folder: Path, build: str = "2.1.20-release-217") -> Path:
    touch(folder / "lib/kotlin-compiler.jar")
    touch(folder / "lib/kotlin-stdlib.jar")
    touch(folder / "bin/kotlinc").chmod(0o755)
    (folder / "build.txt").write_text(build)
    return folder


def maven(home: Path, version: str, without: str = "") -> None:
    names = [
        *(f"{_GROUP}/{n}/{version}/{n}-{version}.jar" for n in (
            "kotlin-compiler-embeddable", "kotlin-stdlib", "kotlin-script-runtime",
            "kotlin-daemon-embeddable")),
        f"{_GROUP}/kotlin-reflect/1.6.10/kotlin-reflect-1.6.10.jar",
        "org/jetbrains/kotlinx/kotlinx-coroutines-core-jvm/1.8.0/"
        "kotlinx-coroutines-core-jvm-1.8.0.jar",
        "org/jetbrains/annotations/13.0/annotations-13.0.jar",
    ]  # fmt: skip
    for name in names:
        if not without or without not in name:
            touch(home / ".m2/repository" / name)


def found(home: Path, **environ: str) -> Kotlin:
    result = find_kotlin(Workstation({"PATH": "", **environ}, home))
    assert isinstance(result, Kotlin), result
    return result


def missing(home: Path, **environ: str) -> Blocker:
    result = find_kotlin(Workstation({"PATH": "", **environ}, home))
    assert isinstance(result, Blocker), result
    return result


def test_a_release_for_the_command_line_is_one_jar(tmp_path: Path) -> None:
    path = distribution(tmp_path / "kotlinc")
    result = found(tmp_path, KOTLIN_HOME=str(path))
    assert result.version == "2.1.20"
    assert result.compiler == (path / "lib/kotlin-compiler.jar",)
    assert result.stdlib == path / "lib/kotlin-stdlib.jar"


def test_that_of_the_path_is_found_behind_its_link(tmp_path: Path) -> None:
    path = distribution(tmp_path / "kotlinc")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/kotlinc").symlink_to(path / "bin/kotlinc")
    assert found(tmp_path, PATH=str(tmp_path / "bin")).place == path


def test_android_studio_brings_one(tmp_path: Path) -> None:
    path = distribution(tmp_path / "android-studio/plugins/Kotlin/kotlinc", "2.2.0-release-1")
    assert found(tmp_path).place == path


def test_of_what_maven_fetched_the_newest_whole_one_is_taken(tmp_path: Path) -> None:
    for version in ("2.0.21", "2.2.10", "2.2.10-RC", "2.2.9"):
        maven(tmp_path, version)
    touch(tmp_path / f".m2/repository/{_GROUP}/kotlin-compiler-embeddable/2.3.0/x.pom")
    result = found(tmp_path)
    assert result.version == "2.2.10"
    assert result.compiler[0].name == "kotlin-compiler-embeddable-2.2.10.jar"
    assert result.stdlib.name == "kotlin-stdlib-2.2.10.jar"
    assert len(result.compiler) == 7


def test_what_gradle_fetched_does_too(tmp_path: Path) -> None:
    maven(tmp_path, "2.2.10", without="kotlin-stdlib")
    folder = tmp_path / "g/caches/modules-2/files-2.1/org.jetbrains.kotlin/kotlin-stdlib/2.2.10"
    jar = touch(folder / "0ff1ce/kotlin-stdlib-2.2.10.jar")
    assert found(tmp_path, GRADLE_USER_HOME=str(tmp_path / "g")).stdlib == jar


@pytest.mark.parametrize("without", ["kotlin-stdlib", "kotlin-reflect", "coroutines"])
def test_one_without_a_part_is_none(tmp_path: Path, without: str) -> None:
    maven(tmp_path, "2.2.10", without)
    problem = missing(tmp_path)
    assert problem.why.startswith("no Kotlin compiler was found: KOTLIN_HOME is not set")
    assert problem.remedy.startswith(
        "mvn dependency:get -Dartifact=org.jetbrains.kotlin:kotlin-compiler-embeddable:2."
    )


def test_one_that_is_too_old_is_told(tmp_path: Path) -> None:
    maven(tmp_path, "1.9.25")
    assert "is 1.9.25, and the app needs 2.0 or newer" in missing(tmp_path).why
    maven(tmp_path, "2.0.0")
    assert found(tmp_path).version == "2.0.0"


def test_the_variable_is_the_users_choice(tmp_path: Path) -> None:
    maven(tmp_path, "2.2.10")
    problem = missing(tmp_path, KOTLIN_HOME="/nowhere")
    assert problem.why == "KOTLIN_HOME names /nowhere, which has no lib/kotlin-compiler.jar"
    old = distribution(tmp_path / "old", "1.8.0")
    assert "is 1.8.0" in missing(tmp_path, KOTLIN_HOME=str(old)).why
