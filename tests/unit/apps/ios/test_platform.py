"""iOS as a platform for apps: facts of a project, archives, and what is missing without a Mac."""

from __future__ import annotations

import os
import plistlib
import shutil
import stat
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from etdeploy.apps.ios.platform import Ios, ios_app, quoted, target_name, write_ipa
from etdeploy.apps.library import IosLibrary
from etdeploy.apps.model import AppModel
from etdeploy.core.errors import BuildError, UsageError
from etdeploy.custom_ops.kernels import read_custom_ops
from etdeploy.program.model import Program
from etdeploy.recipe.model import Recipe
from tests.support.golden_apps import app_subject
from tests.support.runtime_values import make_method, make_program, make_recipe


def app_program(*, operators: tuple[str, ...] = (), delegates: tuple[str, ...] = ()) -> Program:
    return make_program(make_method(operators=operators, delegates=delegates))


_MODEL = AppModel(
    app_id="org.example.net", name="net", workload="inference", program="program.pte",
    bundled=True, program_sha256="", program_bytes=1, executorch_version="1.5.1", backends=(),
    quantization="none", method="forward", warmup=-1, iterations=1, threads=0,
)  # fmt: skip


def _ipa(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(f"Payload/Net.app/{name}", content)
    return path


def test_what_the_package_lacks_is_refused_and_so_is_a_build_from_source() -> None:
    with pytest.raises(BuildError, match="VulkanBackend"):
        Ios().runtime(make_recipe(), app_program(delegates=("VulkanBackend",)), "1.5.1", ())
    recipe = make_recipe()
    recipe = recipe.model_copy(update={"app": recipe.app.model_copy(update={"runtime": "source"})})
    with pytest.raises(BuildError, match=r"app\.runtime"):
        Ios().runtime(recipe, app_program(), "1.5.1", ())
    with pytest.raises(BuildError, match=r"app\.runtime.*VulkanBackend"):
        Ios().runtime(recipe, app_program(delegates=("VulkanBackend",)), "1.5.1", ())


def test_an_app_that_was_built_on_a_mac_tells_what_it_is(tmp_path: Path) -> None:
    info = {"CFBundleIdentifier": "com.me.net", "CFBundleShortVersionString": "1.2"}
    ipa = _ipa(
        tmp_path / "Net.ipa",
        {"Info.plist": plistlib.dumps(info, fmt=plistlib.FMT_BINARY),
         "Model/model.json": _MODEL.model_dump_json().encode()},
    )  # fmt: skip
    built, model = Ios().read_archive(ipa)
    # The id that a person chose in Xcode counts.
    assert (built.id, built.version, built.how) == ("com.me.net", "1.2", "given")
    assert built.size_bytes == ipa.stat().st_size
    assert model == _MODEL


@pytest.mark.parametrize("files", [{}, {"Info.plist": b"x"}, {"Model/model.json": b"{}"}])
def test_another_app_is_refused(tmp_path: Path, files: dict[str, bytes]) -> None:
    with pytest.raises(UsageError) as caught:
        Ios().read_archive(_ipa(tmp_path / "x.ipa", files))
    assert caught.value.place == str(tmp_path / "x.ipa")


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.ipa").write_bytes(b"no zip")
    with pytest.raises(UsageError):
        Ios().read_archive(tmp_path / "x.ipa")


def test_without_xcode_the_way_on_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (blocker,) = Ios().missing(make_recipe(), None)  # type: ignore[arg-type]
    assert blocker.what == "Xcode"
    assert "--app X.ipa" in blocker.remedy


def test_the_facts_follow_from_the_program() -> None:
    program = app_program(delegates=("CoreMLBackend",)).model_copy(update={"size_bytes": 2 << 30})
    app = ios_app(app_subject(Ios(), "language-model", program, name="My Net", team="ABCDE12345"))
    assert (app.target, app.package_branch) == ("LanguageModel", "swiftpm-1.5.1")
    assert (app.id, app.name, app.team) == ("org.example.languagemodel", "My Net", "ABCDE12345")
    assert (app.threadpool, app.increased_memory) == (False, True)
    assert app.products == ("backend_coreml", "executorch")


def test_a_bundle_id_that_apple_does_not_take_is_refused() -> None:
    with pytest.raises(UsageError, match=r"org\.example\.my_net") as caught:
        ios_app(app_subject(Ios(), "convnet", id="org.example.my_net"))
    assert "--set app.id=" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("my-model.v2", "MyModelV2"),
        ("convnet", "Convnet"),
        ("SmolLM2-135M", "SmolLM2135M"),
        ("3d", "Model3d"),
        ("swift", "SwiftApp"),
        ("execuTorch", "ExecuTorchApp"),
        ("executorch", "ExecutorchApp"),
        ("core-ml", "CoreMlApp"),
        ("visions", "Visions"),
        ("größe", "GrE"),
    ],
)
def test_the_target_is_a_word_that_swift_and_files_take(name: str, target: str) -> None:
    assert target_name(name) == target


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("Net", "Net"),
        ("", '""'),
        ("My net", '"My net"'),
        ('a "b" \\', '"a \\"b\\" \\\\"'),
        ("swiftpm-1.5.1", '"swiftpm-1.5.1"'),
        ("http://x", '"http://x"'),
    ],
)
def test_strings_are_quoted_as_xcode_does(text: str, written: str) -> None:
    assert quoted(text) == written


