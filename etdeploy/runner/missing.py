"""Tools, sources and SDKs that a plan needs and this machine lacks, each with a remedy.

They are not needed for a plan; a run without them is refused before it exports anything.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from etdeploy.backends.registry import backend_of
from etdeploy.backends.schemes import DEFAULT
from etdeploy.backends.values import Workstation
from etdeploy.cache.workspace import Workspace
from etdeploy.core.cancel import checkpoint
from etdeploy.core.commands import pip_command, system_command
from etdeploy.core.errors import Blocker, BuildError, CheckError, refuse
from etdeploy.core.processes import process
from etdeploy.plan.components import (
    KERNELS_ETDEPLOY,
    backend_component,
    built_backends,
    operator_component,
)
from etdeploy.plan.model import Provider, RuntimePlan
from etdeploy.program.model import Program
from etdeploy.provider.checkout import (
    REPOSITORY,
    SOURCE_VARIABLE,
    Checkout,
    missing_submodules,
    needed_submodules,
    submodule_remedy,
)
from etdeploy.runner.build_tree import CMAKE, tree_folder
from etdeploy.runner.fingerprint import compiler_digest, toolchain_for
from etdeploy.runner.kernel_sources import downloads_kleidiai, kleidiai_problem
from etdeploy.runner.model import BuiltRunner
from etdeploy.runner.toolchains import find_programs, find_tools
from etdeploy.targets.platforms import Target, find_target

_GENERATING = ("EXECUTORCH_BUILD_PORTABLE_OPS", "EXECUTORCH_BUILD_KERNELS_QUANTIZED")


def find_missing(
    plan: RuntimePlan,
    host: Target,
    checkout: Checkout | BuildError | None,
    for_app: bool = False,
) -> tuple[Blocker, ...]:
    """Everything that would stop a build of the plan on this machine.

    Args:
        plan: What is to be built.
        host: This machine.
        checkout: For the provider `source`: what was found, or why the named one cannot be used.
        for_app: Whether it is the plan of an app, which no other runner can replace.
    """
    found = [*_tools(plan, host, checkout, for_app=for_app)]
    if plan.provider.value == Provider.SOURCE:
        found += [
            *_sources(plan, checkout),
            *_python(plan),
            *_backends(plan),
            *_kleidiai(plan, host, checkout),
        ]
    return tuple(found)


def require_present(missing: tuple[Blocker, ...]) -> None:
    """Raises if something is missing that a run does not fetch itself.

    Raises:
        BuildError: Names everything that is missing.
    """
    refuse(m for m in missing if not m.fetched)


def list_submodules(plan: RuntimePlan) -> tuple[str, ...]:
    """The submodules that a build of the plan compiles."""
    options = {option.name: option.value for option in plan.options}
    system = find_target(plan.build_target).system
    return needed_submodules(options, apple=system in ("ios", "macos"))


def _tools(
    plan: RuntimePlan, host: Target, checkout: Checkout | BuildError | None, *, for_app: bool
) -> Iterator[Blocker]:
    target = find_target(plan.build_target)
    if plan.provider.value == Provider.WHEEL:
        looks: tuple[object, ...] = (find_tools(target, host),)
    else:
        usable = checkout if isinstance(checkout, Checkout) else None
        toolchain = toolchain_for(plan, target, host, usable, for_app=for_app)
        looks = (find_programs(), toolchain)
    yield from (found for found in looks if isinstance(found, Blocker))


def _backends(plan: RuntimePlan) -> Iterator[Blocker]:
    options = {option.name: option.value for option in plan.options}
    for backend in built_backends(plan):
        yield from backend.build_blockers(Workstation.this(), options)


def _kleidiai(
    plan: RuntimePlan, host: Target, checkout: Checkout | BuildError | None
) -> Iterator[Blocker]:
    if not isinstance(checkout, Checkout) or not downloads_kleidiai(plan):
        return
    target = find_target(plan.build_target)
    compiler = compiler_digest(host, target)
    tree = tree_folder(Workspace.default(), target.name, checkout, compiler)
    found = kleidiai_problem(plan, checkout.folder, tree / CMAKE)
    if found:
        yield found


def _sources(plan: RuntimePlan, checkout: Checkout | BuildError | None) -> Iterator[Blocker]:
    if isinstance(checkout, BuildError):
        yield _from_error("ExecuTorch's sources", checkout)
    elif checkout is None:
        version = plan.executorch_version
        yield Blocker(
            what="ExecuTorch's sources",
            why=f"neither runtime.source nor {SOURCE_VARIABLE} names a checkout, so a run clones "
            f"{REPOSITORY} v{version}",
            remedy=f"Or name your own checkout: export {SOURCE_VARIABLE}=/path/to/executorch",
            fetched=True,
        )
        if process.which("git") is None:
            yield Blocker(
                what="git",
                why="ExecuTorch's sources are fetched with git, which is not installed",
                remedy=system_command("git"),
            )
    else:
        names = missing_submodules(checkout.folder, list_submodules(plan))
        if names:
            yield Blocker(
                what="submodules",
                why=f"the checkout {checkout.path} does not have submodules that the "
                f"build compiles: {', '.join(names)}",
                remedy=submodule_remedy(checkout, names),
                fetched=checkout.origin == "cache",
            )


def _python(plan: RuntimePlan) -> Iterator[Blocker]:
    """Python packages that ExecuTorch's code generation and kernel selection import."""
    if not any(plan.option(name) == "ON" for name in _GENERATING):
        return
    absent = [name for name in ("torch", "executorch") if find_spec(name) is None]
    if absent:
        yield Blocker(
            what="Python packages",
            why=f"ExecuTorch generates code for its kernels with {' and '.join(absent)}, not "
            f"installed for {Path(sys.executable).name}",
            remedy=pip_command("etdeploy[export]"),
        )


