"""Lowering to Vulkan."""

from __future__ import annotations

from typing import Any

from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.backends.base import Lowering


class VulkanLowering(Lowering):
    """ExecuTorch's partitioner for Vulkan; 16-bit floats are an option of it."""

    apart = True
    shortens = True
    # ExecuTorch 1.5.1 fills scales and bias up to a multiple of four, and then finds that the shape
    # of the layer's output contradicts them (FusePatternsPass).
    grouped_outputs = 4

    def quantizer(self, spec: ExportSpec) -> Any:
        """That of XNNPACK, whose quantised convolutions and linear layers Vulkan fuses as well.

        Vulkan's own has weights in 8 bits alone, and dynamic activations that its runtime lacks an
        operator for (1.5.1: `dequantize_per_channel`).
        """
        from etdeploy.export.worker.backends.vulkan_int8 import VulkanInt8Quantizer

        return VulkanInt8Quantizer()

    def partitioners(self, spec: ExportSpec) -> list[Any]:
        """The partitioner, with the precision of the scheme."""
        from executorch.backends.vulkan.partitioner.vulkan_partitioner import VulkanPartitioner

        from etdeploy.export.worker.backends.vulkan_int8 import fuse_only_what_is_right

        fuse_only_what_is_right()
        return [VulkanPartitioner({"force_fp16": spec.quantization == "fp16"})]


LOWERING = VulkanLowering()
