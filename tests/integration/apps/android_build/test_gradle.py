"""The build by Gradle: its command, its APK, and what it says when it fails."""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from etdeploy.apps.android.app import AndroidApp
from etdeploy.apps.android.archive import ApkEntry, write_archive
from etdeploy.apps.android.gradle import OUTPUT, build_with_gradle, gradle_command
from etdeploy.apps.android.tools import find_gradle
from etdeploy.apps.platform import BuiltApp
from etdeploy.backends.values import Workstation
from etdeploy.core.errors import Blocker, BuildError
from etdeploy.core.files.basic import resource_folder
from etdeploy.core.hashing import sha256_file

pytestmark = pytest.mark.integration

APP = AndroidApp(id="org.example.x", name="X")


def gradle(project: Path, script: str) -> Path:
    """A stand-in that does what a script of the shell says."""
    (project / "gradle/wrapper").mkdir(parents=True)
    (project / "gradle/wrapper/gradle-wrapper.jar").touch()
    path = project / "gradlew"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def built(project: Path, script: str, told: list[str] | None = None) -> BuiltApp:
    def report(text: str, fraction: float | None = None) -> None:
        if told is not None:
            told.append(text)

    return build_with_gradle(project, gradle(project, script), APP, report)


def test_its_apk_is_described(tmp_path: Path) -> None:
    write_archive(tmp_path / "made.apk", [ApkEntry("AndroidManifest.xml", b"x")])
    folder = Path(OUTPUT).parent
    told: list[str] = []
    script = f'echo "> Task $1"; echo $2; mkdir -p {folder} && cp made.apk {OUTPUT}'
    apk = built(tmp_path, script, told)
    assert (apk.how, apk.archive) == ("gradle", str(tmp_path / OUTPUT))
    assert apk.size_bytes == (tmp_path / "made.apk").stat().st_size
    assert told == ["building the app with Gradle", "Gradle: :app:assembleDebug"]


def test_the_command_is_what_a_person_types(tmp_path: Path) -> None:
    wrapper = tmp_path / "gradlew"
    assert gradle_command(wrapper, tmp_path) == (
        "./gradlew",
        ":app:assembleDebug",
        "--console=plain",
    )
    assert gradle_command(Path("/opt/gradle"), tmp_path)[0] == "/opt/gradle"


@pytest.mark.parametrize(
    ("words", "cause", "told", "remedy"),
    [
        (
            "e: file:///Main.kt:3:1 Unresolved reference\n\n"
            "* What went wrong:\nIt failed.\n\n* Try:",
            "Gradle could not build",
            "e: file:///Main.kt:3:1 Unresolved reference\nIt failed.",
            None,
        ),
        (
            "* What went wrong:\nSDK location not found. Define a valid one.\n\n* Try:\n> x",
            "Android SDK",
            "SDK location not found. Define a valid one.",
            "export ANDROID_HOME=",
        ),
        (
            "* What went wrong:\nCould not resolve com.android.tools:x\n\n",
            "cannot fetch",
            "Could not resolve com.android.tools:x",
            "--set app.build=sdk",
        ),
        ("strange", "Gradle could not build", "strange", None),
    ],
)
def test_what_went_wrong_is_told(
    tmp_path: Path, words: str, cause: str, told: str, remedy: str | None
) -> None:
    (tmp_path / "words").write_text(words)
    with pytest.raises(BuildError) as caught:
        built(tmp_path, "cat words; exit 1")
    first, *lines = caught.value.message.splitlines()
    assert cause in first
    assert lines == told.splitlines()
    assert remedy is None or remedy in str(caught.value.remedy)


def test_an_apk_elsewhere_is_told(tmp_path: Path) -> None:
    with pytest.raises(BuildError) as caught:
        built(tmp_path, "true")
    assert caught.value.place == str(tmp_path / OUTPUT)


def test_the_projects_wrapper_comes_first_and_needs_its_jar(tmp_path: Path) -> None:
    project = tmp_path / "project"
    path = gradle(project, "true")
    program = tmp_path / "bin/gradle"
    program.parent.mkdir()
    program.touch(0o755)
    with_program = Workstation({"PATH": str(program.parent)}, tmp_path)
    assert find_gradle(with_program, project) == path
    (project / "gradle/wrapper/gradle-wrapper.jar").unlink()
    assert find_gradle(with_program, project) == program
    problem = find_gradle(Workstation({"PATH": ""}, tmp_path), project)
    assert isinstance(problem, Blocker)
    assert "--set app.build=sdk" in problem.remedy


