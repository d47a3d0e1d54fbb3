"""Lowering to Core ML."""

from __future__ import annotations

from typing import Any

from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.backends.base import Lowering


class CoreMLLowering(Lowering):
    """ExecuTorch's partitioner for Core ML; the precision is Core ML's own choice of floats."""

    apart = True
    # ExecuTorch 1.5.1 converts no partition of it that takes a dynamic size.
    fixed_shapes = True

    def partitioners(self, spec: ExportSpec) -> list[Any]:
        """The partitioner, with the precision of the scheme."""
        import coremltools  # type: ignore[import-untyped]
        from executorch.backends.apple.coreml.compiler import CoreMLBackend
        from executorch.backends.apple.coreml.partition import CoreMLPartitioner

        half = spec.quantization == "fp16"
        specs = CoreMLBackend.generate_compile_specs(
            compute_precision=coremltools.precision.FLOAT16
            if half
            else coremltools.precision.FLOAT32,
            # ExecuTorch's own Swift package asks for iOS 17.
            minimum_deployment_target=coremltools.target.iOS17,
        )
        partitioner = CoreMLPartitioner(
            compile_specs=specs,
            # A state of Core ML's own needs iOS 18, and each method would have another one.
            take_over_mutable_buffer=False,
            # coremltools 9.0 cannot convert how the cache is written.
            skip_ops_for_coreml_delegation=["aten.index_put.default"] if spec.hf else None,
        )
        return [partitioner]


LOWERING = CoreMLLowering()
