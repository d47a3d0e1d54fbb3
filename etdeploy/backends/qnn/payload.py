"""Reads what a QNN delegate was compiled for.

Each has a compile spec, a FlatBuffer of backends/qualcomm/serialization/qc_compiler_spec.fbs in
ExecuTorch's wheel: it names the SoC. Its payload is the context binary that Qualcomm's SDK wrote,
whose format is not published. The SDK's version is read if it is there as text, as in the files of
ExecuTorch's own checkout (2.37) and in those that 2.49 writes.
"""

from __future__ import annotations

from collections.abc import Iterator

from etdeploy.backends.qnn.facts import BUILD_ID, PERFORMANCE_MODES, QualcommSoc, soc_of
from etdeploy.backends.values import CompiledFor
from etdeploy.core.flatbuffer import FlatBuffer, FlatbufferTable

# Settings that decide what runs a program, and how.
FLOATS = "precision=fp16"
SHARES_WEIGHTS = "weight_sharing=true"

_COMPILE_SPEC = "qnn_compile_spec"

# Slots, named as in schema/program.fbs.
_DELEGATE_SPECS = 2
_SPEC_KEY, _SPEC_VALUE = 0, 1
# And of qc_compiler_spec.fbs.
_SOC_INFO, _BACKEND_OPTIONS, _PROFILE_LEVEL = 0, 1, 6
_SOC_MODEL, _HTP_INFO = 0, 1
_HTP_ARCH, _VTCM_MIB = 0, 1
_HTP_OPTIONS = 1
_PERFORMANCE_MODE, _PRECISION, _DLBC, _WEIGHT_SHARING = 1, 2, 5, 8
# By QnnExecuTorchHtpPrecision.
_PRECISIONS = {0: "precision=quantized", 1: FLOATS}


def compiled_for(delegate: FlatbufferTable, payload: memoryview) -> CompiledFor | None:
    """What a QNN delegate was compiled for; None if it has no compile spec."""
    for spec in delegate.tables(_DELEGATE_SPECS):
        if spec.string(_SPEC_KEY) == _COMPILE_SPEC:
            return _target(spec.content(_SPEC_VALUE), payload)
    return None


def describe_target(target: CompiledFor) -> str:
    """`for SM8650 (HTP V75), by QNN 2.37.0.250724175447, with precision=fp16`."""
    soc = target.soc or f"QNN's SoC number {target.soc_id}"
    arch = f" (HTP {target.htp_arch})" if target.htp_arch else ""
    sdk = f"QNN {target.sdk_version}" if target.sdk_version else "an unknown version of QNN"
    profiled = ", profiled by operator" if target.profiled else ""
    settings = f", with {', '.join(target.settings)}" if target.settings else ""
    return f"for {soc}{arch}, by {sdk}{profiled}{settings}"


def _target(spec: memoryview, payload: memoryview) -> CompiledFor:
    options = FlatBuffer(spec).root()
    soc = options.table(_SOC_INFO)
    htp = soc.table(_HTP_INFO) if soc else None
    number = soc.int32(_SOC_MODEL) if soc else 0
    arch = htp.int32(_HTP_ARCH) if htp else 0
    known = soc_of(number)
    build_id = BUILD_ID.search(payload)
    return CompiledFor(
        soc_id=number,
        soc=known.name if known else None,
        htp_arch=f"V{arch}" if arch else None,
        sdk_version=build_id[1].decode() if build_id else None,
        profiled=options.int32(_PROFILE_LEVEL) > 0,
        settings=(*_settings(options), *_vtcm(htp, known)),
    )


def _vtcm(htp: FlatbufferTable | None, soc: QualcommSoc | None) -> Iterator[str]:
    """How much VTCM the program uses, if that is not all that the SoC has."""
    size_mib = htp.int32(_VTCM_MIB) if htp else 0
    if soc and size_mib not in (0, soc.vtcm_mib):
        yield f"vtcm_mib={size_mib}"


def _settings(options: FlatbufferTable) -> Iterator[str]:
    """The HTP's options that are on; numbers that ExecuTorch has no name for stay numbers."""
    backend = options.table(_BACKEND_OPTIONS)
    htp = backend.table(_HTP_OPTIONS) if backend else None
    if htp is None:
        return
    precision, mode = htp.int32(_PRECISION), htp.int32(_PERFORMANCE_MODE)
    modes = {number: name for name, number in PERFORMANCE_MODES.items()}
    yield _PRECISIONS.get(precision, f"precision={precision}")
    yield f"performance_mode={modes.get(mode, mode)}"
    if htp.uint8(_DLBC):
        yield "dlbc=true"
    if htp.uint8(_WEIGHT_SHARING):
        yield SHARES_WEIGHTS
