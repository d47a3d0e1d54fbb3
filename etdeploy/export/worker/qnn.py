"""Lowering to Qualcomm's QNN backend (HTP).

Written against the sources in ExecuTorch's wheel. It needs Qualcomm's SDK, without which not even
the quantiser starts, so the project's own tests do not run it.
"""

from __future__ import annotations

from typing import Any

import torch

from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.failures import fail
from etdeploy.export.worker.source import Source


def quantizer(spec: ExportSpec) -> Any:
    """The PT2E quantiser of the scheme, for the spec's SoC."""
    from executorch.backends.qualcomm.quantizer.quantizer import QnnQuantizer, QuantDtype
    from executorch.backends.qualcomm.serialization.qc_schema import QnnExecuTorchBackendType

    schemes = {"int8_static": QuantDtype.use_8a8w, "16a4w": QuantDtype.use_16a4w}
    made = QnnQuantizer(backend=QnnExecuTorchBackendType.kHtpBackend, soc_model=_chipset(spec))
    made.set_default_quant_config(
        schemes[spec.quantization or ""], is_conv_per_channel=True, is_linear_per_channel=True
    )
    return made


def lower_to_qnn(spec: ExportSpec, module: torch.nn.Module, source: Source) -> Any:
    """Compiles the model for the spec's SoC; an `EdgeProgramManager` with an ETRecord.

    Floats run as 16-bit floats: HTP has no 32-bit ones.
    """
    from executorch.backends.qualcomm.utils.utils import (
        generate_htp_compiler_spec,
        generate_qnn_executorch_compiler_spec,
        to_edge_transform_and_lower_to_qnn,
    )

    in_floats = spec.quantization in ("none", "fp16")
    specs = generate_qnn_executorch_compiler_spec(
        soc_model=_chipset(spec), backend_options=generate_htp_compiler_spec(use_fp16=in_floats)
    )
    return to_edge_transform_and_lower_to_qnn(
        module,
        source.inputs,
        specs,
        dynamic_shapes=source.dynamic_shapes,
        generate_etrecord=True,
    )


def segment_alignment() -> int:
    """Bytes that the SDK wants a context binary to be aligned to in the program."""
    from executorch.backends.qualcomm.utils.utils import get_qnn_context_binary_alignment

    return int(get_qnn_context_binary_alignment())


def _chipset(spec: ExportSpec) -> Any:
    from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset

    known = {chipset.name: chipset for chipset in QcomChipset}
    if spec.soc not in known:
        raise fail(
            "lowering",
            f"ExecuTorch's QNN backend does not know the SoC {spec.soc!r}; it knows "
            + ", ".join(sorted(known)),
            remedy="Name the nearest one with --set export.soc=SM8650",
        )
    return known[spec.soc]
