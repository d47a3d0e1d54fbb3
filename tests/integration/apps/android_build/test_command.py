"""`etdeploy app android --build` with the SDK's tools, of a project that its user edited."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest

from etdeploy.cache.workspace import Workspace
from tests.support.apk_sdk import API, SdkUnavailable, elf, kept_sdk, user_home, write_aar
from tests.support.cli import Cli
from tests.support.export import export_workspace

pytestmark = pytest.mark.integration

__all__ = ["export_workspace"]

RECIPE = """
model: {example: mlp, arguments: {features: 48, width: 96, layers: 2}}
export: {backend: xnnpack}
app: {id: org.example.before, build: sdk, aar: executorch-android-1.5.1.aar}
"""
CODE = "app/src/main/kotlin/org/example"
COMMAND = ("app", "android", "-r", "recipe.yaml", "-o", "MyApp")
JAVA_API = Path(__file__).parents[3] / "support" / "android_api"


@pytest.fixture
def sdk(tmp_path: Path) -> Path:
    """The SDK for tests, whose platform stands for the one that apps are compiled against."""
    try:
        kept = kept_sdk()
    except SdkUnavailable as why:
        pytest.skip(str(why))
    folder = tmp_path / "sdk"
    (folder / "platforms").mkdir(parents=True)
    (folder / "platforms" / "android-36").symlink_to(kept / f"platforms/android-{API}")
    (folder / "build-tools").symlink_to(kept / "build-tools")
    return folder


@pytest.fixture
def cli(export_workspace: Workspace, sdk: Path, tmp_path: Path) -> Cli:
    _library(tmp_path)
    home = tmp_path / "home"
    home.mkdir()
    (home / ".m2").symlink_to(user_home() / ".m2")
    made = Cli(export_workspace.root, tmp_path, {"ANDROID_HOME": str(sdk), "HOME": str(home)})
    made.recipe(RECIPE)
    return made


def _library(folder: Path) -> None:
    """ExecuTorch's Java API, with native libraries for pages of 4 KB."""
    classes, jar = folder / "classes", folder / "classes.jar"
    sources = map(str, JAVA_API.rglob("*.java"))
    subprocess.run(["javac", "--release", "11", "-d", str(classes), *sources], check=True)
    with zipfile.ZipFile(jar, "w") as archive:
        for path in classes.rglob("*.class"):
            archive.write(path, path.relative_to(classes))
    native = {"arm64-v8a/libexecutorch.so": elf(alignment=4096)}
    write_aar(folder / "executorch-android-1.5.1.aar", jar.read_bytes(), native)


@pytest.mark.nightly
def test_a_new_id_takes_the_edits_along_and_the_build_notes_what_it_ignores(
    cli: Cli, sdk: Path
) -> None:
    cli.ok(*COMMAND)
    project = cli.folder / "MyApp"
    activity = project / CODE / "before" / "MainActivity.kt"
    activity.write_text(
        activity.read_text().replace("package org.example.before\n", "package org.example.before\n"
        "\nimport org.example.before.extra.WORDS\n").replace("private var report", "var words ="
        " WORDS\n    private var report")
    )  # fmt: skip
    extra = project / CODE / "before" / "extra" / "Extra.kt"
    extra.parent.mkdir()
    extra.write_text('package org.example.before.extra\n\nval WORDS = "mine"\n')
    gradle = project / "app" / "build.gradle.kts"
    text = gradle.read_text().replace("versionCode = 1", "versionCode = 7")
    gradle.write_text(text.replace("dependencies {", 'dependencies {\n    implementation("a:b:1")'))

    told = cli.ok(*COMMAND, "--set", "app.id=org.example.after", "--build", "--json").json

    assert f"{CODE}/after/extra/Extra.kt" in told["moved"]
    assert not (project / CODE / "before").exists()
    pages, dependency, remedy = told["app"]["notes"]
    assert "lib/arm64-v8a/libexecutorch.so" in pages
    assert "4096" in pages
    line = gradle.read_text().splitlines().index('    implementation("a:b:1")') + 1
    assert f"app/build.gradle.kts:{line}:" in dependency
    assert "--set app.build=gradle" in remedy
    aapt2 = next((sdk / "build-tools").glob("*/aapt2"))
    badging = subprocess.run(
        [aapt2, "dump", "badging", told["app"]["archive"]], capture_output=True, text=True,
        check=True,
    ).stdout  # fmt: skip
    assert "package: name='org.example.after' versionCode='7'" in badging
    assert "launchable-activity: name='org.example.after.MainActivity'" in badging
    # Of the same project, people read it too.
    shown = cli.ok(*COMMAND, "--set", "app.id=org.example.after", "--build").stdout
    assert "4096" in shown
    assert f"app/build.gradle.kts:{line}:" in shown
