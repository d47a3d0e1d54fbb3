"""OpenVINO's libraries on this machine, which a runner loads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from etdeploy.backends.values import Package
from etdeploy.core.blocker import Blocker
from etdeploy.core.text.install import pip_command

EXTRA = "etdeploy[openvino]"
# ExecuTorch's wheel asks for these. A program of 2026.0 still runs in 2025.4, and one of 2025.1 to
# 2025.4 in any of them; 2025.4 does not load one of 2026.4, with which the delegate crashes.
PACKAGE = Package("openvino", "lowering to OpenVINO", EXTRA, ">=2025.1,<2026")

VARIABLE = "OPENVINO_LIB_PATH"
_LIBRARY = "libopenvino_c.so"
# What a run on the CPU loads besides: the C library's implementation, the reader of OpenVINO's own
# format, and the plug-in of the processor. They are looked for beside the C library's real file.
_BESIDE = (
    "libopenvino.so.*",
    "libopenvino_ir_frontend.so.*",
    "libopenvino_intel_cpu_plugin.so",
    "libtbb.so.*",
)


@dataclass(frozen=True)
class Installed:
    """The OpenVINO of the environment that runs etdeploy.

    Attributes:
        version: Of the package.
        library: The C library, which the delegate loads.
    """

    version: str
    library: Path


def find_openvino() -> Installed | Blocker:
    """The installed package; nothing of it is imported."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        package = distribution(PACKAGE.name)
    except PackageNotFoundError:
        return _blocker("OpenVINO, whose libraries the runner loads, is not installed")
    if not PACKAGE.fits(package.version):
        return _blocker(
            f"OpenVINO {package.version} is installed, and ExecuTorch's delegate works with "
            f"{PACKAGE.specifier}"
        )
    return installed_in(Path(str(package.locate_file("openvino/libs"))), package.version)


def installed_in(folder: Path, version: str) -> Installed | Blocker:
    """The libraries of a package, by the folder that holds them."""
    patterns = (f"{_LIBRARY}.*", *_BESIDE)
    found = {pattern: min(folder.glob(pattern), default=None) for pattern in patterns}
    library = found[patterns[0]]
    lacking = [pattern.removesuffix(".*") for pattern, path in found.items() if path is None]
    if lacking or library is None:
        return _blocker(
            f"OpenVINO {version} in {folder} lacks {', '.join(lacking)}",
            f"{PACKAGE.name}=={version}",
            " --force-reinstall --no-deps",
        )
    return Installed(version, library)


def named_library(environ: Mapping[str, str]) -> str | Blocker | None:
    """The library that the user chose for runs on this machine; None for none.

    It may be of any release, and have other processors' libraries beside it.
    """
    named = environ.get(VARIABLE)
    # A name without a folder is looked for by the system's loader.
    if not named or os.sep not in named or Path(named).is_file():
        return named or None
    return Blocker(
        what="OpenVINO",
        why=f"{VARIABLE} names {named}, which does not exist",
        remedy=f"unset {VARIABLE}   # the package etdeploy[openvino] has its own",
    )


def _blocker(why: str, install: str = EXTRA, options: str = "") -> Blocker:
    return Blocker(what="OpenVINO", why=why, remedy=pip_command(install) + options)
