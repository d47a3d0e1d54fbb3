"""Core ML: the processors of Apple's devices."""

from __future__ import annotations

from etdeploy.backends.base import Backend
from etdeploy.backends.values import Package

COREML = Backend(
    name="coreml",
    delegate_id="CoreMLBackend",
    quantizations=("none", "fp16"),
    lowering="etdeploy.export.worker.backends.coreml",
    needs="a Mac or an iPhone to run on",
    get="Run etdeploy on a Mac (device host), where the wheel has the Core ML backend.",
    packages=(Package("coremltools", "lowering to Core ML", "coremltools"),),
    component="backend_coreml",
    switch="EXECUTORCH_BUILD_COREML",
    cmake_target="coremldelegate",
    wheels=("macos-arm64",),
    frameworks=("CoreML",),
    systems=("macos", "ios"),
)
