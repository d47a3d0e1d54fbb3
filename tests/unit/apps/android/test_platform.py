"""What an Android app cannot be handed, and what its archive is asked."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from etdeploy.apps.android.platform import Android, refuse_stale_library, require_readable
from etdeploy.apps.model import MODEL_FILE, AppModel, AppSize, AppValue
from etdeploy.core.errors import BuildError, CheckError, UsageError


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
