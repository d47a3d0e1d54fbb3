"""Lowering to Core ML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.backends.base import Lowering, Traced


class CoreMLLowering(Lowering):
    """ExecuTorch's partitioner for Core ML; the precision is Core ML's own choice of floats."""

    apart = True
    # ExecuTorch's own Swift package asks for iOS 17.
    oldest = "iOS17"

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
            minimum_deployment_target=coremltools.target[self.oldest],
        )
        return [CoreMLPartitioner(compile_specs=specs)]

    def lower(self, spec: ExportSpec, methods: Mapping[str, Traced]) -> Any:
        """Lowers a model that keeps a state between calls for the systems that know one."""
        keeps = any(m.program.graph_signature.buffers_to_mutate for m in methods.values())
        if keeps and not isinstance(self, _Stateful):
            return _Stateful().lower(spec, methods)
        return super().lower(spec, methods)


class _Stateful(CoreMLLowering):
    """Core ML has states from iOS 18 on."""

    oldest = "iOS18"


LOWERING = CoreMLLowering()
