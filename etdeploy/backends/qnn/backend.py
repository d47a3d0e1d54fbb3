"""QNN: the neural processor (HTP) of Qualcomm's Snapdragon SoCs.

The modules beside this one are imported when they are asked: most runs have nothing to do with QNN.
"""

from __future__ import annotations

from dataclasses import dataclass

from etdeploy.backends.base import Backend
from etdeploy.backends.payload import CompiledFor, Payload
from etdeploy.core.flatbuffer import Table


@dataclass(frozen=True, kw_only=True)
class Qnn(Backend):
    """QNN with Qualcomm's SDK."""

    def read_payload(self, delegate: Table, payload: memoryview) -> Payload:
        """The SoC in the compile spec, and the version in the context binary."""
        from etdeploy.backends.qnn.payload import compiled_for

        return Payload(compiled_for=compiled_for(delegate, payload))

    def describe_target(self, compiled: CompiledFor) -> str:
        """`for SM8650 (HTP V75), by QNN 2.37.0.250724175447`."""
        from etdeploy.backends.qnn.payload import describe_target

        return describe_target(compiled)


QNN = Qnn(
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
