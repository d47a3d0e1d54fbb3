"""Which packages are installed, found without importing any of them."""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import os
import platform
import sys
from pathlib import Path

from etdeploy.export.spec import ExportSpec
from etdeploy.targets.qnn_sdk import QnnSdk, find_sdk

_TOOLS = ("torch", "torchao", "executorch")


def tool_versions(spec: ExportSpec) -> dict[str, str | None]:
    """Versions of the exporting tools; None for one that is not installed. Nothing is imported."""
    versions: dict[str, str | None] = {
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "machine": platform.machine(),
    }
    if spec.program:
        return versions
    tools = (*_TOOLS, "coremltools") if spec.backend == "coreml" else _TOOLS
    versions |= {name: installed_version(name) for name in tools}
    return versions | {"qnn": qnn_version()} if spec.backend == "qnn" else versions


def qnn_version() -> str | None:
    """The version of the QNN SDK that an export uses."""
    sdk = find_sdk(os.environ, Path.home())
    return sdk.version if isinstance(sdk, QnnSdk) else None


def installed_version(distribution: str) -> str | None:
    """The version of an installed distribution."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def module_file(name: str) -> Path | None:
    """The source file of a module, found as an import would, but without running any code.

    Namespace packages and modules that an import hook provides are not found.
    """
    search: list[str] | None = None
    full = ""
    spec: importlib.machinery.ModuleSpec | None = None
    for part in name.split("."):
        full = f"{full}.{part}" if full else part
        spec = importlib.machinery.PathFinder.find_spec(full, search)
        if spec is None:
            return None
        search = list(spec.submodule_search_locations or ())
    return Path(spec.origin) if spec and spec.has_location and spec.origin else None
