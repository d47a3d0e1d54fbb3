"""What ExecuTorch's backend for QNN is told about a program."""

from __future__ import annotations

from typing import Any

from etdeploy.backends.qnn.options import PERFORMANCE_MODES
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.backends.qnn.adaptor import chipset
from etdeploy.export.worker.backends.qnn.methods import shares


def compile_specs(spec: ExportSpec, *, several: bool) -> list[Any]:
    """The compile specs of every partition.

    Floats run as 16-bit floats: the HTP has no 32-bit ones. ExecuTorch takes QNN's profile level
    from the compiled program; the runner lowers it in the passes that trace nothing.

    Args:
        spec: What is exported; it has a value for each of the backend's options.
        several: Whether the program has several methods.

    Raises:
        WorkerError: ExecuTorch does not know the SoC.
    """
    from executorch.backends.qualcomm.serialization.qc_schema import (
        QnnExecuTorchHtpPerformanceMode,
        QnnExecuTorchProfileLevel,
    )
    from executorch.backends.qualcomm.utils.utils import (
        generate_htp_compiler_spec,
        generate_qnn_executorch_compiler_spec,
    )

    level, mode = QnnExecuTorchProfileLevel, str(spec.options["performance_mode"])
    made: list[Any] = generate_qnn_executorch_compiler_spec(
        soc_model=chipset(spec),
        backend_options=generate_htp_compiler_spec(
            use_fp16=spec.quantization in ("none", "fp16"),
            use_dlbc=bool(spec.options["dlbc"]),
            htp_performance_mode=QnnExecuTorchHtpPerformanceMode(PERFORMANCE_MODES[mode]),
            use_weight_sharing=several and shares(spec),
        ),
        profile_level=level.kProfileDetailed if spec.profiled else level.kProfileOff,
    )
    return made
