"""glslc is taken when it compiles what ExecuTorch's shaders need, whatever its version says."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.backends.glslc import Glslc, find_glslc, glslc_definitions, glslc_version
from etdeploy.core.blocker import Blocker

# Refuses the extension unless it is new, as glslc does.
_NEW = """
case "$*" in
  --version) printf 'shaderc v2025.3 v2025.3\\nspirv-tools v2025.3\\n' ;;
  *) for f; do case $f in *.comp) exec grep -q GL_EXT_integer_dot_product "$f" ;; esac; done
     exit 2 ;;
esac
"""
_OLD = """
case "$*" in
  --version) echo 'shaderc 2023.2-1' ;;
  *) echo "2: error: '#extension' : extension not supported" >&2; exit 1 ;;
esac
"""


def glslc(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "glslc"
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)
    return path


def test_none_is_told_with_where_to_get_it(tmp_path: Path) -> None:
    result = find_glslc({"PATH": str(tmp_path)})
    assert isinstance(result, Blocker)
    assert "Vulkan SDK 1.4.341.1" in result.remedy


def test_a_new_one_is_taken(tmp_path: Path) -> None:
    path = glslc(tmp_path / "bin", _NEW)
    result = find_glslc({"PATH": f"{tmp_path}::{path.parent}"})
    assert result == Glslc(path, "2025.3")
    (definition,) = glslc_definitions(result)
    assert (definition.name, definition.value) == ("GLSLC_PATH", str(path))


def test_the_sdk_goes_before_path(tmp_path: Path) -> None:
    path = glslc(tmp_path / "sdk/bin", _NEW)
    old = glslc(tmp_path / "bin", _OLD)
    environ = {"PATH": str(old.parent), "VULKAN_SDK": str(tmp_path / "sdk")}
    assert find_glslc(environ) == Glslc(path, "2025.3")


def test_an_old_one_is_refused_with_its_version(tmp_path: Path) -> None:
    path = glslc(tmp_path, _OLD)
    result = find_glslc({"PATH": str(tmp_path)})
    assert isinstance(result, Blocker)
    assert result.why.startswith(f"{path} 2023.2 is too old: it does not compile GL_EXT_integer")


def test_the_one_of_the_ndk_is_called_by_its_name(tmp_path: Path) -> None:
    path = glslc(tmp_path / "ndk/shader-tools/linux-x86_64", _OLD)
    result = find_glslc({"PATH": str(path.parent)})
    assert isinstance(result, Blocker)
    assert "it comes from the Android NDK" in result.why


def test_one_that_cannot_be_started_is_refused(tmp_path: Path) -> None:
    path = glslc(tmp_path, "")
    path.write_bytes(b"\x7fELF of another machine")
    result = find_glslc({"PATH": str(tmp_path)})
    assert isinstance(result, Blocker)
    assert "(of unknown version)" in result.why


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