def _built_app(folder: Path) -> Path:
    app = folder / "Net.app"
    (app / "Model").mkdir(parents=True)
    (app / "Info.plist").write_bytes(b"plist")
    (app / "Net").write_bytes(b"binary")
    (app / "Net").chmod(0o755)
    (app / "Model/program.pte").write_bytes(b"0" * 1000)
    (app / "link").symlink_to("Model")
    return app


def test_the_app_is_in_payload_with_its_modes(tmp_path: Path) -> None:
    write_ipa(_built_app(tmp_path), tmp_path / "Net.ipa")
    with zipfile.ZipFile(tmp_path / "Net.ipa") as archive:
        found = {info.filename: info for info in archive.infolist()}
        assert list(found) == [
            "Payload/Net.app/Info.plist",
            "Payload/Net.app/Model/program.pte",
            "Payload/Net.app/Net",
            "Payload/Net.app/link",
        ]
        assert archive.read("Payload/Net.app/Model/program.pte") == b"0" * 1000
        assert archive.read("Payload/Net.app/link") == b"Model"
    modes = [info.external_attr >> 16 for info in found.values()]
    assert [stat.S_IMODE(mode) for mode in modes] == [0o644, 0o644, 0o755, 0o777]
    assert stat.S_ISLNK(modes[-1])


def test_equal_apps_give_equal_archives(tmp_path: Path) -> None:
    archives = []
    for i in (1, 2):
        app = _built_app(tmp_path / str(i))
        os.utime(app / "Net", (i * 10**9, i * 10**9))
        write_ipa(app, tmp_path / f"{i}.ipa")
        archives.append((tmp_path / f"{i}.ipa").read_bytes())
    assert archives[0] == archives[1]


def test_what_is_no_app_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="not a built app"):
        write_ipa(tmp_path, tmp_path / "x.ipa")
    assert not (tmp_path / "x.ipa").exists()


_OP = "fused::rms_norm.out"
_KERNELS = Path(__file__).parents[4] / "examples/custom_op/kernels"


def _with_kernels(folder: Path, **runtime: object) -> Recipe:
    return make_recipe(runtime={"custom_ops": str(folder), **runtime})


def test_the_recipes_own_kernels_are_sources_of_the_app() -> None:
    program = app_program(operators=(_OP,))
    runtime = Ios().runtime(_with_kernels(_KERNELS), program, "1.5.1", ())
    assert runtime.name.value == "prebuilt"
    assert runtime.custom_ops == read_custom_ops(_KERNELS).digest
    assert Ios().runtime(make_recipe(), app_program(), "1.5.1", ()).custom_ops is None


def test_kernels_become_files_with_their_registration(tmp_path: Path) -> None:
    shutil.copytree(_KERNELS, tmp_path / "kernels")
    (tmp_path / "kernels/include").mkdir()
    (tmp_path / "kernels/include/norm.h").write_text("#pragma once\n")
    recipe = _with_kernels(tmp_path / "kernels")
    given = app_subject(Ios(), "convnet")
    subject = replace(
        given,
        program=app_program(operators=(_OP,)),
        loaded=replace(given.loaded, recipe=recipe),
    )
    app, files = ios_app(subject), Ios().files(subject)
    assert app.kernel_sources == ("KernelSupport/registration.cpp", "Kernels/rms_norm.cpp")
    assert app.kernel_headers == ("Kernels/include/norm.h",)
    for path in (*app.kernel_sources, *app.kernel_headers):
        assert f"{app.target}/{path}" in files
    code = files[f"{app.target}/KernelSupport/registration.cpp"]
    assert isinstance(code, bytes)
    assert _OP.encode() in code
    assert str(tmp_path).encode() not in code
    assert Ios().notes(subject) == ()


def test_kernels_without_a_list_are_taken_with_a_note(tmp_path: Path) -> None:
    (tmp_path / "op.cpp").write_text("EXECUTORCH_LIBRARY")
    recipe = _with_kernels(tmp_path)
    Ios().runtime(recipe, app_program(operators=("mine::op.out",)), "1.5.1", ())
    given = app_subject(Ios(), "convnet")
    [note] = Ios().notes(replace(given, loaded=replace(given.loaded, recipe=recipe)))
    assert "lists no operators" in note


def test_an_operator_that_the_kernels_do_not_list_is_refused() -> None:
    program = app_program(operators=(_OP, "mine::op.out"))
    with pytest.raises(BuildError, match=r"mine::op\.out") as caught:
        Ios().runtime(_with_kernels(_KERNELS), program, "1.5.1", ())
    assert _OP not in str(caught.value)
    assert f"List them in the yaml file of {_KERNELS}" in str(caught.value.remedy)


def test_a_target_of_cmake_is_refused(tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").write_text("add_library(mine STATIC op.cpp)\n")
    recipe = _with_kernels(tmp_path, custom_ops_target="mine")
    with pytest.raises(BuildError, match="mine is a target of CMake's"):
        Ios().runtime(recipe, app_program(operators=("mine::op.out",)), "1.5.1", ())


def test_a_swift_package_has_no_kernels_of_the_recipe() -> None:
    with pytest.raises(BuildError, match="no place for kernels") as caught:
        IosLibrary().runtime(_with_kernels(_KERNELS), app_program(), "1.5.1", ())
    assert "etdeploy app ios" in str(caught.value.remedy)
