"""Backends of ExecuTorch that etdeploy does not export for; it runs their finished programs."""

from __future__ import annotations

from etdeploy.backends.base import Backend
from etdeploy.backends.causes import Cause

# The releases that the wheel of ExecuTorch 1.5.1 asks for; its backend loads the library by name.
_OPENVINO = """\
pip install "openvino>=2025.1,<2026"
export OPENVINO_LIB_PATH="$(python -c \
'import glob, openvino; print(glob.glob(openvino.__path__[0] + "/libs/libopenvino_c.so*")[0])')\""""

OTHERS: tuple[Backend, ...] = (
    Backend(
        name="mps",
        delegate_id="MPSBackend",
        component="backend_mps",
        switch="EXECUTORCH_BUILD_MPS",
        cmake_target="mpsdelegate",
        systems=("macos", "ios"),
    ),
    Backend(
        name="mlx",
        delegate_id="MLXBackend",
        component="backend_mlx",
        switch="EXECUTORCH_BUILD_MLX",
        cmake_target="mlxdelegate",
        submodules=("backends/mlx/third-party/mlx",),
        wheels=("macos-arm64",),
        systems=("macos",),
    ),
    Backend(
        name="openvino",
        delegate_id="OpenvinoBackend",
        component="backend_openvino",
        switch="EXECUTORCH_BUILD_OPENVINO",
        cmake_target="openvino_backend",
        wheels=("linux-x86_64", "linux-aarch64"),
        systems=("linux",),
        loads=True,
        words=(
            (
                r"OpenVINO runtime not found \(dlopen failed: (?P<why>[^)]+)\)",
                Cause(
                    "OpenvinoBackend is in the runner, but not available on this device: "
                    "OpenVINO's library cannot be loaded ({why})",
                    _OPENVINO,
                ),
            ),
        ),
    ),
    Backend(
        name="neuropilot",
        delegate_id="NeuropilotBackend",
        component="backend_neuron",
        switch="EXECUTORCH_BUILD_NEURON",
        cmake_target="neuron_backend",
        systems=("android",),
        arches=("aarch64",),
        loads=True,
    ),
    Backend(
        name="enn",
        delegate_id="EnnBackend",
        component="backend_enn",
        switch="EXECUTORCH_BUILD_ENN",
        cmake_target="enn_backend",
        systems=("android",),
        arches=("aarch64",),
        loads=True,
    ),
    Backend(
        name="vgf",
        delegate_id="VgfBackend",
        component="backend_vgf",
        switch="EXECUTORCH_BUILD_VGF",
        cmake_target="vgf_backend",
        systems=("android", "linux"),
        loads=True,
    ),
)
