"""A folder that looks like OpenVINO's Python package."""

from __future__ import annotations

from pathlib import Path

# Those that a run on the CPU loads.
FILES = (
    "libopenvino_c.so.2541",
    "libopenvino.so.2541",
    "libopenvino_ir_frontend.so.2541",
    "libopenvino_intel_cpu_plugin.so",
    "libtbb.so.12",
)
_OTHERS = ("libopenvino_onnx_frontend.so.2541", "libopenvino_intel_gpu_plugin.so", "cache.json")


def lay_out_openvino(root: Path) -> Path:
    """Makes the files, each with its name as content; returns their folder."""
    folder = root / "openvino" / "libs"
    folder.mkdir(parents=True)
    for name in (*FILES, *_OTHERS):
        (folder / name).write_text(name)
    return folder
