"""Vulkan: the GPU of an Android phone or of a Linux machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from etdeploy.backends.base import Backend
from etdeploy.core.blocker import Blocker, require

if TYPE_CHECKING:
    from etdeploy.backends.causes import Cause
    from etdeploy.backends.values import Destination, Partitions, Workstation
    from etdeploy.backends.vulkan.glslc import Glslc
    from etdeploy.core.finding import Finding


class Vulkan(Backend):
    """Vulkan, whose shaders are compiled with the runtime."""

    def build_blockers(
        self, station: Workstation, options: Mapping[str, str | None]
    ) -> Iterator[Blocker]:
        """No shader compiler, or one that is too old."""
        found = _glslc(station, options)
        if isinstance(found, Blocker):
            yield found

    def definitions(
        self, station: Workstation, options: Mapping[str, str | None]
    ) -> Mapping[str, str]:
        """The shader compiler that was tried: cmake looks by itself, and could find another."""
        from etdeploy.backends.vulkan.glslc import OPTION

        return {OPTION: str(require(_glslc(station, options)).path)}

    def device_blocker(self, wanted_soc: str, where: Destination) -> Blocker | None:
        """No driver on this machine; others say so when they run."""
        from etdeploy.backends.vulkan.here import driver_blocker

        return driver_blocker() if _is_here(where) else None

    def program_blockers(self, partitions: Partitions, where: Destination) -> Iterator[Blocker]:
        """No driver on this machine."""
        from etdeploy.backends.vulkan.here import driver_blocker

        blocker = driver_blocker(finished=partitions.finished) if _is_here(where) else None
        if blocker:
            yield blocker

    def failure(self, text: str, device: str) -> Cause | None:
        """What the runner and ExecuTorch's backend say of Vulkan on the device."""
        from etdeploy.backends.vulkan.words import vulkan_cause

        return vulkan_cause(text, device)

    def findings(self, station: Workstation) -> Iterator[Finding]:
        """The shader compiler."""
        from etdeploy.backends.vulkan.glslc import find_glslc
        from etdeploy.core.finding import Finding

        found = find_glslc(station.environ)
        yield Finding(
            name="glslc",
            state="optional" if isinstance(found, Blocker) else "ok",
            found=None if isinstance(found, Blocker) else found.version or str(found.path),
            needed_for="building the Vulkan backend",
            remedy=f"{found.why}\n{found.remedy}" if isinstance(found, Blocker) else None,
        )


def _glslc(station: Workstation, options: Mapping[str, str | None]) -> Glslc | Blocker:
    from etdeploy.backends.vulkan.glslc import OPTION, find_glslc

    return find_glslc(station.environ, options.get(OPTION))


def _is_here(where: Destination) -> bool:
    return where.is_here and where.target.system == "linux"


VULKAN = Vulkan(
    name="vulkan",
    delegate_id="VulkanBackend",
    quantizations=("none", "fp16", "int8_static", "8da4w"),
    lowering="etdeploy.export.worker.backends.vulkan",
    needs="ExecuTorch's Vulkan libraries, which are not in any wheel, and glslc",
    get="The provider `source` builds them (`auto` uses it); glslc is in the Vulkan SDK\n"
    "and in Debian's package glslc, from version 13 on.",
    component="backend_vulkan",
    switch="EXECUTORCH_BUILD_VULKAN",
    cmake_target="vulkan_backend",
    submodules=(
        "backends/vulkan/third-party/Vulkan-Headers",
        "backends/vulkan/third-party/VulkanMemoryAllocator",
        "backends/vulkan/third-party/volk",
    ),
    aar="executorch-android-vulkan",
    systems=("android", "linux"),
    loads=True,
    # On Linux with Mesa's software driver, not on a phone.
    tried=True,
)
