"""Vulkan: the GPU of an Android phone or of a Linux machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from etdeploy.backends.base import Backend
from etdeploy.backends.values import Workstation
from etdeploy.core.blocker import Blocker
from etdeploy.core.finding import Finding


@dataclass(frozen=True, kw_only=True)
class Vulkan(Backend):
    """Vulkan, whose shaders are compiled with the runtime."""

    def build_blockers(self, station: Workstation) -> Iterator[Blocker]:
        """No shader compiler, or one that is too old."""
        from etdeploy.backends.glslc import find_glslc

        found = find_glslc(station.environ)
        if isinstance(found, Blocker):
            yield found

    def findings(self, station: Workstation) -> Iterator[Finding]:
        """The shader compiler."""
        from etdeploy.backends.glslc import find_glslc

        found = find_glslc(station.environ)
        yield Finding(
            name="glslc",
            state="optional" if isinstance(found, Blocker) else "ok",
            found=None if isinstance(found, Blocker) else found.version or str(found.path),
            needed_for="building the Vulkan backend",
            remedy=f"{found.why}\n{found.remedy}" if isinstance(found, Blocker) else None,
        )


VULKAN = Vulkan(
    name="vulkan",
    delegate_id="VulkanBackend",
    quantizations=("none", "fp16"),
    lowering="etdeploy.export.worker.backends.vulkan",
    needs="ExecuTorch's Vulkan libraries, which are not in any wheel, and glslc",
    get="The provider `source` builds them (`auto` uses it); glslc is in the Vulkan SDK\n"
    "and in Debian's package glslc.",
    component="backend_vulkan",
    switch="EXECUTORCH_BUILD_VULKAN",
    cmake_target="vulkan_backend",
    submodules=(
        "backends/vulkan/third-party/Vulkan-Headers",
        "backends/vulkan/third-party/VulkanMemoryAllocator",
        "backends/vulkan/third-party/volk",
    ),
    systems=("android", "linux"),
    loads=True,
)
