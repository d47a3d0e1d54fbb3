"""Vulkan's lines in a runner's log. All texts but the shader's were seen on a machine."""

from __future__ import annotations

import pytest

from etdeploy.backends.vulkan import vulkan_cause

_LOGGED = "E 00:00:00.005769 executorch:method.cpp:90] Backend VulkanBackend is not available.\n"
_SAID = "etdeploy-runner: backend VulkanBackend is linked, but not available"
_ENDED = "etdeploy-runner: error: method forward cannot be loaded: Error::NotFound\n"
_MISSING = "libvulkan.so.1: cannot open shared object file: No such file or directory"


@pytest.mark.parametrize(
    ("why", "meaning"),
    [
        # VK_ICD_FILENAMES names a file that does not exist.
        (
            "vkCreateInstance gives VK_ERROR_INCOMPATIBLE_DRIVER",
            "there is no Vulkan driver (vkCreateInstance gives VK_ERROR_INCOMPATIBLE_DRIVER)",
        ),
        # Mesa's driver for AMD's GPUs, on a machine without a GPU.
        (
            "vkEnumeratePhysicalDevices gives VK_ERROR_INITIALIZATION_FAILED",
            "no Vulkan driver finds its GPU (vkEnumeratePhysicalDevices gives "
            "VK_ERROR_INITIALIZATION_FAILED)",
        ),
        (_MISSING, f"the system has no Vulkan library ({_MISSING})"),
        ("no device has what ExecuTorch requires", "no device has what ExecuTorch requires"),
    ],
)
def test_the_runner_says_what_keeps_vulkan_from_starting(why: str, meaning: str) -> None:
    found = vulkan_cause(f"{_LOGGED}{_SAID}: {why}\n{_ENDED}", "host")
    assert found is not None
    assert found.cause == (
        f"VulkanBackend is in the runner, but not available on this device: {meaning}"
    )


def test_no_reason_is_invented() -> None:
    found = vulkan_cause(f"{_LOGGED}{_SAID}\n{_ENDED}", "host")
    assert found is not None
    assert found.cause.endswith("not available on this device")


@pytest.mark.parametrize(
    ("device", "helps"),
    [
        ("host", "install mesa-vulkan-drivers"),
        ("android:R5CT", "Use a phone whose GPU has a Vulkan driver."),
        ("qemu", "Use a device with a GPU"),
    ],
)
def test_what_helps_depends_on_the_kind_of_device(device: str, helps: str) -> None:
    found = vulkan_cause(f"{_SAID}\n", device)
    assert found is not None
    for finished in (True, False):
        assert helps in found.remedy_for(finished=finished)
        assert ("--set export.backend" in found.remedy_for(finished=finished)) is not finished
    assert "clean runners" not in found.remedy


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (
            "Shader conv2d_q8 not compatible with device. Missing support for extension or "
            "physical device feature: VK_KHR_8bit_storage",
            "the GPU or its driver has no VK_KHR_8bit_storage, which the shader conv2d_q8 needs",
        ),
        (
            "F 00:00:00.115356 executorch:VulkanBackend.cpp:480] In function build_graph(), assert "
            "failed (VK_HAS_OP(op_name)): Missing operator: quantized_decomposed."
            "dequantize_per_channel.default",
            "ExecuTorch's Vulkan backend has no operator quantized_decomposed."
            "dequantize_per_channel.default, which the program has given to it",
        ),
        (
            "Exception raised from allocate at executorch/backends/vulkan/runtime/vk_api/memory/"
            "Allocation.cpp:31: vmaAllocateMemory(...) returned VK_ERROR_OUT_OF_DEVICE_MEMORY",
            "the GPU has not enough memory for the model",
        ),
        (
            "Exception raised from operator() at executorch/backends/vulkan/runtime/graph/ops/"
            "OperatorRegistry.cpp:22: (has_op(name)) is false! no operator is registered",
            "ExecuTorch's Vulkan backend failed: (has_op(name)) is false! no operator is "
            "registered",
        ),
    ],
)
def test_exceptions_of_the_backend_are_told(line: str, cause: str) -> None:
    found = vulkan_cause(f"etdeploy-runner: error: {line}\n", "android:R5CT")
    assert found is not None
    assert found.cause == cause


def test_other_backends_are_left_alone() -> None:
    assert vulkan_cause(_SAID.replace("Vulkan", "Openvino"), "host") is None
