"""Vulkan's lines in a runner's log. All texts but the shader's were seen on a machine."""

from __future__ import annotations

import pytest

from etdeploy.backends.vulkan import VULKAN

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


def test_lines_of_other_backends_are_not_explained() -> None:
    assert VULKAN.failure(_SAID.replace("Vulkan", "Openvino"), "host") is None
