"""Vulkan: the GPU of an Android phone or of a Linux machine."""

from __future__ import annotations

from etdeploy.backends.base import Backend

VULKAN = Backend(
    name="vulkan",
    delegate_id="VulkanBackend",
    quantizations=("none", "fp16"),
    lowering="etdeploy.export.worker.backends.vulkan",
    needs="ExecuTorch's Vulkan libraries, which are not in any wheel, and glslc",
    get="The provider `source` builds them (`auto` uses it); glslc is in the Vulkan SDK\n"
    "and in Debian's package glslc.",
    component="backend_vulkan",
    switch="EXECUTORCH_BUILD_VULKAN",
    systems=("android", "linux"),
    loads=True,
)
