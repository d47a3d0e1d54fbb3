"""Which Kotlin compiler and which libraries are taken, and how to get what is absent."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.apps.android.tools import (
    Kotlin,
    Library,
    Tools,
    find_kotlin,
    find_libraries,
    find_tools,
    require_tools,
    tool_findings,
)
from etdeploy.backends.values import Workstation
from etdeploy.core.errors import Blocker, BuildError
from tests.unit.apps.android.test_sdk import jdk, sdk

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


def found_kotlin(home: Path, **environ: str) -> Kotlin:
    result = find_kotlin(Workstation({"PATH": "", **environ}, home))
    assert isinstance(result, Kotlin), result
    return result


def missing(home: Path, **environ: str) -> Blocker:
    result = find_kotlin(Workstation({"PATH": "", **environ}, home))
    assert isinstance(result, Blocker), result
    return result


def test_android_studio_brings_one(tmp_path: Path) -> None:
    path = distribution(tmp_path / "android-studio/plugins/Kotlin/kotlinc", "2.2.0-release-1")
    result = found_kotlin(tmp_path)
    assert (result.place, result.version) == (path, "2.2.0")
    assert result.compiler == (path / "lib/kotlin-compiler.jar",)
    assert result.stdlib == path / "lib/kotlin-stdlib.jar"


def test_of_what_maven_fetched_the_newest_whole_one_is_taken(tmp_path: Path) -> None:
    for version in ("2.0.21", "2.2.10", "2.2.10-RC", "2.2.9"):
        maven(tmp_path, version)
    touch(tmp_path / f".m2/repository/{_GROUP}/kotlin-compiler-embeddable/2.3.0/x.pom")
    result = found_kotlin(tmp_path)
    assert result.version == "2.2.10"
    assert result.compiler[0].name == "kotlin-compiler-embeddable-2.2.10.jar"
    assert result.stdlib.name == "kotlin-stdlib-2.2.10.jar"
    assert len(result.compiler) == 7


def test_what_gradle_fetched_does_too(tmp_path: Path) -> None:
    maven(tmp_path, "2.2.10", without="kotlin-stdlib")
    folder = tmp_path / "g/caches/modules-2/files-2.1/org.jetbrains.kotlin/kotlin-stdlib/2.2.10"
    jar = touch(folder / "0ff1ce/kotlin-stdlib-2.2.10.jar")
    assert found_kotlin(tmp_path, GRADLE_USER_HOME=str(tmp_path / "g")).stdlib == jar


@pytest.mark.parametrize("without", ["kotlin-stdlib", "kotlin-reflect", "coroutines"])
def test_one_without_a_part_is_none(tmp_path: Path, without: str) -> None:
    maven(tmp_path, "2.2.10", without)
    problem = missing(tmp_path)
    assert "KOTLIN_HOME" in problem.why
    assert "=org.jetbrains.kotlin:kotlin-compiler-embeddable:2." in problem.remedy


def test_one_that_is_too_old_is_told(tmp_path: Path) -> None:
    maven(tmp_path, "1.9.25")
    assert all(version in missing(tmp_path).why for version in ("1.9.25", "2.0 or newer"))
    maven(tmp_path, "2.0.0")
    assert found_kotlin(tmp_path).version == "2.0.0"


def test_the_variable_is_the_users_choice(tmp_path: Path) -> None:
    maven(tmp_path, "2.2.10")
    problem = missing(tmp_path, KOTLIN_HOME="/nowhere")
    assert all(fact in problem.why for fact in ("KOTLIN_HOME", "/nowhere", "kotlin-compiler.jar"))
    old = distribution(tmp_path / "old", "1.8.0")
    assert "1.8.0" in missing(tmp_path, KOTLIN_HOME=str(old)).why


WANTED = "org.pytorch:executorch-android:1.5.1"
POM = """\
<project><dependencies>
  <dependency><groupId>com.facebook.fbjni</groupId><artifactId>fbjni</artifactId>
    <version>0.8.0</version><type>aar</type></dependency>
