"""glslc is taken when it compiles what ExecuTorch's shaders need, whatever its version says."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.backends.vulkan import Glslc, find_glslc, glslc_version
from etdeploy.core.errors import Blocker
from tests.support.facts import lacks

# Like glslc, these write a file for each shader that they can compile, and go on after an error.
_COMPILES = """
case "$*" in --version) printf 'shaderc {version}\\nspirv-tools v2025.3\\n'; exit ;; esac
for f; do case $f in *.comp)
  if grep -qE '{lacks}' "$f"; then echo "$f:2: error: '#extension' : not supported" >&2; bad=1
  else : > "$f.spv"; fi ;;
esac; done
exit ${{bad:-0}}
"""
NEW = _COMPILES.format(version="v2025.3 v2025.3", lacks="GL_NONE")
# What glslc 2023.2 of Debian 12 lacks.
OLD = _COMPILES.format(
    version="2023.2-1", lacks="GL_EXT_integer_dot_product|GL_KHR_cooperative_matrix"
)


def glslc(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "glslc"
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)
    return path


def test_none_is_told_with_where_to_get_it(tmp_path: Path) -> None:
    result = find_glslc({"PATH": str(tmp_path)})
    assert isinstance(result, Blocker)
    assert "not installed" in result.why
    assert "or the Vulkan SDK" in result.remedy


def test_a_new_one_is_taken(tmp_path: Path) -> None:
    path = glslc(tmp_path / "bin", NEW)
    result = find_glslc({"PATH": f"{tmp_path}::{path.parent}"})
    assert result == Glslc(path, "2025.3")


def test_the_sdk_goes_before_path(tmp_path: Path) -> None:
    path = glslc(tmp_path / "sdk/bin", NEW)
    old = glslc(tmp_path / "bin", OLD)
    environ = {"PATH": str(old.parent), "VULKAN_SDK": str(tmp_path / "sdk")}
    assert find_glslc(environ) == Glslc(path, "2025.3")


def test_the_named_one_goes_before_all(tmp_path: Path) -> None:
    path = glslc(tmp_path / "own", NEW)
    environ = {"PATH": str(glslc(tmp_path / "bin", OLD).parent)}
    assert find_glslc(environ, str(path)) == Glslc(path, "2025.3")


def test_a_named_one_that_is_no_program_is_told(tmp_path: Path) -> None:
    environ = {"PATH": str(glslc(tmp_path, NEW).parent)}
    result = find_glslc(environ, str(tmp_path / "none"))
    assert isinstance(result, Blocker)
    assert f"runtime.cmake.GLSLC_PATH names {tmp_path}/none," in result.why


def test_an_old_one_is_refused_with_its_version_and_what_it_lacks(tmp_path: Path) -> None:
    path = glslc(tmp_path, OLD)
    result = find_glslc({"PATH": str(tmp_path)})
    assert isinstance(result, Blocker)
    assert not lacks(
        result.why, f"{path} (2023.2)", "GL_EXT_integer_dot_product", "GL_KHR_cooperative_matrix"
    )


def test_the_one_of_the_ndk_is_called_by_its_name(tmp_path: Path) -> None:
    path = glslc(tmp_path / "ndk/shader-tools/linux-x86_64", OLD)
    result = find_glslc({"PATH": str(path.parent)})
    assert isinstance(result, Blocker)
    assert not lacks(result.why, "(2023.2 ", "Android NDK)")


def test_one_that_cannot_be_started_is_refused(tmp_path: Path) -> None:
    path = glslc(tmp_path, "")
    path.write_bytes(b"\x7fELF of another machine")
    result = find_glslc({"PATH": str(tmp_path)})
    assert isinstance(result, Blocker)
    assert not lacks(result.why, f"{path} ", "unknown version", ": Exec format error")


def test_one_that_compiles_nothing_is_quoted(tmp_path: Path) -> None:
    path = glslc(tmp_path, "echo 'libshaderc.so.1: cannot open shared object file' >&2; exit 127")
    result = find_glslc({"PATH": str(tmp_path)})
    assert isinstance(result, Blocker)
    assert not lacks(result.why, f"{path} ", "unknown version", ": libshaderc.so.1")


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("shaderc 2023.2-1\nspirv-tools 2022.4+1.3.236.0-1\n", "2023.2"),
        ("shaderc v2026.1 v2026.1\n", "2026.1"),
        ("shaderc v2022.3-dev unknown hash, 2024-01-01\n", "2022.3"),
        ("glslang 11.1\n", None),
    ],
)
def test_versions_are_read(said: str, version: str | None) -> None:
    assert glslc_version(said) == version