def _from_error(what: str, error: BuildError) -> Blocker:
    return Blocker(what=what, why=error.message, remedy=error.remedy or "etdeploy doctor")


@dataclass(frozen=True)
class ElfDependencies:
    """What an ELF file requests: libraries by name, and its loader."""

    libraries: tuple[str, ...]
    interpreter: str | None


def read_dependencies(path: Path) -> ElfDependencies:
    """Reads DT_NEEDED and PT_INTERP of an executable or shared library."""
    from elftools.elf.dynamic import DynamicSection
    from elftools.elf.elffile import ELFFile
    from elftools.elf.segments import InterpSegment

    with path.open("rb") as stream:
        elf = ELFFile(stream)
        sections = [s for s in elf.iter_sections() if isinstance(s, DynamicSection)]
        libraries = [t.needed for s in sections for t in s.iter_tags("DT_NEEDED")]
        loaders = [s.get_interp_name() for s in elf.iter_segments() if isinstance(s, InterpSegment)]
    return ElfDependencies(tuple(libraries), loaders[0] if loaders else None)


def closure(executable: Path, find: Callable[[str], Path | None]) -> dict[str, Path]:
    """Every library that the executable needs, by its name; `find` returns None to omit one."""
    found: dict[str, Path] = {}
    waiting = [executable]
    while waiting:
        checkpoint()
        for name in read_dependencies(waiting.pop()).libraries:
            path = find(name) if name not in found else None
            if path:
                found[name] = path
                waiting.append(path)
    return found


def find_system_library(compiler: Path, name: str) -> Path:
    """The file that the compiler links for a library of its C or C++ runtime."""
    outcome = process.run(process.Request((str(compiler), f"-print-file-name={name}")))
    # Without a path it only repeats the name.
    path = Path(outcome.stdout.strip())
    if not outcome.ok or not path.is_absolute() or not path.is_file():
        raise BuildError(
            f"{compiler.name} cannot find {name}, which is deployed with a portable runner",
            remedy="Use GCC: export CXX=g++",
        )
    return path.resolve()


def check_program(
    program: Program, runner: BuiltRunner, *, finished: bool = False
) -> tuple[Blocker, ...]:
    """The backends and operators that the program uses and the runner does not have."""
    return (
        *_missing_backends(program, runner, finished=finished),
        *_missing_operators(program, runner, finished=finished),
    )


def require_runnable(
    program: Program, runner: BuiltRunner, *, finished: bool = False, noun: str = "the program"
) -> None:
    """Raises unless the runner can run the program, which messages call `noun`.

    Raises:
        CheckError: Names everything that is missing.
    """
    missing = check_program(program, runner, finished=finished)
    if missing:
        raise CheckError(
            f"the runner for {runner.target} does not have what {noun} uses:\n"
            + "\n".join(f"  {m.what}, {m.why}" for m in missing),
            remedy="\n".join(dict.fromkeys(m.remedy for m in missing)),
        )


def _missing_backends(
    program: Program, runner: BuiltRunner, *, finished: bool
) -> Iterator[Blocker]:
    for name in program.backend_ids:
        if name not in runner.backends:
            users = [
                m.name for m in program.methods if any(d.backend_id == name for d in m.delegates)
            ]
            remedy = _backend_remedy(name, runner.provider, finished=finished)
            yield Blocker(f"backend {name}", _used_by(users), remedy)


def _missing_operators(
    program: Program, runner: BuiltRunner, *, finished: bool
) -> Iterator[Blocker]:
    available = set(runner.operators)
    for name in program.operators:
        if name not in available:
            users = [m.name for m in program.methods if any(o.name == name for o in m.operators)]
            remedy = _operator_remedy(name, finished=finished)
            yield Blocker(f"operator {name}", _used_by(users), remedy)


def _used_by(methods: list[str]) -> str:
    return f"used by method{'' if len(methods) == 1 else 's'} {', '.join(methods)}"


_FINISHED = "export the model for another backend: the program is finished, and keeps its own"


def _backend_remedy(backend_id: str, provider: str, *, finished: bool) -> str:
    component = backend_component(backend_id)
    if component is None:
        known = backend_of(backend_id)
        if known and known.get:
            return known.get
        if finished:
            return f"No runtime of ExecuTorch has {backend_id}; {_FINISHED}."
        return f"Lower to a backend that ExecuTorch's runtime has: --set export.backend={DEFAULT}"
    other = _FINISHED if finished else f"lower to another backend: --set export.backend={DEFAULT}"
    if provider == Provider.SOURCE:
        return (
            f"The build should have had the component {component}. Build it again: etdeploy clean "
            f"builds runners\nor {other}"
        )
    return f"Link the component {component} (--set runtime.provider=source builds it), or {other}"


def _operator_remedy(name: str, *, finished: bool) -> str:
    component = operator_component(name)
    if component is None:
        namespace = name.split("::", 1)[0]
        return (
            f"Put the kernels of {namespace}:: into a folder of C++ sources, and register {name} "
            "there by exactly that name: --set runtime.custom_ops=path/to/kernels"
        )
    if component == KERNELS_ETDEPLOY:
        return f"This release of etdeploy has no {name}: export the program with it."
    other = "" if finished else " Another backend helps only if it takes this operator."
    return (
        f"ExecuTorch's component {component} has no {name}: replace it in the model, or compute it "
        f"outside of the program.{other}"
    )
