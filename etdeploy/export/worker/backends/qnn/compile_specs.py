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
    specs: list[Any] = generate_qnn_executorch_compiler_spec(
        soc_model=chipset(spec),
        backend_options=generate_htp_compiler_spec(
            use_fp16=spec.quantization in ("none", "fp16"),
            use_dlbc=bool(spec.options["dlbc"]),
            htp_performance_mode=QnnExecuTorchHtpPerformanceMode(PERFORMANCE_MODES[mode]),
            use_weight_sharing=several and shares(spec),
        ),
        profile_level=level.kProfileDetailed if spec.profiled else level.kProfileOff,
    )
    wanted_mib = int(spec.options["vtcm_mib"])
    return [_with_vtcm(each, wanted_mib) for each in specs] if wanted_mib else specs


def _with_vtcm(spec: Any, wanted_mib: int) -> Any:
    """The compile spec with another size of VTCM than ExecuTorch's table has for the SoC."""
    from executorch.backends.qualcomm.serialization.qc_schema_serialize import (
        flatbuffer_to_option,
        option_to_flatbuffer,
    )

    options = flatbuffer_to_option(spec.value)
    options.soc_info.htp_info.vtcm_size_in_mb = wanted_mib
    return type(spec)(spec.key, option_to_flatbuffer(options))
