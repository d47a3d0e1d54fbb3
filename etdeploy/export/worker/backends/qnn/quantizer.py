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
    from executorch.backends.qualcomm.quantizer.quantizer import QnnQuantizer, QuantDtype
    from executorch.backends.qualcomm.serialization.qc_schema import QnnExecuTorchBackendType

    scheme, channels = str(spec.quantization), bool(spec.options["per_channel"])
    kind = QnnQuantizer
    if scheme == IN_BLOCKS:
        kind = blocked(QnnQuantizer, lambda: _config(spec, scheme), spec)
    made = kind(backend=QnnExecuTorchBackendType.kHtpBackend, soc_model=chipset(spec))
    made.set_default_quant_config(
        QuantDtype[_DTYPES[scheme]], is_conv_per_channel=channels, is_linear_per_channel=channels
    )
    made.set_submodule_qconfig_list(
        [
            (_has(spec, other), _config(spec, other))
            for other in sorted({override for _, override in spec.overrides})
        ]
    )
    return made


def _config(spec: ExportSpec, scheme: str) -> Any:
    from executorch.backends.qualcomm.quantizer.quantizer import ModuleQConfig, QuantDtype

    channels = bool(spec.options["per_channel"])
    return ModuleQConfig(
        QuantDtype[_DTYPES[scheme]], is_conv_per_channel=channels, is_linear_per_channel=channels
    )


def _has(spec: ExportSpec, scheme: str) -> Any:
    """A predicate on nodes: whether an override gives them that scheme."""
    return lambda node: scheme_of(spec, node) == scheme
