"""ExecuTorch's PT2E quantiser for the HTP."""

from __future__ import annotations

from typing import Any

from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.backends.qnn.adaptor import check_adaptor, chipset
from etdeploy.export.worker.lowering.overrides import scheme_of

# etdeploy's names of ExecuTorch's `QuantDtype`.
_DTYPES = {
    "int8_static": "use_8a8w",
    "8a4w": "use_8a4w",
    "16a8w": "use_16a8w",
    "16a4w": "use_16a4w",
}


def htp_quantizer(spec: ExportSpec) -> Any:
    """The PT2E quantiser of the spec's scheme and overrides, for its SoC.

    Raises:
        WorkerError: There is no adaptor that works, or ExecuTorch does not know the SoC.
    """
    check_adaptor()
    from executorch.backends.qualcomm.quantizer.quantizer import QnnQuantizer, QuantDtype
    from executorch.backends.qualcomm.serialization.qc_schema import QnnExecuTorchBackendType

    made = QnnQuantizer(backend=QnnExecuTorchBackendType.kHtpBackend, soc_model=chipset(spec))
    made.set_default_quant_config(
        QuantDtype[_DTYPES[str(spec.quantization)]],
        is_conv_per_channel=bool(spec.options["per_channel"]),
        is_linear_per_channel=bool(spec.options["per_channel"]),
    )
    made.set_submodule_qconfig_list(_overrides(spec))
    return made


def _overrides(spec: ExportSpec) -> list[tuple[Any, Any]]:
    """A predicate on nodes for each scheme of the overrides, with the configuration of that."""
    from executorch.backends.qualcomm.quantizer.quantizer import ModuleQConfig, QuantDtype

    def has(scheme: str) -> Any:
        return lambda node: scheme_of(spec, node) == scheme

    return [
        (
            has(scheme),
            ModuleQConfig(
                QuantDtype[_DTYPES[scheme]],
                is_conv_per_channel=bool(spec.options["per_channel"]),
                is_linear_per_channel=bool(spec.options["per_channel"]),
            ),
        )
        for scheme in sorted({scheme for _, scheme in spec.overrides})
    ]
