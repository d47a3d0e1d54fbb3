"""ExecuTorch's PT2E quantiser for the HTP."""

from __future__ import annotations

from typing import Any

from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.backends.qnn.adaptor import check_adaptor, chipset


def htp_quantizer(spec: ExportSpec) -> Any:
    """The PT2E quantiser of the spec's scheme, for its SoC."""
    check_adaptor()
    from executorch.backends.qualcomm.quantizer.quantizer import QnnQuantizer, QuantDtype
    from executorch.backends.qualcomm.serialization.qc_schema import QnnExecuTorchBackendType

    schemes = {"int8_static": QuantDtype.use_8a8w, "16a4w": QuantDtype.use_16a4w}
    made = QnnQuantizer(backend=QnnExecuTorchBackendType.kHtpBackend, soc_model=chipset(spec))
    made.set_default_quant_config(
        schemes[spec.quantization or ""], is_conv_per_channel=True, is_linear_per_channel=True
    )
    return made