</dependencies></project>
"""


def put(home: Path, group: str, name: str, version: str, kind: str, text: str = "") -> Path:
    folder = home / ".m2/repository" / group.replace(".", "/") / name / version
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}.{kind}"
    path.write_text(text)
    return path


def station(home: Path) -> Workstation:
    return Workstation({"PATH": ""}, home)


def test_all_three_are_found(tmp_path: Path) -> None:
    aar = put(tmp_path, "org.pytorch", "executorch-android", "1.5.1", "aar")
    fbjni = put(tmp_path, "com.facebook.fbjni", "fbjni", "0.7.0", "aar")
    loader = put(tmp_path, "com.facebook.soloader", "nativeloader", "0.10.5", "jar")
    assert find_libraries(station(tmp_path), [WANTED]) == (
        (
            Library("executorch-android", aar),
            Library("fbjni", fbjni),
            Library("nativeloader", loader),
        ),
        (),
    )


def test_the_pom_says_which_version_is_needed(tmp_path: Path) -> None:
    put(tmp_path, "org.pytorch", "executorch-android", "1.5.1", "aar")
    put(tmp_path, "org.pytorch", "executorch-android", "1.5.1", "pom", POM)
    _, absent = find_libraries(station(tmp_path), [WANTED])
    assert [blocker.what for blocker in absent] == ["fbjni-0.8.0.aar", "nativeloader-0.10.5.jar"]


def test_each_that_is_absent_has_its_command(tmp_path: Path) -> None:
    found, absent = find_libraries(station(tmp_path), [WANTED])
    assert found == ()
    assert "--set app.aar=" in absent[0].remedy
    artifacts = [blocker.remedy.partition("-Dartifact=")[2].split("\n")[0] for blocker in absent]
    assert artifacts == [
        f"{WANTED}:aar",
        "com.facebook.fbjni:fbjni:0.7.0:aar",
        "com.facebook.soloader:nativeloader:0.10.5:jar",
    ]


def test_an_aar_that_the_recipe_names_is_taken(tmp_path: Path) -> None:
    aar = tmp_path / "mine.aar"
    _, absent = find_libraries(station(tmp_path), [WANTED], aar)
    assert str(aar) in absent[0].why
    aar.touch()
    found, _ = find_libraries(station(tmp_path), [WANTED], aar)
    assert found[0] == Library("executorch-android", aar)


def test_everything_that_is_absent_is_one_error(tmp_path: Path) -> None:
    found = find_tools(station(tmp_path), [WANTED])
    assert not isinstance(found, Tools)
    with pytest.raises(BuildError) as caught:
        require_tools(found)
    for words in ("Java development kit", "Android SDK", "Kotlin compiler", WANTED):
        assert words in caught.value.message
    assert caught.value.exit_code == 4


def test_doctor_shows_each_tool_with_its_version(tmp_path: Path) -> None:
    java, folder = jdk(tmp_path / "jdk"), sdk(tmp_path / "Android/Sdk")
    kotlin = distribution(tmp_path / "kotlinc")
    environ = {"PATH": "", "JAVA_HOME": str(java), "KOTLIN_HOME": str(kotlin)}
    found = [finding.found for finding in tool_findings(Workstation(environ, tmp_path))]
    assert found == [
        f"17.0.15 in {java}",
        f"build tools 36.0.0 and android-36 in {folder}",
        f"2.1.20 in {kotlin}",
        None,
    ]


def test_doctor_tells_each_as_optional(tmp_path: Path) -> None:
    findings = {finding.name: finding for finding in tool_findings(station(tmp_path))}
    assert list(findings) == ["JDK", "Android SDK", "Kotlin", "Gradle"]
    assert all(finding.state == "optional" and finding.remedy for finding in findings.values())
