"""ExecuTorch's PT2E quantiser for the HTP."""

from __future__ import annotations

from typing import Any

from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.backends.qnn.adaptor import check_adaptor, chipset
from etdeploy.export.worker.backends.qnn.blocks import IN_BLOCKS, blocked
from etdeploy.export.worker.lowering.overrides import scheme_of

# etdeploy's names of ExecuTorch's `QuantDtype`.
_DTYPES = {
    "int8_static": "use_8a8w",
    "8a4w": "use_8a4w",
    "16a8w": "use_16a8w",
    "16a4w": "use_16a4w",
    IN_BLOCKS: "use_16a4w_block",
}


def htp_quantizer(spec: ExportSpec) -> Any:
    """The PT2E quantiser of the spec's scheme and overrides, for its SoC.

    Raises:
        WorkerError: There is no adaptor that works, or ExecuTorch does not know the SoC.
    """
    check_adaptor()
    from executorch.backends.qualcomm.quantizer.quantizer import QnnQuantizer
    from executorch.backends.qualcomm.serialization.qc_schema import QnnExecuTorchBackendType

    scheme = str(spec.quantization)
    kind = QnnQuantizer
    if scheme == IN_BLOCKS:
        kind = blocked(QnnQuantizer, lambda: _config(spec, scheme), spec)
    made = kind(backend=QnnExecuTorchBackendType.kHtpBackend, soc_model=chipset(spec))
    made.set_default_quant_config(**_arguments(spec, scheme))
    made.set_submodule_qconfig_list(
        [
            (_has(spec, other), _config(spec, other))
            for other in sorted({override for _, override in spec.overrides})
        ]
    )
    return made


def _config(spec: ExportSpec, scheme: str) -> Any:
    from executorch.backends.qualcomm.quantizer.quantizer import ModuleQConfig

    return ModuleQConfig(**_arguments(spec, scheme))


def _arguments(spec: ExportSpec, scheme: str) -> dict[str, Any]:
    """What ExecuTorch's quantiser is told of a scheme, for the model or a part of it."""
    from executorch.backends.qualcomm.quantizer.quantizer import QuantDtype

    channels = bool(spec.options["per_channel"])
    return {
        "quant_dtype": QuantDtype[_DTYPES[scheme]],
        "is_conv_per_channel": channels,
        "is_linear_per_channel": channels,
    }


def _has(spec: ExportSpec, scheme: str) -> Any:
    """A predicate on nodes: whether an override gives them that scheme."""
    return lambda node: scheme_of(spec, node) == scheme
