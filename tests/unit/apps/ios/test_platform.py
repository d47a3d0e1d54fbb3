"""iOS as a platform for apps, as far as no Mac is needed."""

from __future__ import annotations

import plistlib
import zipfile
from pathlib import Path

import pytest

from etdeploy.apps.ios.platform import Ios
from etdeploy.apps.model import AppModel
from etdeploy.apps.registry import platform_for
from etdeploy.core.errors import BuildError, UsageError
from tests.support.runtime_values import make_recipe
from tests.unit.apps.ios.test_products import make_program

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


def test_ios_is_one_of_the_platforms() -> None:
    assert isinstance(platform_for("ios"), Ios)
    assert (Ios().templates / "README.md.j2").is_file()


def test_the_runtime_is_the_swift_package() -> None:
    program = make_program(operators=("aten::add.out",), delegates=("XnnpackBackend",))
    found = Ios().runtime(make_recipe(), program, "1.5.1", ())
    assert found.name.value == "prebuilt"
    assert [each.name for each in found.packages] == [
        "backend_xnnpack", "executorch", "kernels_optimized",
    ]  # fmt: skip
    assert {each.value for each in found.packages} == {"swiftpm-1.5.1"}


def test_what_the_package_lacks_is_refused_and_so_is_a_build_from_source() -> None:
    with pytest.raises(BuildError, match="VulkanBackend"):
        Ios().runtime(make_recipe(), make_program(delegates=("VulkanBackend",)), "1.5.1", ())
    recipe = make_recipe()
    recipe = recipe.model_copy(update={"app": recipe.app.model_copy(update={"runtime": "source"})})
    with pytest.raises(BuildError, match=r"app\.runtime"):
        Ios().runtime(recipe, make_program(), "1.5.1", ())
    with pytest.raises(BuildError, match=r"app\.runtime.*VulkanBackend"):
        Ios().runtime(recipe, make_program(delegates=("VulkanBackend",)), "1.5.1", ())


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
