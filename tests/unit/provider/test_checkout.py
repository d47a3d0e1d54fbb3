"""A checkout is found in its order, named with what is wrong with it, and told from another."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import BuildError
from etdeploy.provider.checkout import (
    SOURCE_VARIABLE,
    Checkout,
    Libraries,
    Origin,
    checkout_remedy,
    clone_folder,
    examine,
    find_checkout,
    missing_submodules,
    needed_submodules,
    require_complete,
    require_readable,
    revision,
    submodule_remedy,
)

_ORIGINS: tuple[Origin, ...] = ("recipe", "environment", "cache")
_STAND_IN = Path(__file__).parents[2] / "data" / "checkout"


@pytest.fixture(autouse=True)
def without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here a checkout is one without git; with git it is tried in the integration tests."""
    monkeypatch.setenv("PATH", str(tmp_path / "no-programs"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return _copy(tmp_path / "executorch")


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "cache")


def _copy(folder: Path) -> Path:
    shutil.copytree(_STAND_IN, folder)
    return folder


# --- which one


def test_the_recipe_comes_before_the_environment_and_that_before_the_cache(
    tmp_path: Path, workspace: Workspace
) -> None:
    named, other = _copy(tmp_path / "named"), _copy(tmp_path / "other")
    cached = _copy(clone_folder(workspace, "1.5.1"))
    environ = {SOURCE_VARIABLE: str(other)}

    def found(named: str | None, environ: dict[str, str]) -> tuple[str, str]:
        checkout = find_checkout(named, environ, workspace, "1.5.1")
        assert checkout is not None
        return checkout.path, checkout.origin

    assert found(str(named), environ) == (str(named), "recipe")
    assert found(None, environ) == (str(other), "environment")
    assert found(None, {}) == (str(cached), "cache")
    assert found(None, {SOURCE_VARIABLE: ""}) == (str(cached), "cache")


def test_a_clone_of_another_release_is_not_taken(workspace: Workspace) -> None:
    assert find_checkout(None, {}, workspace, "1.5.1") is None
    _copy(clone_folder(workspace, "1.4.1"))
    assert find_checkout(None, {}, workspace, "1.5.1") is None


def test_the_variable_may_be_relative_or_name_the_home_folder(
    source: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(source.parent)
    monkeypatch.setenv("HOME", str(source.parent))
    for value in ("executorch", "~/executorch", str(source)):
        found = find_checkout(None, {SOURCE_VARIABLE: value}, workspace, "1.5.1")
        assert found is not None
        assert found.path == str(source)


def test_a_named_folder_that_is_wrong_is_not_passed_over(
    tmp_path: Path, workspace: Workspace
) -> None:
    _copy(clone_folder(workspace, "1.5.1"))
    with pytest.raises(BuildError, match=f"{SOURCE_VARIABLE} names .*absent"):
        find_checkout(None, {SOURCE_VARIABLE: str(tmp_path / "absent")}, workspace, "1.5.1")


# --- what is wrong with it


@pytest.mark.parametrize(
    "name", ["version.txt", "CMakeLists.txt", "tools/cmake/preset/default.cmake"]
)
def test_a_folder_without_its_files_is_not_a_checkout(source: Path, name: str) -> None:
    (source / name).unlink()
    with pytest.raises(BuildError) as raised:
        examine(source, "recipe")
    assert str(source) in raised.value.message
    assert name in raised.value.message


def test_supported_releases(source: Path) -> None:
    for version in ("1.3.0", "1.4.1", "1.5.0a0", "1.5.1"):
        (source / "version.txt").write_text(f"{version}\n")
        assert examine(source, "recipe").version == version
    for version in ("1.2.0", "0.7.0", "1.6.0", "1.10.0", "2.0.0a0", "main", ""):
        (source / "version.txt").write_text(f"{version}\n")
        with pytest.raises(BuildError, match=rf"ExecuTorch {version}; .*1\.3 to 1\.5"):
            examine(source, "environment")


_CLONE = (
    "git clone --depth 1 --branch v1.5.1 https://github.com/pytorch/executorch executorch-1.5.1\n"
)


def test_what_names_the_wrong_checkout_is_what_the_remedy_changes(tmp_path: Path) -> None:
    """The recipe comes before the environment, so that naming another one there is in vain."""
    absent = tmp_path / "v 1.5.1" / "executorch"
    remedies: dict[Origin, str] = {}
    for origin in _ORIGINS:
        with pytest.raises(BuildError, match="which is not a folder") as raised:
            examine(absent, origin)
        remedies[origin] = raised.value.remedy or ""
    assert remedies["recipe"].startswith(_CLONE)
    assert "--set runtime.source=executorch-1.5.1" in remedies["recipe"]
    assert SOURCE_VARIABLE not in remedies["recipe"]
    assert remedies["environment"].startswith(
        f'{_CLONE}export {SOURCE_VARIABLE}="$PWD/executorch-1.5.1"\n'
    )
    assert remedies["environment"].endswith(f"unset {SOURCE_VARIABLE}")
    assert remedies["cache"].endswith(f"rm -r '{absent.parent}'")


@pytest.mark.parametrize(
    ("exported_with", "cloned"),
    [
        ("1.4.1", "1.4.1"),
        ("1.4.1+cpu", "1.4.1"),
        # Without a tag, not served, not known.
        ("1.5.0a0+1234", "1.5.1"),
        ("1.6.0", "1.5.1"),
        (None, "1.5.1"),
    ],
)
def test_the_remedy_clones_a_release_that_is_there(
    exported_with: str | None, cloned: str, tmp_path: Path
) -> None:
    remedy = checkout_remedy("cache" if cloned == "1.4.1" else "recipe", exported_with, tmp_path)
    assert f"--branch v{cloned} " in remedy
    # Another release than the one that a run clones by itself has to be named.
    assert ("let a run clone" in remedy) == (cloned == "1.5.1")


def test_paths_in_remedies_are_one_word(tmp_path: Path) -> None:
    folder = tmp_path / "my sources" / "executorch"
    assert f"rm -r '{folder.parent}'" in checkout_remedy("cache", "1.5.1", folder)
    source = _copy(folder)
    (source / ".git").mkdir()
    checkout = Checkout(path=str(source), version="1.5.1", revision="1", origin="recipe")
    assert submodule_remedy(checkout, ["a"]).startswith(f"git -C '{source}' submodule update ")


# --- its revision


def test_the_revision_follows_the_files(source: Path) -> None:
    before = revision(source)
    assert before == revision(source)
    file = source / "sources" / "plain.cpp"
    file.write_text(file.read_text() + "// changed\n")
    changed = revision(source)
    assert changed != before
    (source / "sources" / "new.cpp").write_text("")
    assert revision(source) not in (before, changed)
    before = revision(source)
    os.utime(source / "CMakeLists.txt", ns=(1, 1))
    assert revision(source) != before


def test_what_a_build_leaves_in_the_tree_is_no_change(source: Path) -> None:
    before = revision(source)
    for name in (
        "third-party/flatcc/lib/libflatccrt.a",
        "third-party/flatcc/bin/flatcc",
        "codegen/__pycache__/gen.cpython-312.pyc",
    ):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("made by the build")
    assert revision(source) == before


def test_the_fingerprint_of_sources_is_theirs_wherever_they_lie() -> None:
    base = Checkout(path="/a/executorch", version="1.4.1", revision="1", origin="recipe")

    def fingerprint(**changes: str) -> str:
        return Libraries(checkout=base.model_copy(update=changes)).fingerprint

    assert fingerprint(path="/b/executorch", origin="cache") == fingerprint()
    assert fingerprint(revision="2") != fingerprint()
    assert fingerprint(version="1.4.0") != fingerprint()


# --- submodules

_XNNPACK = "backends/xnnpack/third-party"


@pytest.mark.parametrize(
    ("option", "submodule"),
    [
        ("EXECUTORCH_BUILD_XNNPACK", f"{_XNNPACK}/XNNPACK"),
        ("EXECUTORCH_BUILD_PTHREADPOOL", f"{_XNNPACK}/pthreadpool"),
        ("EXECUTORCH_BUILD_CPUINFO", f"{_XNNPACK}/cpuinfo"),
        ("EXECUTORCH_BUILD_KERNELS_OPTIMIZED", "kernels/optimized/third-party/eigen"),
        ("EXECUTORCH_BUILD_KERNELS_LLM", "third-party/ao"),
        ("EXECUTORCH_BUILD_VULKAN", "backends/vulkan/third-party/volk"),
    ],
)
def test_an_option_brings_its_submodules(option: str, submodule: str) -> None:
    assert submodule in needed_submodules({option: "ON"})
    assert submodule not in needed_submodules({option: "OFF"})
    assert submodule not in needed_submodules({})


def test_submodules_are_unique_and_apple_needs_another() -> None:
    options = ("EXECUTORCH_BUILD_KERNELS_LLM", "EXECUTORCH_BUILD_KERNELS_TORCHAO")
    needed = needed_submodules(dict.fromkeys(options, "ON"), apple=True)
    assert needed.count("third-party/ao") == 1
    assert needed[-1] == "third-party/ios-cmake"


def _empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def test_empty_and_absent_folders_are_missing_submodules(source: Path) -> None:
    needed = needed_submodules({"EXECUTORCH_BUILD_XNNPACK": "ON"})
    assert missing_submodules(source, needed) == ()
    _empty(source / "third-party/json")
    shutil.rmtree(source / _XNNPACK / "XNNPACK")
    # What git leaves in the folder of a submodule that failed to be fetched.
    _empty(source / "third-party/gflags")
    (source / "third-party/gflags/.git").write_text("gitdir: ../../.git/modules/gflags\n")
    assert missing_submodules(source, needed) == (
        "third-party/gflags",
        "third-party/json",
        f"{_XNNPACK}/XNNPACK",
    )


def test_a_submodule_that_the_release_does_not_have_is_not_missing(source: Path) -> None:
    (source / ".gitmodules").write_text(
        '[submodule "third-party/json"]\n\tpath = third-party/json\n\turl = ../json\n'
    )
    _empty(source / "third-party/json")
    _empty(source / "third-party/gflags")
    needed = ("third-party/gflags", "third-party/json")
    assert missing_submodules(source, needed) == ("third-party/json",)


def test_missing_submodules_are_refused_with_the_command_that_brings_just_them(
    source: Path,
) -> None:
    names = ("third-party/gflags", f"{_XNNPACK}/XNNPACK")
    for name in names:
        _empty(source / name)
    checkout = examine(source, "recipe")
    with pytest.raises(BuildError, match="submodules") as raised:
        require_complete(checkout, needed_submodules({"EXECUTORCH_BUILD_XNNPACK": "ON"}))
    assert raised.value.message.endswith(": " + ", ".join(names))
    # git knows nothing of what was unpacked there; it might change a repository around it.
    remedy = raised.value.remedy or ""
    assert remedy.startswith(f"{source} was not cloned with git, so unpack each of them")
    assert "git clone --depth 1 --branch v1.4.1 " in remedy
    assert "submodule update" not in remedy
    (source / ".git").mkdir()
    assert submodule_remedy(checkout, names) == (
        f"git -C {source} submodule update --init --recursive --depth 1 -- {' '.join(names)}"
    )


# --- the program that it is to read


def test_another_minor_release_is_a_note(source: Path) -> None:
    checkout = examine(source, "recipe")
    [note] = require_readable(checkout, "1.5.1")
    assert "1.5.1" in note
    assert "1.4.1" in note
    assert require_readable(checkout, "1.4.0") == require_readable(checkout, None) == ()


def test_another_schema_is_refused(source: Path) -> None:
    (source / "schema/program.fbs").write_text('namespace e;\nfile_identifier "ET13";\n')
    with pytest.raises(BuildError, match=r"ET12.*ET13") as raised:
        require_readable(examine(source, "recipe"), "1.5.1")
    assert raised.value.exit_code == 4
    assert "git clone --depth 1 --branch v1.5.1" in (raised.value.remedy or "")
