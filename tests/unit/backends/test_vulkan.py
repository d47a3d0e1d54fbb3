"""Vulkan: the shader compiler of a build, drivers on this machine, and lines of a runner's log."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from etdeploy.backends.values import Destination, Partitions, Workstation
from etdeploy.backends.vulkan import VULKAN, Glslc, find_glslc, glslc_version, vulkan_problem
from etdeploy.core.errors import Blocker, BuildError
from etdeploy.targets.platforms import find_target
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


def test_the_sdk_goes_before_path(tmp_path: Path) -> None:
    path = glslc(tmp_path / "sdk/bin", NEW)
    old = glslc(tmp_path / "bin", OLD)
    environ = {"PATH": str(old.parent), "VULKAN_SDK": str(tmp_path / "sdk")}
    assert find_glslc(environ) == Glslc(path, "2025.3")


def test_a_named_one_that_is_no_program_is_told(tmp_path: Path) -> None:
    environ = {"PATH": str(glslc(tmp_path, NEW).parent)}
    result = find_glslc(environ, str(tmp_path / "none"))
    assert isinstance(result, Blocker)
    assert f"runtime.cmake.GLSLC_PATH names {tmp_path}/none," in result.why


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
    assert not lacks(blocker.why, f"{tmp_path}/old/glslc (2023.2)", "GL_EXT_integer_dot_product")
    with pytest.raises(BuildError, match="GL_KHR_cooperative_matrix"):
        VULKAN.definitions(station, options)


_HOST = Destination(find_target("linux-x86_64"), "host", reports=True, is_here=True)
_NO_DRIVER = "echo 'vkCreateInstance gives VK_ERROR_INCOMPATIBLE_DRIVER' >&2; exit 1"


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    vulkan_problem.cache_clear()
    yield
    vulkan_problem.cache_clear()


def _answers(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Stands in for the Python that asks Vulkan."""
    python = folder / "python"
    python.write_text(f"#!/bin/sh\n{code}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))


def test_no_driver_is_told_before_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _answers(tmp_path, monkeypatch, _NO_DRIVER)
    blocker = VULKAN.device_blocker("auto", _HOST)
    assert blocker is not None
    assert not lacks(blocker.why, "no Vulkan driver", "VK_ERROR_INCOMPATIBLE_DRIVER)")
    assert "mesa-vulkan-drivers" in blocker.remedy
    assert list(VULKAN.program_blockers(Partitions(), _HOST)) == [blocker]
    (of_file,) = VULKAN.program_blockers(Partitions(finished=True), _HOST)
    assert "--set export" in blocker.remedy
    assert "--set export" not in of_file.remedy


@pytest.mark.parametrize("code", ["exit 0", "echo 'a driver crashed' >&2; exit 139"])
def test_a_device_and_a_failed_question_stop_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    _answers(tmp_path, monkeypatch, code)
    assert VULKAN.device_blocker("auto", _HOST) is None


@pytest.mark.parametrize(
    "where",
    [
        Destination(find_target("linux-x86_64"), "linux-x86_64"),
        Destination(find_target("linux-aarch64"), "qemu", reports=True),
        Destination(find_target("android-arm64"), "android:R5CT", reports=True),
    ],
)
def test_other_devices_are_not_judged_by_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: Destination
) -> None:
    _answers(tmp_path, monkeypatch, _NO_DRIVER)
    assert VULKAN.device_blocker("auto", where) is None
    assert not list(VULKAN.program_blockers(Partitions(), where))


_LOGGED = "E 00:00:00.005769 executorch:method.cpp:90] Backend VulkanBackend is not available.\n"
_SAID = "etdeploy-runner: backend VulkanBackend is linked, but not available"
_ENDED = "etdeploy-runner: error: method forward cannot be loaded: Error::NotFound\n"
_MISSING = "libvulkan.so.1: cannot open shared object file: No such file or directory"


@pytest.mark.parametrize(
    ("why", "meaning"),
    [
        # VK_ICD_FILENAMES names a file that does not exist.
        ("vkCreateInstance gives VK_ERROR_INCOMPATIBLE_DRIVER", "there is no Vulkan driver"),
        # Mesa's driver for AMD's GPUs, on a machine without a GPU.
        ("vkEnumeratePhysicalDevices gives VK_ERROR_INITIALIZATION_FAILED", "its GPU"),
        (_MISSING, "no Vulkan library"),
        ("no device has what ExecuTorch requires", ""),
    ],
)
def test_the_reason_of_the_runner_is_explained(why: str, meaning: str) -> None:
    found = VULKAN.failure(f"{_LOGGED}{_SAID}: {why}\n{_ENDED}", "host")
    assert found is not None
    assert found.cause.endswith(f"{meaning} ({why})" if meaning else f": {why}")


def test_no_reason_is_invented() -> None:
    found = VULKAN.failure(f"{_LOGGED}{_SAID}\n{_ENDED}", "host")
    assert found is not None
    assert ":" not in found.cause
    assert VULKAN.failure(_SAID.replace("Vulkan", "Openvino"), "host") is None


@pytest.mark.parametrize(
    ("device", "helps"),
    [
        ("host", "install mesa-vulkan-drivers"),
        ("android:R5CT", "a phone whose GPU"),
        ("qemu", "a device with a GPU"),
    ],
)
def test_the_remedy_depends_on_the_kind_of_device(device: str, helps: str) -> None:
    found = VULKAN.failure(f"{_SAID}\n", device)
    assert found is not None
    for finished in (True, False):
        assert helps in found.remedy_for(finished=finished)
        assert ("--set export.backend" in found.remedy_for(finished=finished)) is not finished
    assert "clean runners" not in found.remedy


@pytest.mark.parametrize(
    ("line", "facts"),
    [
        (
            "Shader conv2d_q8 not compatible with device. Missing support for extension or "
            "physical device feature: VK_KHR_8bit_storage",
            ("VK_KHR_8bit_storage", "conv2d_q8"),
        ),
        (
            "F 00:00:00.115356 executorch:VulkanBackend.cpp:480] In function build_graph(), assert "
            "failed (VK_HAS_OP(op_name)): Missing operator: quantized_decomposed."
            "dequantize_per_channel.default",
            ("quantized_decomposed.dequantize_per_channel.default",),
        ),
        (
            "Exception raised from allocate at executorch/backends/vulkan/runtime/vk_api/memory/"
            "Allocation.cpp:31: vmaAllocateMemory(...) returned VK_ERROR_OUT_OF_DEVICE_MEMORY",
            ("memory for the model",),
        ),
        (
            "Exception raised from operator() at executorch/backends/vulkan/runtime/graph/ops/"
            "OperatorRegistry.cpp:22: (has_op(name)) is false! no operator is registered",
            ("(has_op(name)) is false! no operator is registered",),
        ),
    ],
)
def test_exceptions_of_the_backend_are_explained(line: str, facts: tuple[str, ...]) -> None:
    found = VULKAN.failure(f"etdeploy-runner: error: {line}\n", "android:R5CT")
    assert found is not None
    assert not [fact for fact in facts if fact not in found.cause]
