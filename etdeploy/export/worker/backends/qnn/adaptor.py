"""ExecuTorch's adaptor to Qualcomm's SDK, and the SoCs that it compiles for."""

from __future__ import annotations

import functools
from typing import Any

from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.failures import fail


@functools.cache
def check_adaptor() -> None:
    """Hands an array to ExecuTorch's adaptor to the SDK, which takes weights as arrays only.

    An adaptor that was built with a pybind11 before 2.12 takes none of numpy 2 (16557). No SDK is
    needed for this.

    Raises:
        WorkerError: There is no adaptor, or it does not take arrays of the installed numpy.
    """
    import numpy as np

    try:
        from executorch.backends.qualcomm.python import PyQnnManagerAdaptor
    except ImportError as error:
        raise fail(
            "lowering",
            f"the installed ExecuTorch cannot compile for QNN: {error}",
            remedy="Install the wheel for Linux x86_64: pip install executorch",
        ) from error
    try:
        PyQnnManagerAdaptor.TensorWrapper(
            "probe",
            PyQnnManagerAdaptor.Qnn_TensorType_t.QNN_TENSOR_TYPE_STATIC,
            PyQnnManagerAdaptor.Qnn_DataType_t.QNN_DATATYPE_FLOAT_32,
            PyQnnManagerAdaptor.Qnn_QuantizationEncoding_t.QNN_QUANTIZATION_ENCODING_UNDEFINED,
            {},
            1,
            [1],
            [0],
            np.zeros(1, np.float32),
            True,
        )
    except (RuntimeError, TypeError) as error:
        raise fail(
            "lowering",
            f"ExecuTorch's adaptor to the QNN SDK takes no arrays of numpy {np.__version__}: "
            f"{str(error).splitlines()[0]}",
            remedy="pip install 'numpy<2'   or take ExecuTorch's wheel, whose adaptor takes "
            "numpy 2",
        ) from error


def chipset(spec: ExportSpec) -> Any:
    """ExecuTorch's value for the spec's SoC.

    Raises:
        WorkerError: ExecuTorch does not know the SoC.
    """
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
