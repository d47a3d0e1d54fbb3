"""What an Android app can hold and be handed, what builds it, and what its archive says."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from etdeploy.apps.android.app import ASSETS, AndroidApp, require_room, require_valid
from etdeploy.apps.android.platform import (
    Android,
    choose_build,
    refuse_stale_library,
    require_readable,
)
from etdeploy.apps.model import MODEL_FILE, AppModel, AppSize, AppValue
from etdeploy.backends.values import Workstation
from etdeploy.core.errors import BuildError, CheckError, UsageError
from etdeploy.core.files.basic import resource_folder


def model(*inputs: AppValue, expected: tuple[AppValue, ...] = ()) -> AppModel:
    return AppModel(
        app_id="org.example.net", name="net", workload="inference", program="program.pte",
        bundled=True, program_sha256="ab" * 32, program_bytes=1, executorch_version="1.5.1",
        backends=(), quantization="none", method="forward", warmup=-1, iterations=1, threads=0,
        sizes=(AppSize(inputs=inputs, expected=expected),),
    )  # fmt: skip


def tensor(dtype: str, name: str = "") -> AppValue:
    return AppValue(name=name, kind="Tensor", dtype=dtype, shape=(1,), path="inputs/0.bin")


def test_what_the_java_api_has_is_taken() -> None:
    number = AppValue(kind="Int", value=3)
    require_readable(
        model(tensor("float32"), tensor("int64"), number, expected=(number, AppValue(kind="None")))
    )


@pytest.mark.parametrize(
    ("app", "named"),
    [
        (model(tensor("bool", "mask")), "input mask .*bool"),
        (model(tensor("bfloat16")), "input input_0 .*bfloat16"),
        (model(AppValue(name="state", kind="None")), "input state .*None"),
        (model(expected=(tensor("bool"),)), "output output_0 .*bool"),
    ],
)
def test_what_it_lacks_is_named(app: AppModel, named: str) -> None:
    with pytest.raises(CheckError, match=named):
        require_readable(app)


def test_a_given_apk_says_which_app_and_program_it_has(tmp_path: Path) -> None:
    apk = tmp_path / "mine.apk"
    with zipfile.ZipFile(apk, "w") as archive:
        archive.writestr(f"assets/model/{MODEL_FILE}", model().model_dump_json())
    built, found = Android().read_archive(apk)
    assert (built.id, built.how, found) == ("org.example.net", "given", model())


@pytest.mark.parametrize("content", [b"no archive", None])
def test_an_archive_of_something_else_is_refused(tmp_path: Path, content: bytes | None) -> None:
    apk = tmp_path / "mine.apk"
    if content is None:
        zipfile.ZipFile(apk, "w").close()
    else:
        apk.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        Android().read_archive(apk)
    assert caught.value.place == str(apk)


def test_a_library_of_an_earlier_build_from_source_is_in_the_way(tmp_path: Path) -> None:
    refuse_stale_library(tmp_path)
    left = tmp_path / "app/src/main/jniLibs/arm64-v8a/libexecutorch.so"
    left.parent.mkdir(parents=True)
    (left.parent / "libQnnHtp.so").touch()
    refuse_stale_library(tmp_path)
    left.touch()
    with pytest.raises(BuildError, match="source") as error:
        refuse_stale_library(tmp_path)
    assert f"rm {left}" in str(error.value)


def test_an_id_that_android_refuses_is_refused() -> None:
    with pytest.raises(BuildError, match="'2d'") as caught:
        require_valid(AndroidApp(id="org.2d", name="x"))
    assert "--set app.id=" in str(caught.value.remedy)


def sparse(path: Path, size_bytes: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size_bytes)


def test_a_model_of_two_gib_is_refused_with_the_way_beside_the_app(tmp_path: Path) -> None:
    sparse(tmp_path / ASSETS / "model/program.pte", 2**31)
    with pytest.raises(BuildError, match=r"model/program\.pte: 2\.\d GB") as caught:
        require_room(tmp_path)
    assert "--set app.bundled=false" in str(caught.value.remedy)
    assert caught.value.exit_code == 4


def test_files_that_are_too_large_together_are_refused(tmp_path: Path) -> None:
    for name in ("a.bin", "b.bin"):
        sparse(tmp_path / ASSETS / name, 2**30)
    with pytest.raises(BuildError, match="all assets"):
        require_room(tmp_path)


def test_what_fits_passes(tmp_path: Path) -> None:
    require_room(tmp_path)
    sparse(tmp_path / ASSETS / "model/program.pte", 2**31 - 1)
    require_room(tmp_path)


NOTHING = Workstation({"PATH": ""}, Path("/nowhere"))


@pytest.fixture
def with_gradle(tmp_path: Path) -> Workstation:
    (tmp_path / "gradle").touch(0o755)
    return Workstation({"PATH": str(tmp_path)}, tmp_path)


def test_gradle_is_taken_where_it_is_to_be_had(with_gradle: Workstation, tmp_path: Path) -> None:
    choice, gradle = choose_build("auto", with_gradle, tmp_path)
    assert choice.value == "gradle"
    assert gradle == tmp_path / "gradle"
    choice, gradle = choose_build("auto", NOTHING, tmp_path)
    assert (choice.value, gradle) == ("sdk", None)
    assert "gradlew" in choice.reason


def test_the_recipe_can_say_which(with_gradle: Workstation, tmp_path: Path) -> None:
    assert choose_build("sdk", with_gradle, tmp_path)[1] is None
    with pytest.raises(BuildError, match="Gradle") as caught:
        choose_build("gradle", NOTHING, tmp_path)
    assert "--set app.build=sdk" in str(caught.value.remedy)


def test_a_wrapper_downloads_gradle_only_where_the_recipe_asks_for_gradle(tmp_path: Path) -> None:
    wrapper = resource_folder("templates") / "android"
    assert choose_build("auto", NOTHING, wrapper)[1] is None
    assert choose_build("gradle", NOTHING, wrapper)[1] == wrapper / "gradlew"
    assert choose_build("gradle", NOTHING, None)[1] == Path("gradlew")
    with_distribution = Workstation({"PATH": "", "GRADLE_USER_HOME": str(tmp_path)}, tmp_path)
    folder = tmp_path / "wrapper/dists/gradle-9.1.0-bin/9agq"
    folder.mkdir(parents=True)
    (folder / "gradle-9.1.0-bin.zip").touch()
    assert choose_build("auto", with_distribution, wrapper)[1] is None
    (folder / "gradle-9.1.0-bin.zip.ok").touch()
    assert choose_build("auto", with_distribution, wrapper)[1] == wrapper / "gradlew"


def test_a_named_library_is_the_sdks_tools_to_take(
    with_gradle: Workstation, tmp_path: Path
) -> None:
    choice, gradle = choose_build("auto", with_gradle, tmp_path, Path("x.aar"))
    assert (choice.value, gradle) == ("sdk", None)
    assert "app.aar names x.aar" in choice.reason
