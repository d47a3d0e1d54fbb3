"""XNNPACK: the CPU, on every system."""

from __future__ import annotations

from etdeploy.backends.base import Backend

XNNPACK = Backend(
    name="xnnpack",
    delegate_id="XnnpackBackend",
    quantizations=("none", "int8_static", "int8_dynamic", "8da4w"),
    lowering="etdeploy.export.worker.backends.xnnpack",
    component="backend_xnnpack",
    switch="EXECUTORCH_BUILD_XNNPACK",
    wheels=("linux-x86_64", "linux-aarch64", "macos-arm64"),
    threaded=True,
    tried=True,
)
