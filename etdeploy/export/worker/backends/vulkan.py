"""Lowering to Vulkan."""

from __future__ import annotations

from typing import Any

from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.backends.base import Lowering


class VulkanLowering(Lowering):
    """ExecuTorch's partitioner for Vulkan; 16-bit floats are an option of it."""

    def partitioners(self, spec: ExportSpec) -> list[Any]:
        """The partitioner, with the precision of the scheme."""
        from executorch.backends.vulkan.partitioner.vulkan_partitioner import VulkanPartitioner

        return [VulkanPartitioner({"force_fp16": spec.quantization == "fp16"})]


LOWERING = VulkanLowering()
