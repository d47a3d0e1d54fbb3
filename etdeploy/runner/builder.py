"""One build of a runner: compiles it, collects its libraries, and lists its kernels."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from etdeploy.backends.registry import code_of
from etdeploy.backends.values import Workstation
from etdeploy.cache.folder import CacheKind
from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import BuildError, require
from etdeploy.core.files.basic import disk_full_error, find_disk_full
from etdeploy.core.hashing import digest_json, sha256_file
from etdeploy.core.values import Progress, silent
from etdeploy.custom_ops.kernels import (
    CustomOps,
    find_kernel_error,
    names_to_find,
    write_registration,
)
from etdeploy.plan.components import built_backends, linked_backends
from etdeploy.plan.derive import require_feasible
from etdeploy.plan.model import Provider, RuntimePlan
from etdeploy.provider.checkout import Libraries
from etdeploy.runner.build_tree import BuildTree, open_tree
from etdeploy.runner.compile import (
    EXECUTABLE,
    Kernels,
    ToolError,
    ask_runner,
    compile_runner,
    configure,
    find_names,
    read_built,
    read_libraries,
    source_definitions,
    wheel_definitions,
)
from etdeploy.runner.fingerprint import (
    compiler_digest,
    rules_digest,
    runner_fingerprint,
    runner_sources,
    toolchain_for,
)
from etdeploy.runner.kernel_sources import (
    aten_operators,
    needed_sources,
    require_kleidiai,
)
from etdeploy.runner.missing import closure, find_system_library, read_dependencies
from etdeploy.runner.model import BuiltRunner
from etdeploy.runner.toolchains import BuildTools, Toolchain, find_cache, find_programs, find_tools
from etdeploy.targets.platforms import Target, find_emulator, find_target, host_target

RUNNER_INFO = "runner.json"


def tree_definitions(
    plan: RuntimePlan,
    tree: BuildTree,
    tools: BuildTools,
    toolchain: Toolchain,
    program: Path | None,
    custom_ops: CustomOps | None,
) -> dict[str, str]:
    """Return all of cmake's definitions for a build of ExecuTorch in a tree.

    The tree gets a link to the program whose operators are selected, and the registration of the
    recipe's own kernels. Raises BuildError where a backend's part is not on this machine.
    """
    selected = tree.select(program, plan.selection) if plan.selection and program else None
    definitions = source_definitions(plan, tree.checkout, tools, toolchain.definitions, selected)
    for backend in built_backends(plan):
        found = backend.definitions(Workstation.this(), definitions)
        # What the recipe sets by hand stays.
        left = {n for n in found if definitions.get(n, f"${n}") == f"${n}"}
        definitions |= {n: v for n, v in found.items() if n in left}
    files = selected and needed_sources(tree.checkout.folder, aten_operators(selected))
    if files:
        definitions["ETDEPLOY_KERNEL_FILES"] = ";".join(files)
    return definitions | own_kernels(custom_ops, tree.root)


def own_kernels(custom_ops: CustomOps | None, folder: Path) -> dict[str, str]:
    """Return cmake's definitions of the recipe's own kernels, registered by a file in `folder`."""
    if custom_ops is None:
        return {}
    write_registration(custom_ops, folder)
    return custom_ops.definitions(folder)


@dataclass(frozen=True)
class Builder:
    """One build into an empty folder of the cache; the attributes are those of `build_runner`."""

    plan: RuntimePlan
    given: Libraries
    target: Target
    host: Target
    workspace: Workspace
    folder: Path
    progress: Progress
    log: Path | None
    program: Path | None
    custom_ops: CustomOps | None

    def build(self) -> None:
        """Fills the folder."""
        with self._compiled() as (built, compiler):
            executable = self.folder / EXECUTABLE
            shutil.copyfile(built, executable)
            executable.chmod(0o755)
            self.progress("collecting the runner's libraries")
            libraries = self._copy_libraries(built.parent, compiler)
        loader = self._copy_loader(compiler) if self.plan.portable_runner else None
        self.progress("listing the runner's operators")
        kernels = self._list_kernels(loader, compiler, libraries)
        BuiltRunner(
            path="",
            executable=EXECUTABLE,
            libraries=libraries,
            loader=loader,
            target=self.target.name,
            sha256=sha256_file(executable),
            operators=kernels.operators,
            backends=kernels.backends,
            executorch_version=self.given.version,
            listed_by=kernels.listed_by,
            size_bytes=executable.stat().st_size,
            provider=Provider(str(self.plan.provider.value)),
            revision=self.given.checkout.revision if self.given.checkout else None,
            options={option.name: option.value or "" for option in self.plan.options},
        ).save(self.folder / RUNNER_INFO)

    @contextmanager
    def _compiled(self) -> Iterator[tuple[Path, Path]]:
        """The executable in its build folder, and the compiler that made it."""
        if self.given.wheel:
            tools = require(find_tools(self.target, self.host))
            with tempfile.TemporaryDirectory(prefix="etdeploy-build-") as temporary:
                definitions = wheel_definitions(self.plan, self.given.wheel, tools)
                folder = Path(temporary)
                definitions |= own_kernels(self.custom_ops, folder)
                configure(
                    definitions, tools, runner_sources(), folder / "cmake", self.progress, self.log
                )
                yield self._compile(tools, folder / "cmake"), tools.compiler
            return
        if self.given.checkout is None:
            raise ValueError("neither wheel nor checkout is given")
        toolchain = require(toolchain_for(self.plan, self.target, self.host, self.given.checkout))
        tools = BuildTools(*require(find_programs()), toolchain.compiler, None)
        if not toolchain.caches:
            tools = replace(tools, ccache=find_cache())
        compiler = compiler_digest(self.host, self.target)
        with open_tree(
            self.workspace, self.target.name, self.given.checkout, compiler, self.progress
        ) as tree:
            definitions = tree_definitions(
                self.plan, tree, tools, toolchain, self.program, self.custom_ops
            )
            if not tree.is_configured(definitions):
                require_kleidiai(self.plan, tree.checkout.folder, tree.cmake)
                tree.forget()
                configure(
                    definitions, tools, runner_sources(), tree.cmake, self.progress, self.log,
                    fresh=True,
                )  # fmt: skip
                tree.remember(definitions)
            yield self._compile(tools, tree.cmake), toolchain.compiler

    def _compile(self, tools: BuildTools, folder: Path) -> Path:
        try:
            return compile_runner(tools, folder, self.progress, self.log)
        except ToolError as failure:
            found = find_kernel_error(self.custom_ops, failure.lines) if self.custom_ops else None
            if found is None:
                raise
            raise BuildError(
                # The compiler's own line starts with the place.
                failure.message.replace(f"{found.place}: ", "", 1),
                place=found.place,
                remedy=found.remedy or "Fix the kernel there.",
                log=self.log,
            ) from failure

    def _copy_libraries(self, built: Path, compiler: Path) -> tuple[str, ...]:
        if self.target.system == "macos" and self.given.wheel:
            # Its linker keeps every given library, and the system has the others.
            names = {_library_name(c, "dylib") for c in self.plan.component_names}
            found = {name: Path(self.given.wheel.root) / "lib" / name for name in names}
        elif self.target.system in ("macos", "ios"):
            found = {}  # linked statically
        else:
            found = closure(
                self.folder / EXECUTABLE, lambda name: self._find_library(name, built, compiler)
            )
        for name, path in found.items():
            shutil.copyfile(path, self.folder / name)
        loader = self._loader_name()
        return tuple(sorted(name for name in found if name != loader))

    def _find_library(self, name: str, built: Path, compiler: Path) -> Path | None:
        if self.given.wheel:
            own = Path(self.given.wheel.root) / "lib" / name
            if own.is_file():
                return own
        else:
            # A backend may be a shared library of the build, as QNN's is.
            found = next((path for path in built.rglob(name) if path.is_file()), None)
            if found:
                return found
        return find_system_library(compiler, name) if self.plan.portable_runner else None

    def _loader_name(self) -> str | None:
        if self.target.system != "linux":
            return None
        interpreter = read_dependencies(self.folder / EXECUTABLE).interpreter
        return Path(interpreter).name if interpreter else None

    def _copy_loader(self, compiler: Path) -> str:
        name = self._loader_name()
        if name is None:
            raise BuildError("the runner names no loader, so it cannot be portable", log=self.log)
        shutil.copyfile(find_system_library(compiler, name), self.folder / name)
        (self.folder / name).chmod(0o755)
        return name

    def _list_kernels(
        self, loader: str | None, compiler: Path, libraries: tuple[str, ...]
    ) -> Kernels:
        command = self._start_command(loader, compiler)
        if command:
            return ask_runner(command, self.log)
        own = self._own_operators()
        if self.given.wheel:
            found = read_libraries(sorted(self.folder.glob("libexecutorch*.so")))
        else:
            # The C library and the like, of a portable runner, register nothing.
            built = [self.folder / name for name in libraries]
            found = read_built(self.folder / EXECUTABLE, built)
        return replace(found, operators=tuple(sorted({*found.operators, *own})))

    def _own_operators(self) -> frozenset[str]:
        """The operators of the recipe's own kernels, in a runner that cannot be started here."""
        if self.custom_ops and self.custom_ops.operators is not None:
            return self.custom_ops.operators
        names = names_to_find(self.custom_ops, self.program)
        return find_names((self.folder / EXECUTABLE, *self.folder.glob("*.so*")), names)

    def _start_command(self, loader: str | None, compiler: Path) -> tuple[str, ...] | None:
        """The command that starts the runner on this machine; None if it cannot start here."""
        executable = str(self.folder / EXECUTABLE)
        folder = str(self.folder)
        own_loader = (f"{folder}/{loader}", "--library-path", folder) if loader else ()
        if self.target.name == self.host.name:
            return (*own_loader, executable)
        qemu = find_emulator(self.target.arch)
        if qemu is None or sys.platform != "linux" or self.target.system != "linux":
            return None
        if self._loader_name() is None:  # a static runner
            return (str(qemu), executable)
        return (str(qemu), *(own_loader or self._system_loader(compiler)), executable)

    def _system_loader(self, compiler: Path) -> tuple[str, ...]:
        """The cross compiler's loader with the folders of its libraries."""
        loader = find_system_library(compiler, str(self._loader_name()))
        runtime = find_system_library(compiler, "libstdc++.so.6")
        folders = dict.fromkeys(str(p) for p in (self.folder, loader.parent, runtime.parent))
        return str(loader), "--library-path", ":".join(folders)


