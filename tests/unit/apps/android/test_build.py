"""What builds an app, and which libraries of a device's maker go into it."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.apps.android.platform import choose_build, folder_variables, needs_files, vendor_files
from etdeploy.backends.values import ExtraFile, Extras, Workstation
from etdeploy.core.errors import BuildError

NOTHING = Workstation({"PATH": ""}, Path("/nowhere"))


@pytest.fixture
def with_gradle(tmp_path: Path) -> Workstation:
    (tmp_path / "gradle").touch(0o755)
    return Workstation({"PATH": str(tmp_path)}, tmp_path)


def test_gradle_is_taken_where_it_is_to_be_had(with_gradle: Workstation, tmp_path: Path) -> None:
    choice, gradle = choose_build("auto", with_gradle, tmp_path)
    assert choice.value == "gradle"
    assert gradle == tmp_path / "gradle"


def test_otherwise_the_sdks_tools_do_and_the_reason_is_told(tmp_path: Path) -> None:
    choice, gradle = choose_build("auto", NOTHING, tmp_path)
    assert (choice.value, gradle) == ("sdk", None)
    assert "gradlew" in choice.reason


def test_the_recipe_can_say_which(with_gradle: Workstation, tmp_path: Path) -> None:
    assert choose_build("sdk", with_gradle, tmp_path)[1] is None
    with pytest.raises(BuildError, match="Gradle") as caught:
        choose_build("gradle", NOTHING, tmp_path)
    assert "--set app.build=sdk" in str(caught.value.remedy)


def test_a_named_library_is_the_sdks_tools_to_take(
    with_gradle: Workstation, tmp_path: Path
) -> None:
    choice, gradle = choose_build("auto", with_gradle, tmp_path, Path("x.aar"))
    assert (choice.value, gradle) == ("sdk", None)
    assert "app.aar names x.aar" in choice.reason


EXTRAS = Extras(
    files=(ExtraFile("/sdk/lib/libVendor.so", "libVendor.so"),),
    folder_variables=("LD_LIBRARY_PATH", "ADSP_LIBRARY_PATH"),
)


def test_the_makers_libraries_have_their_places_in_the_project() -> None:
    place = "app/src/main/jniLibs/arm64-v8a/libVendor.so"
    assert vendor_files(EXTRAS, "arm64-v8a") == {place: Path("/sdk/lib/libVendor.so")}


def test_what_opens_them_by_path_is_told_where_they_are() -> None:
    assert folder_variables(EXTRAS) == ("ADSP_LIBRARY_PATH",)
    assert needs_files(EXTRAS)
    assert not needs_files(Extras())
