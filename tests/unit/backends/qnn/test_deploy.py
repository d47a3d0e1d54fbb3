"""The libraries that go to a phone: of an SDK, or of an AAR."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from etdeploy.backends.qnn.compiler import CompileKit, find_compile_kit
from etdeploy.backends.qnn.deploy import (
    DeployKit,
    absent_libraries,
    find_deploy_kit,
    required_libraries,
)
from etdeploy.backends.qnn.facts import QUALCOMM_SOCS
from etdeploy.backends.qnn.phone import kit_blockers, kit_note
from etdeploy.backends.values import Workstation
from etdeploy.cache.folder import CacheKind
from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import Blocker, BuildError
from tests.support.facts import lacks
from tests.support.qnn_sdk import AAR_VERSION, VERSION, lay_out_aar, lay_out_sdk


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return lay_out_sdk(tmp_path / "qairt" / VERSION)


@pytest.fixture
def aar(tmp_path: Path) -> Path:
    return lay_out_aar(tmp_path / "qnn-runtime.aar")


def found(home: Path, **environ: object) -> DeployKit:
    kit = find_deploy_kit(Workstation({k: str(v) for k, v in environ.items()}, home))
    assert isinstance(kit, DeployKit), kit
    return kit


def refusal(path: Path) -> str:
    kit = find_deploy_kit(Workstation({"QNN_RUNTIME_AAR": str(path)}, path.parent))
    assert isinstance(kit, Blocker)
    assert "export QNN_RUNTIME_AAR=/path/to/qnn-runtime-VERSION.aar" in kit.remedy
    assert kit.why.startswith(f"QNN_RUNTIME_AAR names {path}, ")
    return kit.why.removeprefix(f"QNN_RUNTIME_AAR names {path}, ")


@pytest.mark.parametrize(
    "name", ["lib/aarch64-android/libQnnSystem.so", "lib/hexagon-v75/unsigned/libQnnHtpV75Skel.so"]
)
def test_a_library_that_is_missing_is_named(root: Path, name: str) -> None:
    (root / name).unlink()
    problem = absent_libraries(found(root, QNN_SDK_ROOT=root), QUALCOMM_SOCS["SM8650"])
    assert problem is not None
    assert not lacks(problem.why, f"QNN SDK 2.37.0 in {root} is", f" {name}")


def test_an_aar_comes_before_the_sdk(aar: Path, root: Path) -> None:
    kit = found(root, QNN_RUNTIME_AAR=aar, QNN_SDK_ROOT=root)
    assert (kit.version, kit.place) == (AAR_VERSION, aar)
    assert kit.htp_archs == ("V75", "V79")
    assert not list(kit_blockers(kit, "SM8750", "2.48.40.260702151143"))


def test_an_aars_libraries_are_unpacked_once(aar: Path, tmp_path: Path) -> None:
    kit = found(tmp_path, QNN_RUNTIME_AAR=aar)
    names = required_libraries(QUALCOMM_SOCS["SM8750"])
    paths = kit.paths(names)
    assert [path.name for path in paths] == list(names)
    assert AAR_VERSION.encode() in paths[0].read_bytes()
    assert paths[1].read_bytes() == b"libQnnHtpV79Stub.so"
    before = paths[0].stat()
    assert kit.paths(names)[0].stat() == before
    # A damaged copy is made again, and another archive has another folder.
    paths[1].write_text("damaged")
    assert kit.paths(names)[1].read_bytes() == b"libQnnHtpV79Stub.so"
    other = found(tmp_path, QNN_RUNTIME_AAR=lay_out_aar(tmp_path / "b.aar", archs=("V79",)))
    assert other.paths(names)[0].parent != paths[0].parent


def test_an_aar_without_the_soc(aar: Path, tmp_path: Path) -> None:
    (problem,) = kit_blockers(found(tmp_path, QNN_RUNTIME_AAR=aar), "SM8550")
    assert not lacks(problem.why, "SM8550 has HTP V73", f"{aar} (QNN 2.49.0) has no", "V75, V79)")


def test_an_aar_that_lacks_a_library(tmp_path: Path) -> None:
    aar = lay_out_aar(tmp_path / "a.aar", without="libQnnSystem.so")
    (problem,) = kit_blockers(found(tmp_path, QNN_RUNTIME_AAR=aar), "SM8750")
    assert not lacks(problem.why, f"{aar} (QNN 2.49.0)", " jni/arm64-v8a/libQnnSystem.so")


@pytest.mark.parametrize("compiled_with", ["2.49.40.260810104044", "2.37.0.250724175447"])
def test_a_version_that_the_aar_does_not_say(tmp_path: Path, compiled_with: str) -> None:
    kit = found(tmp_path, QNN_RUNTIME_AAR=lay_out_aar(tmp_path / "a.aar", version=""))
    assert kit.version is None
    assert not list(kit_blockers(kit, "SM8750", compiled_with))
    note = kit_note(kit, compiled_with)
    assert note is not None
    assert note.startswith(f"{kit.place} does not say")


def test_what_compiles_follows_what_goes_to_the_phone(tmp_path: Path, installed: Path) -> None:
    download = lay_out_sdk(tmp_path / ".cache/executorch/qnn/sdk-2.37.0.250724175447")
    for version, expected in (("2.44.0.260101000000", download), (AAR_VERSION, installed)):
        aar = lay_out_aar(tmp_path / f"{version}.aar", version=version)
        kit = find_compile_kit(Workstation({"QNN_RUNTIME_AAR": str(aar)}, tmp_path), "SM8750")
        assert isinstance(kit, CompileKit)
        assert expected in (kit.root, kit.libraries)


def _archive(path: Path, *names: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "x")
    return path


def test_files_that_are_no_such_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "page.aar").write_text("<html>404</html>")
    linked = lay_out_aar(tmp_path / "linked.aar")
    link = zipfile.ZipInfo("jni/arm64-v8a/libQnnHtpV73Stub.so")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(linked, "a") as archive:
        archive.writestr(link, "/etc/passwd")
    other = _archive(tmp_path / "o.aar", "classes.jar", "jni/arm64-v8a/../../libQnnHtp.so")
    for path, facts in (
        (tmp_path / "none.aar", ("not exist",)),
        (tmp_path / "folder", ("is a folder",)),
        (tmp_path / "page.aar", ("(a zip archive): ",)),
        (other, ("no jni/arm64-v8a/libQnnHtp.so", "com.qualcomm.qti:qnn-runtime")),
        (_archive(tmp_path / "x.aar", "jni/x86_64/libQnnHtp.so"), ("x86_64", "arm64-v8a")),
        (lay_out_aar(tmp_path / "b.aar", machine=62), ("libQnnHtp.so", "arm64")),
        (linked, ("jni/arm64-v8a/libQnnHtpV73Stub.so is", "a plain file")),
    ):
        assert not lacks(refusal(path), *facts)
    monkeypatch.setattr("etdeploy.backends.qnn.deploy._MOST_BYTES", 100)
    assert "larger than 0 GB" in refusal(lay_out_aar(tmp_path / "a.aar"))


def test_a_damaged_archive_leaves_nothing(aar: Path, tmp_path: Path) -> None:
    data = bytearray(aar.read_bytes())
    at = data.index(b"libQnnSystem.so", data.index(b"libQnnSystem.so") + 1)
    data[at] ^= 0xFF  # of its content
    aar.write_bytes(data)
    kit = found(tmp_path, QNN_RUNTIME_AAR=aar)
    with pytest.raises(BuildError, match="Bad CRC-32"):
        kit.paths(("libQnnHtp.so",))
    assert not list(Workspace.default().folder(CacheKind.KITS).iterdir())
