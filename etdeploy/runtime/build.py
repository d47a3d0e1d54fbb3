"""Builds the runner of a plan and keeps it in the cache."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from etdeploy.core import process
from etdeploy.core.errors import BuildError
from etdeploy.core.files import folder_files
from etdeploy.core.hashing import digest_json, sha256_file
from etdeploy.core.progress import Progress, silent
from etdeploy.core.resources import resource_folder
from etdeploy.core.workspace import Workspace
from etdeploy.runtime.closure import closure, read_needs, system_library
from etdeploy.runtime.compile import compile_runner
from etdeploy.runtime.kernels import Kernels, ask_runner, read_libraries
from etdeploy.runtime.plan import require_feasible
from etdeploy.runtime.plan_model import BuiltRunner, RuntimePlan
from etdeploy.runtime.tools import BuildTools, find_compiler, find_tools
from etdeploy.runtime.wheel import WheelRuntime, fingerprint
from etdeploy.targets.platforms import Target, find_target, host_target

EXECUTABLE = "etdeploy-runner"
_INFO = "runner.json"
# What cmake takes from the environment into a build.
_FLAGS = ("CXX", "CXXFLAGS", "CPPFLAGS", "LDFLAGS")


def build_runner(
    plan: RuntimePlan,
    wheel: WheelRuntime,
    workspace: Workspace,
    progress: Progress = silent,
    log: Path | None = None,
) -> BuiltRunner:
    """Gives the runner of a plan, from the cache where it is sound there.

    Args:
        plan: What to build; plans with the same needs share one runner.
        wheel: The libraries for `plan.build_target`.
        workspace: The cache.
        progress: Told each step, and the fraction of the compilation.
        log: Gets every command with its output.

    Raises:
        BuildError: The plan has obstacles, a tool is missing, or the build failed; the message has
            the compiler's first error.
        Interrupted: The run was stopped; the cache has no half entry.
    """
    require_feasible(plan)
    host = host_target()
    target = find_target(plan.build_target)
    entry = workspace.entry("runners", runner_key(plan, wheel, host))

    def build(folder: Path) -> None:
        tools = find_tools(target, host)
        _Builder(plan, wheel, tools, target, host, folder, log).build(progress)

    workspace.obtain(entry, build, progress)
    stored = BuiltRunner.load(entry.path / _INFO)
    return stored.model_copy(update={"path": str(entry.path)})


def runner_key(plan: RuntimePlan, wheel: WheelRuntime, host: Target) -> str:
    """The cache key: equal for everything that gives the same runner."""
    target = find_target(plan.build_target)
    return digest_json([plan.build_digest, fingerprint(wheel), runner_fingerprint(host, target)])


def runner_fingerprint(host: Target, build_target: Target | None = None) -> str:
    """A digest of the runner's sources, the toolchain file and the compiler.

    No process is started: a compiler is told by its path, size and date, and by the flags in the
    environment.
    """
    target = build_target or host
    compiler = find_compiler(target, host)
    return digest_json(
        {
            "sources": _digests(_template()),
            "toolchains": _digests(resource_folder("toolchains")),
            "compiler": _identity(compiler) if compiler else None,
            "flags": {name: os.environ.get(name) for name in _FLAGS},
        }
    )


def _template() -> Path:
    return resource_folder("templates") / "runner"


def _digests(folder: Path) -> dict[str, str]:
    return {name: sha256_file(folder / name) for name in folder_files(folder)}


def _identity(program: Path) -> tuple[str, int, int]:
    resolved = program.resolve()
    info = resolved.stat()
    return str(resolved), info.st_size, info.st_mtime_ns


@dataclass(frozen=True)
class _Builder:
    """One build into an empty folder of the cache."""

    plan: RuntimePlan
    wheel: WheelRuntime
    tools: BuildTools
    target: Target
    host: Target
    folder: Path
    log: Path | None

    def build(self, progress: Progress) -> None:
        with tempfile.TemporaryDirectory(prefix="etdeploy-build-") as temporary:
            built = compile_runner(
                self.plan, self.wheel, self.tools, _template(), Path(temporary), progress, self.log
            )
            executable = self.folder / EXECUTABLE
            shutil.copyfile(built, executable)
            executable.chmod(0o755)
        progress("collecting the runner's libraries")
        libraries = self._copy_libraries()
        loader = self._copy_loader() if self.plan.portable_runner else None
        progress("listing the runner's operators")
        kernels = self._list_kernels(loader)
        BuiltRunner(
            path="",
            executable=EXECUTABLE,
            libraries=libraries,
            loader=loader,
            target=self.target.name,
            sha256=sha256_file(executable),
            operators=kernels.operators,
            backends=kernels.backends,
            executorch_version=self.wheel.version,
            listed_by=kernels.listed_by,
        ).save(self.folder / _INFO)

    def _copy_libraries(self) -> tuple[str, ...]:
        if self.target.system == "macos":
            # Its linker keeps every library that it was given, and the system has the others.
            names = {_library_name(c, "dylib") for c in self.plan.component_names}
            found = {name: Path(self.wheel.root) / "lib" / name for name in names}
        else:
            found = closure(self.folder / EXECUTABLE, self._find_library)
        for name, path in found.items():
            shutil.copyfile(path, self.folder / name)
        loader = self._loader_name()
        return tuple(sorted(name for name in found if name != loader))

    def _find_library(self, name: str) -> Path | None:
        own = Path(self.wheel.root) / "lib" / name
        if own.is_file():
            return own
        return system_library(self.tools.compiler, name) if self.plan.portable_runner else None

    def _loader_name(self) -> str | None:
        if self.target.system != "linux":
            return None
        interpreter = read_needs(self.folder / EXECUTABLE).interpreter
        return Path(interpreter).name if interpreter else None

    def _copy_loader(self) -> str:
        name = self._loader_name()
        if name is None:
            raise BuildError(
                "the runner names no loader, so it cannot be made portable", log=self.log
            )
        shutil.copyfile(system_library(self.tools.compiler, name), self.folder / name)
        (self.folder / name).chmod(0o755)
        return name

    def _list_kernels(self, loader: str | None) -> Kernels:
        command = self._start_command(loader)
        if command:
            return ask_runner(command, self.log)
        return read_libraries(sorted(self.folder.glob("libexecutorch*.so")))

    def _start_command(self, loader: str | None) -> tuple[str, ...] | None:
        """How the runner starts on this machine; None when it cannot."""
        executable = str(self.folder / EXECUTABLE)
        folder = str(self.folder)
        own_loader = (f"{folder}/{loader}", "--library-path", folder) if loader else ()
        if self.target.name == self.host.name:
            return (*own_loader, executable)
        qemu = process.which(f"qemu-{self.target.arch}-static") or process.which(
            f"qemu-{self.target.arch}"
        )
        if qemu is None or sys.platform != "linux" or self.target.system != "linux":
            return None
        return (str(qemu), *(own_loader or self._system_loader()), executable)

    def _system_loader(self) -> tuple[str, ...]:
        """The cross compiler's loader with the folders of its libraries."""
        loader = system_library(self.tools.compiler, str(self._loader_name()))
        runtime = system_library(self.tools.compiler, "libstdc++.so.6")
        folders = dict.fromkeys(str(p) for p in (self.folder, loader.parent, runtime.parent))
        return str(loader), "--library-path", ":".join(folders)


def _library_name(component: str, suffix: str) -> str:
    return f"libexecutorch{'' if component == 'runtime' else f'_{component}'}.{suffix}"
