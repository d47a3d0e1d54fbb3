"""What a failed run on Vulkan means.

When the backend is not available, the runner asks Vulkan for the reason (templates/runner), since
the backend keeps it to itself. Other errors are exceptions of the backend, which the runner shows.
"""

from __future__ import annotations

import re

from etdeploy.backends.causes import NEW_FILE, Cause, Word, first_cause
from etdeploy.backends.schemes import OTHER_BACKEND
from etdeploy.core.text.commands import system_command

_UNAVAILABLE = re.compile(r"backend VulkanBackend is linked, but not available(?:: (?P<why>.+))?")
# Mesa's drivers for GPUs that a machine does not have report a failed initialisation.
_MEANINGS = (
    (r"libvulkan\.so", "the system has no Vulkan library"),
    (r"VK_ERROR_INCOMPATIBLE_DRIVER", "there is no Vulkan driver"),
    (r"vkEnumerate.*VK_ERROR_INITIALIZATION_FAILED|no driver", "no Vulkan driver finds its GPU"),
)
_OTHER = (OTHER_BACKEND, f"Export the model again for another backend, {NEW_FILE}.")
_SMALLER = (
    "Close other apps that use the GPU, or export 16-bit floats: --set export.quantization=fp16",
    f"Close other apps that use the GPU, or export the model in 16-bit floats, {NEW_FILE}.",
)
# Exceptions of backends/vulkan/runtime/vk_api in 1.3 to 1.5, and an assertion of VulkanBackend.cpp.
_WORDS: tuple[Word, ...] = (
    (r"Shader (?P<name>\S+) not compatible with device\. Missing support for extension or physical "
     r"device feature: (?P<what>.+)", Cause(
        "the GPU or its driver has no {what}, which the shader {name} needs", *_OTHER)),
    (r"VulkanBackend.*build_graph\(\).*Missing operator: (?P<name>\S+)", Cause(
        "ExecuTorch's Vulkan backend has no operator {name}, which the program has given to it",
        *_OTHER)),
    (r"returned VK_ERROR_OUT_OF_DEVICE_MEMORY", Cause(
        "the GPU has not enough memory for the model", *_SMALLER)),
    (r"returned VK_ERROR_DEVICE_LOST", Cause(
        "the GPU's driver gave up, usually because one piece of work took too long", *_OTHER)),
    (r"Exception raised from \S+ at \S*vulkan\S+:\d+: (?P<what>.+)", Cause(
        "ExecuTorch's Vulkan backend failed: {what}", *_OTHER)),
)  # fmt: skip


def vulkan_cause(text: str, device: str) -> Cause | None:
    """What Vulkan's lines in a runner's log mean; None where there are none.

    Args:
        text: The log.
        device: As `--device` takes it; what helps depends on its kind.
    """
    found = _UNAVAILABLE.search(text)
    if not found:
        return first_cause(text, _WORDS)
    cause = "VulkanBackend is in the runner, but not available on this device"
    why = f": {explained(found['why'])}" if found["why"] else ""
    remedy = driver_remedy(device.partition(":")[0])
    return Cause(f"{cause}{why}", *(f"{remedy}\n{other}" for other in _OTHER))


def explained(why: str) -> str:
    """What it means that Vulkan does not start, with its own words in parentheses."""
    meaning = next((meaning for words, meaning in _MEANINGS if re.search(words, why)), None)
    return f"{meaning} ({why})" if meaning else why


def driver_remedy(kind: str) -> str:
    """How a kind of device gets a driver."""
    if kind == "android":
        return "Use a phone whose GPU has a Vulkan driver."
    if kind == "qemu":
        return "Use a device with a GPU: an emulated one has none."
    return (
        "Install the driver of the GPU's maker, or Mesa's, which also runs without a GPU:\n"
        f"{system_command('mesa-vulkan-drivers')}\n"
        "If VK_ICD_FILENAMES or VK_DRIVER_FILES is set, Vulkan sees no other drivers than it names."
    )
