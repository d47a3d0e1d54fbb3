"""Which packages are installed, found without importing any of them."""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import platform
import sys
from pathlib import Path

from etdeploy.backends.registry import backend_named
from etdeploy.backends.values import Workstation
from etdeploy.export.spec import ExportSpec

_TOOLS = ("torch", "torchao", "executorch")
_OF_LANGUAGE_MODELS = ("transformers",)


def tool_versions(spec: ExportSpec) -> dict[str, str | None]:
    """Versions of the exporting tools; None for one that is not installed. Nothing is imported."""
    versions: dict[str, str | None] = {
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "machine": platform.machine(),
    }
    if spec.program:
        return versions
    wanted = (*_TOOLS, *(_OF_LANGUAGE_MODELS if spec.hf else ()))
    versions |= {name: installed_version(name) for name in wanted}
    return versions | backend_versions(spec)


def backend_versions(spec: ExportSpec) -> dict[str, str | None]:
    """Versions of what the spec's backend compiles with; None for what is not installed."""
    backend = backend_named(str(spec.backend))
    wanted = [package.name for package in backend.packages_for(spec.quantization)]
    packages = {name: installed_version(name) for name in wanted}
    return {**packages, **backend.versions(spec.request, Workstation.this())}


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