@pytest.mark.parametrize(("version", "does"), [("4.4.1", False), ("9.0", False), ("9.1.0", True)])
def test_a_gradle_that_is_too_old_is_told_before_it_runs(
    tmp_path: Path, version: str, does: bool
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "lib").mkdir()
    (tmp_path / "bin/gradle").touch(0o755)
    (tmp_path / f"lib/gradle-core-api-{version}.jar").touch()
    found = find_gradle(Workstation({"PATH": str(tmp_path / "bin")}, tmp_path))
    if does:
        assert found == tmp_path / "bin/gradle"
    else:
        assert isinstance(found, Blocker)
        assert "9.1 or newer" in found.why


def _wrapped(tmp_path: Path, files: dict[str, str], digest: str | None = None) -> Path:
    """A project with the wrapper of the templates, and a distribution with these files."""
    archive = tmp_path / "gradle-9.1.0-bin.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        for path, text in files.items():
            opened.writestr(path, text)
    project = tmp_path / "my project"
    shutil.copytree(resource_folder("templates") / "android", project)
    properties = project / "gradle/wrapper/gradle-wrapper.properties"
    lines = [line for line in properties.read_text().splitlines() if "distribution" not in line]
    lines.append(f"distributionUrl={archive.as_uri().replace(':', chr(92) + ':', 1)}")
    lines.append(f"distributionSha256Sum={digest or sha256_file(archive)}")
    properties.write_text("\n".join(lines))
    return project


def _gradlew(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    if not shutil.which("java"):
        pytest.skip("needs java")
    return subprocess.run(
        ["sh", project / "gradlew", *words], cwd=project.parent, capture_output=True, text=True,
        env={"PATH": "/usr/bin:/bin", "GRADLE_USER_HOME": str(project.parent / "home")},
        check=False,
    )  # fmt: skip


GRADLE_SCRIPT = {"gradle-9.1.0/bin/gradle": '#!/bin/sh\necho "$# $2 in $PWD"\n'}


def test_the_projects_script_fetches_gradle_once_and_runs_it(tmp_path: Path) -> None:
    project = _wrapped(tmp_path, GRADLE_SCRIPT)
    station = Workstation({"PATH": "", "GRADLE_USER_HOME": str(tmp_path / "home")}, tmp_path)
    (project / "gradlew").chmod(0o755)
    assert isinstance(find_gradle(station, project), Blocker)
    first = _gradlew(project, "a", "b c")
    assert (first.returncode, first.stdout) == (0, f"2 b c in {tmp_path}\n")
    assert "Downloading file:" in first.stderr
    assert find_gradle(station, project) == project / "gradlew"
    (tmp_path / "gradle-9.1.0-bin.zip").unlink()
    again = _gradlew(project, "a", "b c")
    assert (again.returncode, again.stdout, again.stderr) == (0, first.stdout, "")


@pytest.mark.parametrize(
    ("files", "digest", "said"),
    [
        (GRADLE_SCRIPT, "0" * 64, "has the SHA-256"),
        (GRADLE_SCRIPT | {"../../outside": "x"}, None, "outside its folder: ../../outside"),
    ],
)
def test_a_changed_gradle_is_not_run(
    tmp_path: Path, files: dict[str, str], digest: str | None, said: str
) -> None:
    ended = _gradlew(_wrapped(tmp_path, files, digest))
    assert ended.returncode == 1
    assert said in ended.stderr
    assert ended.stdout == ""
    assert not list((tmp_path / "home").rglob("*.ok"))
    assert not list((tmp_path / "home").rglob("outside"))


def test_the_wrapper_names_the_gradle_that_the_android_plugin_needs() -> None:
    """Sources of the digest: Gradle's releases, and the wrapper of the AndroidX libraries."""
    text = resource_folder("templates").joinpath(
        "android/gradle/wrapper/gradle-wrapper.properties"
    ).read_text()  # fmt: skip
    assert "gradle-9.1.0-bin.zip" in text
    assert "a17ddd85a26b6a7f5ddb71ff8b05fc5104c0202c6e64782429790c933686c806" in text