def _library_name(component: str, suffix: str) -> str:
    return f"libexecutorch{'' if component == 'runtime' else f'_{component}'}.{suffix}"


def build_runner(
    plan: RuntimePlan,
    libraries: Libraries,
    workspace: Workspace,
    progress: Progress = silent,
    log: Path | None = None,
    program: Path | None = None,
    custom_ops: CustomOps | None = None,
) -> BuiltRunner:
    """Builds the runner of a plan, or takes an intact one from the cache.

    Args:
        plan: What to build; plans with the same requirements share one runner.
        libraries: ExecuTorch for `plan.build_target`.
        workspace: The cache.
        progress: Reports each step, and the completed fraction of the compilation.
        log: Receives every command with its output.
        program: Its operators are selected, for a plan with a selection, and searched for, for
            kernels that register themselves.
        custom_ops: The recipe's own kernels, if the plan has them.

    Raises:
        BuildError: The plan has blockers, a tool is missing, or the build failed; the message has
            the compiler's first error.
        Interrupted: The run was stopped; the cache has no partial entry, and the next build from
            source continues from there.
    """
    require_feasible(plan)
    host = host_target()
    target = find_target(plan.build_target)
    # A runner that cannot be started here is searched for the names that the program calls.
    names = names_to_find(custom_ops, program)
    entry = workspace.entry(CacheKind.RUNNERS, runner_key(plan, libraries, host, names))

    def build(folder: Path) -> None:
        Builder(
            plan, libraries, target, host, workspace, folder, progress, log, program, custom_ops
        ).build()

    try:
        # A description in another format is of another release.
        workspace.obtain(
            entry, build, progress,
            lambda folder: BuiltRunner.load_or_none(folder / RUNNER_INFO) is not None,
        )  # fmt: skip
    except OSError as error:
        full = find_disk_full(error)
        if full is None:
            raise
        raise disk_full_error(full, workspace.root, log, "storing the runner") from error
    stored = BuiltRunner.load(entry.path / RUNNER_INFO)
    return stored.model_copy(update={"path": str(entry.path)})


def runner_key(
    plan: RuntimePlan, libraries: Libraries, host: Target, names: Sequence[str] = ()
) -> str:
    """The cache key: equal for everything that gives the same runner.

    `names` are operators that are searched for in it.
    """
    target = find_target(plan.build_target)
    parts = [
        plan.build_digest,
        libraries.fingerprint,
        runner_fingerprint(host, target),
        # Etdeploy's code decides what is linked, collected beside the runner, and listed for it.
        rules_digest(),
        *names,
    ]
    keys = [backend.build_key(Workstation.this()) for backend in built_backends(plan)]
    codes = [code_of(backend) for backend in linked_backends(plan)]
    return digest_json([*parts, *filter(None, [*keys, *codes])])
