"""What an export needs that may be missing; asked before anything starts."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path

from etdeploy.core.errors import ExportError
from etdeploy.export.installed import installed_version
from etdeploy.export.spec import ExportSpec
from etdeploy.recipe.backends import BACKENDS

INSTALL = 'pip install "etdeploy[export]"'
QNN_ROOT = "QNN_SDK_ROOT"
_QNN_LIBRARIES = "lib/x86_64-linux-clang"
_QNN_COMPILER = "libQnnHtp.so"


def check_needs(spec: ExportSpec, environment: Mapping[str, str] = os.environ) -> None:
    """Refuses an export that cannot work on this machine.

    Raises:
        ExportError: A file, a package or an SDK is missing; the remedy says how to get it.
    """
    _check_files(spec)
    if spec.program:
        return
    _check_packages(spec)
    if spec.backend == "qnn":
        _check_qnn(spec, environment)


def _check_files(spec: ExportSpec) -> None:
    for role, path in spec.named_files().items():
        if not Path(path).is_file():
            what = "is a folder, not a file" if Path(path).is_dir() else "does not exist"
            raise ExportError(f"the file {what}", place=f"{_KEYS[role]} {path}")


_KEYS = {
    "factory": "model.python",
    "calibration": "export.calibration",
    "exported": "model.exported",
    "program": "model.program",
    "weights": "model.weights",
}


def _check_packages(spec: ExportSpec) -> None:
    wanted = ["torch", "executorch"]
    if spec.quantization not in (None, "none"):
        wanted.append("torchao")
    missing = [name for name in wanted if installed_version(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise ExportError(
            f"exporting a model needs PyTorch and ExecuTorch; {' and '.join(missing)} {verb} not "
            f"installed for {sys.executable}",
            remedy=INSTALL,
        )
    if spec.backend == "coreml" and installed_version("coremltools") is None:
        raise ExportError(
            f"lowering to Core ML needs coremltools, which is not installed for {sys.executable}",
            remedy="pip install coremltools",
        )


def _check_qnn(spec: ExportSpec, environment: Mapping[str, str]) -> None:
    facts = BACKENDS["qnn"]
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise ExportError(
            f"the backend qnn needs {facts.needs}; this is {sys.platform} {platform.machine()}",
            remedy="Export on a Linux x86_64 machine, and take the program from there with\n"
            "model: {program: model.pte}",
        )
    root = environment.get(QNN_ROOT)
    if not root:
        raise ExportError(
            f"the backend qnn needs {facts.needs}; {QNN_ROOT} is not set", remedy=facts.get
        )
    compiler = qnn_libraries(root) / _QNN_COMPILER
    if not compiler.is_file():
        raise ExportError(
            f"{QNN_ROOT} does not lead to the QNN SDK: there is no {compiler}", remedy=facts.get
        )
    if spec.soc in (None, "auto"):
        raise ExportError(
            "a qnn program is compiled for one SoC, and no device has told which",
            remedy="Name a device with --device android, or the SoC with --set export.soc=SM8650",
        )


def qnn_libraries(root: str) -> Path:
    """The SDK's libraries for this machine."""
    return Path(root) / _QNN_LIBRARIES
