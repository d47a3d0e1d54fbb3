"""The project that a user gets: checked by ktlint, the same each time, without a trap."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support import android_real_api
from tests.support.android_app import App, Tools, ktlint, render, run

pytestmark = pytest.mark.integration

_ANDROID = "{http://schemas.android.com/apk/res/android}"


@pytest.mark.parametrize("workload", ["inference", "generation"])
def test_ktlint_finds_nothing(tools: Tools, tmp_path: Path, workload: str) -> None:
    ktlint(tools, render(tmp_path / "project", workload))


def test_the_app_asks_for_no_permission_and_keeps_no_backup(
    tools: Tools, inference_app: App
) -> None:
    apk = inference_app.link(tools)
    told = run(tools.folder / "aapt2", "dump", "badging", apk)
    assert "uses-permission" not in told
    assert "launchable-activity: name='org.example.tiny.MainActivity'" in told
    assert "application-label:'Tiny'" in told
    manifest = ElementTree.parse(inference_app.project / "app/src/main/AndroidManifest.xml")  # noqa: S314
    application = manifest.getroot().find("application")
    assert application is not None
    assert application.get(f"{_ANDROID}allowBackup") == "false"


def test_names_of_every_kind_are_kept(tools: Tools, tmp_path: Path) -> None:
    """Texts that mean something in XML, in resources and in Kotlin."""
    name = 'It\'s <b> & "$x" \\ @'
    app = App(tmp_path / "project", tmp_path / "built")
    render(app.project, "inference", name=name, model_name="@?")
    told = run(tools.folder / "aapt2", "dump", "strings", app.link(tools))
    assert name in told
    assert "@?" in told
    # Gradle takes no such name for a project.
    assert 'rootProject.name = "tiny"' in (app.project / "settings.gradle.kts").read_text()


@pytest.mark.parametrize("runtime", ["prebuilt", "source"])
def test_gradle_s_files_name_each_other_s_parts(tmp_path: Path, runtime: str) -> None:
    project = render(
        tmp_path, "inference", runtime=runtime, extracted=True, abis=["arm64-v8a", "x86_64"],
        system_libraries=["libcdsprpc.so"], variables=["ADSP_LIBRARY_PATH"],
        artifacts=["org.pytorch:executorch-android-qnn:1.5.1", "com.qualcomm.qti:qnn-runtime:2.37"],
    )  # fmt: skip
    catalogue = (project / "gradle/libs.versions.toml").read_text()
    libraries = catalogue.partition("[libraries]")[2].partition("[plugins]")[0]
    build = (project / "app/build.gradle.kts").read_text()
    used = {
        name.replace(".", "-") for name in re.findall(r"[iI]mplementation\(libs\.([\w.]+)\)", build)
    }
    assert used == set(re.findall(r"^([\w-]+) = ", libraries, re.MULTILINE))
    assert 'abiFilters += listOf("arm64-v8a", "x86_64")' in build
    assert "org.jetbrains.kotlin.android" not in build
    assert ("fileTree" in build) == (runtime == "source")
    manifest = (project / "app/src/main/AndroidManifest.xml").read_text()
    assert "libcdsprpc.so" in manifest
    assert 'android:extractNativeLibs="true"' in manifest
    [activity] = project.rglob("MainActivity.kt")
    assert 'Os.setenv("ADSP_LIBRARY_PATH", applicationInfo.nativeLibraryDir' in activity.read_text()


@pytest.mark.nightly
def test_the_templates_are_compiled_against_an_api_of_the_users(
    tools: Tools, shared_folder: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """An AAR with the stand-in's classes fits; one without a class that the apps use does not."""
    monkeypatch.setattr(android_real_api, "_APPS", (("inference", "tensor"),))
    monkeypatch.setattr(android_real_api, "_LIBRARIES", ("convnet",))
    ended = {}
    for missing in ("none", "ExecuTorchRuntime.class"):
        classes, aar = tmp_path / "classes.jar", tmp_path / f"{missing}.aar"
        with zipfile.ZipFile(classes, "w") as jar:
            for path in sorted((tools.folder / "api").rglob("*.class")):
                if path.name != missing:
                    jar.write(path, path.relative_to(tools.folder / "api"))
        with zipfile.ZipFile(aar, "w") as archive:
            archive.write(classes, "classes.jar")
        words = ("--aar", str(aar), "--tools", str(shared_folder))
        ended[missing] = (android_real_api.main(words), capsys.readouterr().out)
    assert ended["none"] == (0, "fits    app inference tensor\nfits    library convnet\n")
    code, said = ended["ExecuTorchRuntime.class"]
    assert code == 1
    assert "DIFFERS app inference tensor" in said
    assert "unresolved reference 'ExecuTorchRuntime'" in said
