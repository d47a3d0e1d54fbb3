"""Where an app's libraries are found, and how those that are absent are got."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.apps.android.tools import (
    Library,
    Tools,
    find_libraries,
    find_tools,
    require_tools,
    tool_findings,
)
from etdeploy.backends.values import Workstation
from etdeploy.core.errors import BuildError

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
    assert absent[0].remedy == (
        f"mvn dependency:get -Dtransitive=false -Dartifact={WANTED}:aar\n"
        "or name a file of it: --set app.aar=/path/to/executorch-android.aar"
    )
    assert absent[1].remedy.endswith("-Dartifact=com.facebook.fbjni:fbjni:0.7.0:aar")
    assert absent[2].remedy.endswith("-Dartifact=com.facebook.soloader:nativeloader:0.10.5:jar")


def test_an_aar_that_the_recipe_names_is_taken(tmp_path: Path) -> None:
    aar = tmp_path / "mine.aar"
    _, absent = find_libraries(station(tmp_path), [WANTED], aar)
    assert absent[0].why == f"app.aar names {aar}, which does not exist"
    aar.touch()
    found, _ = find_libraries(station(tmp_path), [WANTED], aar)
    assert found[0] == Library("executorch-android", aar)


def test_everything_that_is_absent_is_one_error(tmp_path: Path) -> None:
    found = find_tools(station(tmp_path), [WANTED])
    assert not isinstance(found, Tools)
    with pytest.raises(BuildError) as caught:
        require_tools(found)
    for words in ("no Java development kit", "no Android SDK", "no Kotlin compiler", WANTED):
        assert words in caught.value.message
    assert caught.value.exit_code == 4


def test_doctor_tells_each_as_optional(tmp_path: Path) -> None:
    findings = {finding.name: finding for finding in tool_findings(station(tmp_path))}
    assert list(findings) == ["JDK", "Android SDK", "Kotlin", "Gradle"]
    assert all(finding.state == "optional" and finding.remedy for finding in findings.values())
