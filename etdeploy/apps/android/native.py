"""ExecuTorch built for one app: its native library, and the Java API of the same checkout.

Both go into the project: `app/src/main/jniLibs/ABI/libexecutorch.so`, `app/libs/executorch.jar`.
"""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from etdeploy.apps.android.app import JARS, NATIVE
from etdeploy.apps.android.archive import unpack_native_module
from etdeploy.apps.android.commands import compile_code
from etdeploy.apps.android.tools import FBJNI, Tools
from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import BuildError, require
from etdeploy.core.files.basic import resource_folder, write_atomic
from etdeploy.core.values import Progress, silent
from etdeploy.custom_ops.kernels import CustomOps
from etdeploy.plan.derive import require_feasible
from etdeploy.plan.model import RuntimePlan
from etdeploy.provider.checkout import Checkout
from etdeploy.runner.build_tree import BuildTree, open_tree
from etdeploy.runner.builder import tree_definitions
from etdeploy.runner.compile import compile_runner, configure
from etdeploy.runner.fingerprint import compiler_digest
from etdeploy.runner.missing import closure
from etdeploy.runner.toolchains import (
    BuildTools,
    Machine,
    Toolchain,
    find_cache,
    find_programs,
    find_toolchain,
)
from etdeploy.targets.platforms import ANDROID_ABIS, Target, find_target, host_target

LIBRARY = "libexecutorch.so"
API = "executorch.jar"
# Where a checkout has the Java API.
_SOURCES = "extension/android/executorch_android/src/main/java"
# Equal classes give equal jars.
_DATE = (1981, 1, 1, 1, 1, 2)


def build_library(
    plan: RuntimePlan,
    checkout: Checkout,
    fbjni: Path,
    workspace: Workspace,
    project: Path,
    progress: Progress = silent,
    log: Path | None = None,
    program: Path | None = None,
    custom_ops: CustomOps | None = None,
) -> tuple[Path, ...]:
    """Builds libexecutorch.so for one ABI, and writes it and what it loads into the project.

    The build folder stays, so that a second build compiles what has changed alone.
    """
    require_feasible(plan, "an app")
    host, target = host_target(), find_target(plan.build_target)
    toolchain = require_toolchain(plan, target, host, checkout)
    tools = BuildTools(*require(find_programs()), toolchain.compiler, None)
    if not toolchain.caches:
        tools = replace(tools, ccache=find_cache())
    compiler = compiler_digest(host, target)
    # Not the runner's folder: each would configure the other's anew.
    with open_tree(workspace, f"{target.name}-app", checkout, compiler, progress) as tree:
        unpack_native_module(fbjni, _abi(plan), tree.root / "fbjni")
        definitions = library_definitions(plan, tree, tools, toolchain, program, custom_ops)
        if not tree.is_configured(definitions):
            tree.forget()
            sources = resource_folder("templates") / "android_runtime"
            configure(definitions, tools, sources, tree.cmake, progress, log, fresh=True)
            tree.remember(definitions)
        built = compile_runner(tools, tree.cmake, progress, log, built=LIBRARY)
        # A backend may be a shared library of the build.
        found = closure(built, lambda name: _built_beside(tree.cmake, name))
        shared = {name: path for name, path in found.items() if name != LIBRARY}
        return _place({LIBRARY: built} | shared, project / NATIVE / _abi(plan))


def require_toolchain(
    plan: RuntimePlan, target: Target, host: Target, checkout: Checkout
) -> Toolchain:
    """The NDK on this machine."""
    api = plan.option("ANDROID_PLATFORM") or ""
    level = int(api.removeprefix("android-"))
    machine = Machine.this(host, os.environ)
    return require(find_toolchain(target, machine, level, checkout.folder))


def library_definitions(
    plan: RuntimePlan,
    tree: BuildTree,
    tools: BuildTools,
    toolchain: Toolchain,
    program: Path | None,
    custom_ops: CustomOps | None,
) -> dict[str, str]:
    """All of cmake's definitions."""
    definitions = tree_definitions(plan, tree, tools, toolchain, program, custom_ops)
    return definitions | {"ETDEPLOY_FBJNI": str(tree.root / "fbjni")}


def build_api(
    checkout: Checkout, tools: Tools, folder: Path, project: Path, log: Path | None = None
) -> Path:
    """Compiles the checkout's Java API and writes it as a jar into the project."""
    root = checkout.folder / _SOURCES
    sources = sorted(path for path in root.rglob("*") if path.suffix in (".kt", ".java"))
    if not sources:
        raise BuildError(
            f"the checkout has no Java API: {root} is empty or missing",
            remedy="Use a complete checkout: --set runtime.source=/path/to/executorch",
        )
    jars = [_jar(library.path, library.name, folder) for library in tools.libraries]
    compile_code(
        tools.jdk, tools.kotlin, tools.sdk.android_jar, sources, jars, folder / "classes", log
    )
    _pack(folder / "classes", folder / API)
    jar = project / JARS / API
    write_atomic(jar, (folder / API).read_bytes())
    return jar


def require_fbjni(tools: Tools) -> Path:
    """The AAR of fbjni, which an app has besides ExecuTorch."""
    return next(each.path for each in tools.libraries if each.name == FBJNI.name)


def _built_beside(folder: Path, name: str) -> Path | None:
    """A library of that build; None for what the app or Android brings."""
    return next((path for path in sorted(folder.rglob(name)) if path.is_file()), None)


def _place(libraries: Mapping[str, Path], folder: Path) -> tuple[Path, ...]:
    folder.mkdir(parents=True, exist_ok=True)
    for name, path in libraries.items():
        shutil.copyfile(path, folder / name)
    return tuple(folder / name for name in libraries)


def _abi(plan: RuntimePlan) -> str:
    return next(abi for abi, target in ANDROID_ABIS.items() if target == plan.build_target)


def _jar(library: Path, name: str, folder: Path) -> Path:
    """The classes of an AAR; a jar as it is."""
    if library.suffix == ".jar":
        return library
    jar = folder / f"{name}.jar"
    with zipfile.ZipFile(library) as archive:
        write_atomic(jar, archive.read("classes.jar"))
    return jar


def _pack(classes: Path, jar: Path) -> None:
    with zipfile.ZipFile(jar, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(classes.rglob("*.class")):
            info = zipfile.ZipInfo(path.relative_to(classes).as_posix(), _DATE)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, path.read_bytes())
