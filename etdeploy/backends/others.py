"""Backends of ExecuTorch that etdeploy does not export for; it runs their finished programs."""

from __future__ import annotations

from etdeploy.backends.base import Backend

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
