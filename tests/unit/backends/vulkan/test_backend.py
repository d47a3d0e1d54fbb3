"""The Vulkan backend: the shader compiler of a build."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.backends.values import Workstation
from etdeploy.backends.vulkan import VULKAN
from etdeploy.core.errors import BuildError
from tests.unit.backends.vulkan.test_glslc import NEW, OLD, glslc


def _station(folder: Path) -> Workstation:
    return Workstation({"PATH": str(folder)}, folder)


def test_cmake_gets_the_shader_compiler_that_was_tried(tmp_path: Path) -> None:
    path = glslc(tmp_path, NEW)
    station = _station(tmp_path)
    assert not list(VULKAN.build_blockers(station, {}))
    assert VULKAN.definitions(station, {}) == {"GLSLC_PATH": str(path)}


def test_the_recipes_own_shader_compiler_is_the_one_that_is_tried(tmp_path: Path) -> None:
    station = _station(glslc(tmp_path / "new", NEW).parent)
    options = {"GLSLC_PATH": str(glslc(tmp_path / "old", OLD))}
    (blocker,) = VULKAN.build_blockers(station, options)
    assert str(tmp_path / "old") in blocker.why
    with pytest.raises(BuildError, match="GL_KHR_cooperative_matrix"):
        VULKAN.definitions(station, options)
