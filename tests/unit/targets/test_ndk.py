"""Which NDK is taken, and what is said of those that are not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from etdeploy.core.errors import Blocker
from etdeploy.targets.ndk import Ndk, find_ndk

DATA = Path(__file__).parents[2] / "data" / "ndk"


def ndk(folder: Path, release: str) -> Path:
    """A folder with the files of that release by which an NDK is known."""
    shutil.copytree(DATA / release, folder)
    toolchain = folder / "build/cmake/android.toolchain.cmake"
    toolchain.parent.mkdir(parents=True)
    toolchain.touch()
    return folder


def found(environ: dict[str, str], home: Path) -> Ndk:
    result = find_ndk(environ, home)
    assert isinstance(result, Ndk), result
    return result


def missing(environ: dict[str, str], home: Path) -> Blocker:
    result = find_ndk(environ, home)
    assert isinstance(result, Blocker), result
    return result


def test_nothing_at_all_names_the_places_and_the_command(tmp_path: Path) -> None:
    problem = missing({}, tmp_path)
    assert "ANDROID_NDK, ANDROID_NDK_HOME, ANDROID_NDK_ROOT" in problem.why
    assert "~/Android/Sdk/ndk" in problem.why
    assert problem.remedy.startswith("sdkmanager 'ndk;28.2.13676358'")


@pytest.mark.parametrize(
    ("release", "version"), [("r26d", "26.3.11579264"), ("r27c", "27.2.12479018"),
                             ("r28c", "28.2.13676358")]
)  # fmt: skip
def test_a_known_release_is_taken(tmp_path: Path, release: str, version: str) -> None:
    path = ndk(tmp_path / "ndk", release)
    result = found({"ANDROID_NDK_ROOT": str(path)}, tmp_path)
    assert result == Ndk(path, version, "ANDROID_NDK_ROOT")
    assert result.release == release
    assert result.known


def test_the_variables_have_an_order(tmp_path: Path) -> None:
    environ = {
        "ANDROID_NDK_ROOT": str(ndk(tmp_path / "a", "r26d")),
        "ANDROID_NDK": str(ndk(tmp_path / "b", "r27c")),
        "ANDROID_NDK_HOME": "",
    }
    assert found(environ, tmp_path).release == "r27c"


def test_r21_is_refused_for_its_clang(tmp_path: Path) -> None:
    path = ndk(tmp_path / "old", "r21b")
    problem = missing({"ANDROID_NDK": str(path)}, tmp_path)
    assert problem.why.startswith("r21b (21.1.6352462")
    assert "bf16" in problem.why
    assert "#8508" in problem.why


def test_older_than_known_is_refused(tmp_path: Path) -> None:
    problem = missing({"ANDROID_NDK": str(ndk(tmp_path / "old", "r25c"))}, tmp_path)
    assert "r26 is the oldest" in problem.why


def test_a_better_one_in_the_sdk_is_the_remedy(tmp_path: Path) -> None:
    home = tmp_path / "a home"
    good = ndk(home / "Android/Sdk/ndk/27.2.12479018", "r27c")
    environ = {"ANDROID_NDK": str(ndk(tmp_path / "old", "r21b"))}
    assert missing(environ, home).remedy == f"export ANDROID_NDK='{good}'"


def test_a_too_old_one_in_the_sdk_is_no_remedy(tmp_path: Path) -> None:
    ndk(tmp_path / "Android/Sdk/ndk/25.2.9519653", "r25c")
    environ = {"ANDROID_NDK": str(ndk(tmp_path / "old", "r21b"))}
    # A variable comes before what sdkmanager installs.
    assert missing(environ, tmp_path).remedy.startswith("unset ANDROID_NDK\nsdkmanager ")
    assert missing({}, tmp_path).remedy.startswith("sdkmanager ")


@pytest.mark.parametrize("files", [(), ("source.properties",)])
def test_a_folder_that_is_no_ndk_is_named(tmp_path: Path, files: tuple[str, ...]) -> None:
    for name in files:
        (tmp_path / name).touch()
    problem = missing({"ANDROID_NDK_HOME": str(tmp_path)}, tmp_path)
    assert f"ANDROID_NDK_HOME names {tmp_path}" in problem.why
    assert "build/cmake/android.toolchain.cmake" in problem.why


def test_the_folder_above_an_ndk_is_corrected(tmp_path: Path) -> None:
    inner = ndk(tmp_path / "ndk" / "27.2.12479018", "r27c")
    problem = missing({"ANDROID_NDK": str(inner.parent)}, tmp_path)
    assert problem.remedy == f"export ANDROID_NDK={inner}"


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    problem = missing({"ANDROID_NDK": str(tmp_path / "gone")}, tmp_path)
    assert problem.why == f"ANDROID_NDK names {tmp_path / 'gone'}, which is not a folder"


def test_a_version_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    path = ndk(tmp_path / "ndk", "r27c")
    (path / "source.properties").write_text("Pkg.Desc = Android NDK\n")
    assert "source.properties" in missing({"ANDROID_NDK": str(path)}, tmp_path).why


def test_the_newest_known_one_of_the_sdk_is_taken(tmp_path: Path) -> None:
    for release in ("r21b", "r26d", "r28c", "r27c", "r29"):
        ndk(tmp_path / "sdk/ndk" / release, release)
    (tmp_path / "sdk/ndk/.temp").mkdir()
    result = found({"ANDROID_HOME": str(tmp_path / "sdk")}, tmp_path)
    assert (result.release, result.from_) == ("r28c", "ANDROID_HOME/ndk")


def test_a_newer_one_is_taken_where_no_known_one_is(tmp_path: Path) -> None:
    for release in ("r25c", "r29"):
        ndk(tmp_path / "Library/Android/sdk/ndk" / release, release)
    result = found({}, tmp_path)
    assert result.release == "r29"
    assert not result.known


def test_only_too_old_ones_are_refused_by_the_newest_of_them(tmp_path: Path) -> None:
    for release in ("r21b", "r25c"):
        ndk(tmp_path / "Android/Sdk/ndk" / release, release)
    assert missing({}, tmp_path).why.startswith("r25c")


def test_a_beta_comes_after_a_release(tmp_path: Path) -> None:
    ndk(tmp_path / "Android/Sdk/ndk/a", "r28c")
    beta = ndk(tmp_path / "Android/Sdk/ndk/b", "r28c")
    (beta / "source.properties").write_text("Pkg.Revision = 28.3.13700000-beta1\n")
    assert found({}, tmp_path).release == "r28c"
    shutil.rmtree(beta.parent / "a")
    assert found({}, tmp_path).release == "r28d-beta1"


def test_its_files_tell_compiler_and_api_levels(tmp_path: Path) -> None:
    result = found({"ANDROID_NDK": str(ndk(tmp_path / "ndk", "r27c"))}, tmp_path)
    assert result.newest_api() == 35
    assert result.compiler("linux").parts[-3:] == ("linux-x86_64", "bin", "clang++")
    assert result.compiler("macos").parts[-3] == "darwin-x86_64"
    assert result.compiler_version("linux") == "18.0.2"
    assert result.compiler_version("macos") is None
    (result.path / "meta/platforms.json").write_text("[]")
    assert result.newest_api() is None
