"""Reads for what a QNN program was compiled.

Each QNN delegate carries a compile spec, a FlatBuffer of backends/qualcomm/serialization/
qc_compiler_spec.fbs in ExecuTorch's wheel: it names the SoC. Its payload is the context binary that
Qualcomm's SDK wrote, whose format is not published; where the SDK's version is in it as text, it is
read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from etdeploy.program.flatbuffer import CorruptError, FlatBuffer, Table
from etdeploy.program.pte import PteFile, damaged, map_pte

BACKEND_ID = "QnnBackend"
_COMPILE_SPEC = "qnn_compile_spec"

# Slots, named as schema/program.fbs names them.
_EXECUTION_PLAN, _DELEGATE_DATA, _SEGMENTS = 1, 3, 4
_PLAN_DELEGATES = 7
_DELEGATE_ID, _DELEGATE_PROCESSED, _DELEGATE_SPECS = 0, 1, 2
_SPEC_KEY, _SPEC_VALUE = 0, 1
_LOCATION, _INDEX, _IN_SEGMENT = 0, 1, 1
# And of qc_compiler_spec.fbs.
_SOC_INFO = 0
_SOC_MODEL, _HTP_INFO = 0, 1
_HTP_ARCH = 0

# v2.37.0.250724175447_124859: the date and time tell it from every other number.
_BUILD_ID = re.compile(rb"v(2\.\d{1,3}\.\d{1,2}\.\d{12})")


@dataclass(frozen=True)
class CompiledFor:
    """For what, and by what, a partition of a program was compiled.

    Attributes:
        soc_id: The SoC by QNN's number.
        htp_arch: Generation of its Hexagon tensor processor, like V79; None where none is named.
        sdk_version: Of the QNN SDK; None where the context binary does not show it.
    """

    soc_id: int
    htp_arch: str | None
    sdk_version: str | None


def compiled_for(path: Path) -> tuple[CompiledFor, ...]:
    """For what the QNN partitions of a program were compiled, each thing once.

    Raises:
        UsageError: There is no file, it is no program, or it is damaged.
    """
    pte = map_pte(path)
    try:
        root = FlatBuffer(pte.flatbuffer).root()
        return tuple(dict.fromkeys(_partitions(root, pte)))
    except CorruptError as error:
        raise damaged(path, str(error)) from error


def _partitions(root: Table, pte: PteFile) -> Iterator[CompiledFor]:
    for plan in root.tables(_EXECUTION_PLAN):
        for delegate in plan.tables(_PLAN_DELEGATES):
            if delegate.string(_DELEGATE_ID) != BACKEND_ID:
                continue
            payload = _payload(root, delegate.table(_DELEGATE_PROCESSED), pte)
            for spec in delegate.tables(_DELEGATE_SPECS):
                if spec.string(_SPEC_KEY) == _COMPILE_SPEC:
                    yield _target(spec.content(_SPEC_VALUE), payload)


def _target(spec: memoryview, payload: memoryview) -> CompiledFor:
    soc = FlatBuffer(spec).root().table(_SOC_INFO)
    htp = soc.table(_HTP_INFO) if soc else None
    number = htp.int32(_HTP_ARCH) if htp else 0
    build_id = _BUILD_ID.search(payload)
    return CompiledFor(
        soc_id=soc.int32(_SOC_MODEL) if soc else 0,
        htp_arch=f"V{number}" if number else None,
        sdk_version=build_id[1].decode() if build_id else None,
    )


def _payload(root: Table, reference: Table | None, pte: PteFile) -> memoryview:
    if reference is None:
        return memoryview(b"")
    index = reference.uint32(_INDEX)
    if reference.int8(_LOCATION) != _IN_SEGMENT:
        return root.table_at(_DELEGATE_DATA, index).content(0)
    segment = root.table_at(_SEGMENTS, index)
    return pte.segment(segment.uint64(0), segment.uint64(1))
