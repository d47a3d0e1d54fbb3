"""QNN: the neural processor (HTP) of Qualcomm's Snapdragon SoCs."""

from __future__ import annotations

from etdeploy.backends.base import Backend

QNN = Backend(
    name="qnn",
    delegate_id="QnnBackend",
    quantizations=("none", "fp16", "int8_static", "16a4w"),
    lowering="etdeploy.export.worker.backends.qnn",
    needs="Qualcomm's SDK (QNN; [which version](qnn.md)), on Linux x86_64",
    component="backend_qnn",
    switch="EXECUTORCH_BUILD_QNN",
    wheels=("linux-x86_64",),
    systems=("android", "linux"),
    loads=True,
    per_soc=True,
    profile_compiled=True,
)
