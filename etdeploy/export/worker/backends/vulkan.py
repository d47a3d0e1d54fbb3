"""Lowering to Vulkan."""

from __future__ import annotations

from typing import Any

from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.backends.base import Lowering


class VulkanLowering(Lowering):
    """ExecuTorch's partitioner for Vulkan; 16-bit floats are an option of it."""

    # ExecuTorch 1.5.1 fills scales and bias up to a multiple of four, and then finds that the shape
    # of the layer's output contradicts them (FusePatternsPass).
    grouped_outputs = 4

    def quantizer(self, spec: ExportSpec) -> Any:
        """That of XNNPACK, whose quantised convolutions and linear layers Vulkan fuses as well.

        Vulkan's own has weights in 8 bits alone, and dynamic activations that its runtime lacks an
        operator for (1.5.1: `dequantize_per_channel`).
        """
        from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
            XNNPACKQuantizer,
            get_symmetric_quantization_config,
        )

        class WithScalars(XNNPACKQuantizer):  # type: ignore[misc]
            def transform_for_annotation(self, model: Any) -> Any:
                # The original turns numbers into tensors, also the epsilon of a norm, whose value
                # Vulkan's FusePatternsPass then cannot read.
                return model

        return WithScalars().set_global(get_symmetric_quantization_config(is_per_channel=True))

    def partitioners(self, spec: ExportSpec) -> list[Any]:
        """The partitioner, with the precision of the scheme."""
        from executorch.backends.vulkan.partitioner.vulkan_partitioner import VulkanPartitioner

        return [VulkanPartitioner({"force_fp16": spec.quantization == "fp16"})]


LOWERING = VulkanLowering()
