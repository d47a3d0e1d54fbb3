"""What an export needs that may be missing; checked before anything starts."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path

from etdeploy.core.blocker import Blocker
from etdeploy.core.errors import ExportError
from etdeploy.core.files.basic import not_regular
from etdeploy.export.installed import installed_version
from etdeploy.export.qnn_host import loading_problem
from etdeploy.export.spec import ExportSpec
from etdeploy.export.user_file import check_function
from etdeploy.targets.android import QUALCOMM_SOCS, QualcommSoc, soc_name
from etdeploy.targets.qnn_libraries import absent_to_export, too_old, too_old_to_export
from etdeploy.targets.qnn_sdk import find_sdk
from etdeploy.targets.qnn_versions import ADAPTOR_SDK, dotted

INSTALL = 'pip install "etdeploy[export]"'


def check_needs(spec: ExportSpec, environment: Mapping[str, str] = os.environ) -> None:
    """Refuses an export that cannot work on this machine.

    Raises:
        ExportError: A file, a package or an SDK is missing; the remedy says how to get it. Or the
            user's file does not have the function.
    """
    _check_files(spec)
    if spec.program:
        return
    _check_packages(spec)
    for key, reference in spec.functions().items():
        check_function(reference, key)
    if spec.backend == "qnn":
        _check_qnn(spec, environment)


def _check_files(spec: ExportSpec) -> None:
    for role, path in spec.named_files().items():
        if not Path(path).is_file():
            exists = Path(path).exists()
            what = f"is {not_regular(Path(path))}, not a file" if exists else "does not exist"
            raise ExportError(f"the file {what}", place=f"{_KEYS[role]} {path}")


_KEYS = {
    "factory": "model.python",
    "calibration": "export.calibration",
    "inputs": "benchmark.inputs",
    "exported": "model.exported",
    "program": "model.program",
    "weights": "model.weights",
    "custom_ops": "export.custom_ops",
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
    """The SDK with all that compiles, the SoC, and that the compiler can be loaded here."""
    needs = f"the backend qnn needs Qualcomm's SDK (QNN {dotted(ADAPTOR_SDK)} or newer)"
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise ExportError(
            f"{needs} on Linux x86_64; this is {sys.platform} {platform.machine()}",
            remedy="Export on a Linux x86_64 machine, and use that program with\n"
            "model: {program: model.pte}",
        )
    sdk = find_sdk(environment, Path.home())
    if isinstance(sdk, Blocker):
        raise ExportError(f"{needs}; {sdk.why}", remedy=sdk.remedy)
    if spec.soc in (None, "auto"):
        raise ExportError(
            "a qnn program is compiled for one SoC, and no device has reported which",
            remedy="Name a device with --device android, or the SoC with --set export.soc=SM8650",
        )
    problem = (
        too_old(sdk, _qualcomm_soc(spec.soc))
        or too_old_to_export(sdk)
        or absent_to_export(sdk)
        or loading_problem(sdk, environment)
    )
    if problem:
        raise ExportError(problem.why, remedy=problem.remedy)


def _qualcomm_soc(name: str) -> QualcommSoc:
    """The SoC that QNN compiles for; the name of a variant is refused with the name to use."""
    soc = QUALCOMM_SOCS.get(name)
    if soc:
        return soc
    near = soc_name(name, None)
    raise ExportError(
        f"QNN does not compile for the SoC {name!r}, as far as ExecuTorch knows",
        place="export.soc",
        remedy=f"--set export.soc={near}"
        if near in QUALCOMM_SOCS
        else f"Name one of: {', '.join(QUALCOMM_SOCS)}",
    )
