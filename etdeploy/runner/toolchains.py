"""Finds what a build needs on this machine: cmake, ninja, compilers, ccache, and toolchain files.

What depends on the target alone is in the plan (`etdeploy.plan.requirements`).
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from etdeploy.cache.folder import CacheKind
from etdeploy.cache.workspace import Workspace
from etdeploy.core.commands import pip_command, quoted, system_command
from etdeploy.core.errors import Blocker, joined
from etdeploy.core.files.basic import resource_folder, write_if_changed
from etdeploy.core.hashing import digest_json, sha256_file
from etdeploy.core.processes import process
from etdeploy.core.values import ReasonedChoice
from etdeploy.plan.requirements import MUSL, host_blocker
from etdeploy.targets import ndk, platforms
from etdeploy.targets.platforms import Target

# Older versions write $ORIGIN incorrectly for the wheel's targets.
CMAKE_MINIMUM = (3, 28)


@dataclass(frozen=True)
class Tool:
    """A program that a build uses; `path` is None if it is missing or too old."""

    name: str
    path: Path | None
    version: str | None
    needed_for: str
    remedy: str
    required: bool = True


@dataclass(frozen=True)
class BuildTools:
    """Paths of the programs of a build; `ccache` is None if it is not installed."""

    cmake: Path
    ninja: Path
    compiler: Path
    ccache: Path | None


def probe_tools(target: Target, host: Target) -> list[Tool]:
    """Looks for all tools of a build for `target` on `host`, and starts each for its version."""
    compiler = find_compiler(target, host)
    return [
        _cmake(),
        _tool(
            "ninja", _first(_candidates("ninja")), "building runners", pip_command("ninja>=1.11")
        ),
        _tool(
            _compiler_names(target, host)[0] if target.name != host.name else "C++ compiler",
            compiler,
            f"building runners for {target.name}",
            _compiler_remedy(target, host),
        ),
        _tool("ccache", process.which("ccache"), "faster builds", system_command("ccache"), False),
    ]


def find_tools(target: Target, host: Target) -> BuildTools | Blocker:
    """The tools of a build, or why one of them is missing."""
    programs = find_programs()
    if isinstance(programs, Blocker):
        return programs
    compiler = find_compiler(target, host)
    if compiler is None:
        chosen = os.environ.get("CXX") if target.name == host.name else None
        return Blocker(
            "build tools",
            f"the compiler {chosen!r} that CXX names is not installed"
            if chosen
            else f"there is no C++ compiler for {target.name}: "
            f"{' or '.join(_compiler_names(target, host))} is not installed",
            remedy="unset CXX" if chosen else _compiler_remedy(target, host),
        )
    return BuildTools(*programs, compiler, find_cache())


def find_programs() -> tuple[Path, Path] | Blocker:
    """Paths of cmake and ninja, or which of them is missing or too old."""
    cmake = _cmake()
    ninja = _first(_candidates("ninja"))
    if cmake.path is None:
        found = f"{cmake.version} is installed" if cmake.version else "it is not installed"
        wanted = ".".join(map(str, CMAKE_MINIMUM))
        why = f"cmake {wanted} or newer is needed; {found}"
        return Blocker("cmake and ninja", why, cmake.remedy)
    if ninja is None:
        return Blocker("cmake and ninja", "ninja is not installed", pip_command("ninja>=1.11"))
    return cmake.path, ninja


def find_cache() -> Path | None:
    """A compiler cache: ccache, or else sccache."""
    return process.which("ccache") or process.which("sccache")


def find_compiler(target: Target, host: Target) -> Path | None:
    """The C++ compiler for `target`: CXX or the system's if native, else the cross compiler."""
    return _first(map(process.which, _compiler_names(target, host)))


def _compiler_names(target: Target, host: Target) -> tuple[str, ...]:
    if target.name != host.name:
        name = target.compiler or f"{target.name}-g++"
        # The second is the name of Homebrew's toolchain.
        return name, name.replace("-linux-gnu-", "-unknown-linux-gnu-")
    chosen = shlex.split(os.environ.get("CXX", ""))
    return (chosen[0],) if chosen else ("c++", "g++", "clang++")


def _compiler_remedy(target: Target, host: Target) -> str:
    if target.name == host.name:
        return "xcode-select --install" if host.system == "macos" else "apt-get install g++"
    if target.system == "macos":
        return "Build on a Mac."
    if host.system == "macos":
        tap = "brew tap messense/macos-cross-toolchains"
        return f"{tap} && brew install {target.arch}-unknown-linux-gnu"
    return f"apt-get install g++-{target.arch.replace('_', '-')}-linux-gnu"


def _cmake() -> Tool:
    """The first cmake that is new enough; otherwise the first one found, without its path."""
    versions = []
    for path in _candidates("cmake"):
        version = _reported_version(path)
        if version and _numbers(version) >= CMAKE_MINIMUM:
            return Tool("cmake", path, version, "building runners", pip_command("cmake>=3.28"))
        versions.append(version)
    old = next((v for v in versions if v), None)
    return Tool("cmake", None, old, "building runners", pip_command("cmake>=3.28"))


def _candidates(name: str) -> Iterator[Path]:
    """The program of the PyPI package of that name, then that beside Python, then that in PATH."""
    from importlib.util import find_spec

    spec = find_spec(name)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        # The package's script would start another Python to find this.
        yield from _existing(Path(folder) / "data" / "bin" / name)
    yield from _existing(Path(sys.executable).parent / name)
    found = process.which(name)
    if found:
        yield found


def _existing(path: Path) -> Iterator[Path]:
    if os.access(path, os.X_OK) and path.is_file():
        yield path


def _first(paths: Iterator[Path] | Iterator[Path | None]) -> Path | None:
    return next((path for path in paths if path), None)


def _tool(
    name: str, path: Path | None, needed_for: str, remedy: str, required: bool = True
) -> Tool:
    return Tool(name, path, _reported_version(path) if path else None, needed_for, remedy, required)


def _reported_version(path: Path) -> str | None:
    """The first number that looks like a version in what `--version` prints."""
    try:
        outcome = process.run(process.Request((str(path), "--version"), timeout_s=20))
    except OSError:
        return None
    found = re.search(r"\d+(\.\d+)+", outcome.stdout) if outcome.ok else None
    return found[0] if found else None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


_NO_XCODE = Blocker(
    "Xcode", "clang++ is not installed (it is not in PATH)", "xcode-select --install"
)


@dataclass(frozen=True)
class Toolchain:
    """A toolchain on this machine.

    `definitions` are for cmake, beyond those of the plan, with paths of this machine. `identity` is
    texts that change whenever the compiler does. A compiler that `caches` needs no ccache.
    """

    definitions: tuple[ReasonedChoice, ...]
    compiler: Path
    identity: tuple[str, ...]
    caches: bool = False


@dataclass(frozen=True)
class Machine:
    """Where to look for a toolchain; `cache` is for programs that act as a compiler."""

    host: Target
    environ: Mapping[str, str]
    home: Path
    cache: Path

    @classmethod
    def this(cls, host: Target, environ: Mapping[str, str]) -> Machine:
        return cls(host, environ, Path.home(), Workspace.default().folder(CacheKind.ZIG))


def find_toolchain(
    target: Target, machine: Machine, android_api: int, checkout: Path | None
) -> Toolchain | Blocker:
    """Return the toolchain of a build from source, or all that is not installed for it.

    Nothing is started. ExecuTorch's checkout has the toolchain file for Apple's systems.
    """
    impossible = host_blocker(target, machine.host)
    if impossible:
        return impossible
    if target.system == "android":
        return _android(machine, android_api)
    if target.system in ("ios", "macos"):
        return _apple(target, checkout)
    if target.name == MUSL:
        return _musl(target, machine)
    return _gnu(target, machine)


def _android(machine: Machine, android_api: int) -> Toolchain | Blocker:
    found = ndk.find_ndk(machine.environ, machine.home)
    if isinstance(found, Blocker):
        return found
    compiler = found.compiler(machine.host.system)
    if not compiler.is_file():
        why = f"the NDK in {found.path} has no compiler for {machine.host.name}: no {compiler}"
        return Blocker(ndk.NAME, why, ndk.install_command(found.from_))
    newest = found.newest_api()
    if newest is not None and android_api > newest:
        return Blocker(
            what="runtime.android_api",
            why=f"the NDK {found.release} builds for API levels up to {newest}, not {android_api}",
            remedy=f"--set runtime.android_api={newest}",
        )
    clang = found.compiler_version(machine.host.system) or "of unknown version"
    identity = (f"NDK {found.version}", f"clang {clang}", *_stamp(compiler))
    reason = f"{found.from_} has NDK {found.release} ({found.version})"
    return Toolchain((_file_definition(found.toolchain_file, reason),), compiler, identity)


def _apple(target: Target, checkout: Path | None) -> Toolchain | Blocker:
    if checkout is None:
        why = f"the toolchain file for {target.name} is a part of ExecuTorch's checkout"
        remedy = "Name one: --set runtime.source=/path/to/executorch"
        return Blocker(what="ios-cmake", why=why, remedy=remedy)
    file = checkout / platforms.APPLE_TOOLCHAIN_FILE
    missing = []
    if not file.is_file():
        remedy = (
            f"git -C {quoted(checkout)} submodule update --init -- {platforms.APPLE_SUBMODULE}"
            if (checkout / ".git").exists()
            else f"Unpack https://github.com/leetal/ios-cmake as {quoted(file.parent)}"
        )
        missing.append(Blocker(what="ios-cmake", why=f"{file} is missing", remedy=remedy))
    # It identifies the Xcode; ios-cmake itself finds the compiler of the SDK.
    compiler = process.which("clang++")
    if compiler is None:
        missing.append(_NO_XCODE)
    if compiler is None or missing:
        return joined(missing) or _NO_XCODE
    named = _file_definition(file, "ios-cmake, as the checkout has it")
    return Toolchain((named,), compiler, _stamp(compiler))


def _musl(target: Target, machine: Machine) -> Toolchain | Blocker:
    zig = find_zig()
    if isinstance(zig, Blocker):
        return zig
    compiler = write_compilers(zig, machine.cache)
    named = _compiler_definition(compiler, f"it starts zig {zig.version}")
    identity = (f"zig {zig.version}", *_stamp(zig.path))
    return Toolchain((_own_file(target), named), compiler, identity, caches=True)


def _gnu(target: Target, machine: Machine) -> Toolchain | Blocker:
    native = target.name == machine.host.name
    compiler = find_compiler(target, machine.host)
    if compiler is None:
        package = "g++" if native else f"g++-{target.arch.replace('_', '-')}-linux-gnu"
        why = f"there is no C++ compiler for {target.name} on this machine"
        return Blocker("C++ compiler", why, f"apt-get install {package}")
    named = _compiler_definition(
        compiler, "the machine's own" if native else "the cross compiler in PATH"
    )
    files = () if native else (_own_file(target),)
    return Toolchain((*files, named), compiler, _stamp(compiler))


def _own_file(target: Target) -> ReasonedChoice:
    path = resource_folder("toolchains") / str(target.toolchain)
    return _file_definition(path, f"etdeploy's own for {target.name}")


def _file_definition(path: Path, reason: str) -> ReasonedChoice:
    return ReasonedChoice(name="CMAKE_TOOLCHAIN_FILE", value=str(path), reason=reason)


def _compiler_definition(path: Path, reason: str) -> ReasonedChoice:
    return ReasonedChoice(name="CMAKE_CXX_COMPILER", value=str(path), reason=reason)


def _stamp(program: Path) -> tuple[str, ...]:
    """Path, size and date of a program."""
    resolved = program.resolve()
    info = resolved.stat()
    return str(resolved), str(info.st_size), str(info.st_mtime_ns)


PACKAGE = "ziglang"
PREFIX = "aarch64-linux-musl-"
# Known to build ExecuTorch 1.4.1. Zig has no stable release yet: minor versions may change options.
TESTED = "0.17"
_REQUIREMENT = f"{PACKAGE}=={TESTED}.*"
# Program by subcommand; the first two go through the driver that translates their options.
_COMPILERS = {"clang": "cc", "clang++": "c++"}
_TOOLS = {"ar": "ar", "ranlib": "ranlib"}


@dataclass(frozen=True)
class Zig:
    """An installed zig; the package has its version."""

    path: Path
    version: str


def find_zig() -> Zig | Blocker:
    """Zig from the package in this Python's environment; nothing is started."""
    remedy = pip_command(_REQUIREMENT)
    spec = importlib.util.find_spec(PACKAGE)
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    path = next((f / "zig" for f in folders if (f / "zig").is_file()), None)
    if path is None:
        return Blocker(
            "zig", "building for linux-aarch64-musl requires zig, which is not installed", remedy
        )
    version = importlib.metadata.version(PACKAGE)
    if _minor(version) < _minor(TESTED):
        return Blocker("zig", f"zig {version} is too old: {TESTED} is needed", remedy)
    return Zig(path, version)


def write_compilers(zig: Zig, folder: Path) -> Path:
    """Writes the programs that act as a compiler and its tools; equal ones are not rewritten.

    Zig caches everything that it compiles, 1 GB for a build of ExecuTorch; that cache is beside
    these programs unless ZIG_GLOBAL_CACHE_DIR names another folder.
    """
    driver = resource_folder("toolchains") / "zig_compiler.py"
    # Part of the programs' text, so that a compiler cache that reads it distinguishes zigs.
    about = f"zig {zig.version}, driver {sha256_file(driver)[:16]}"
    python = (sys.executable, "-I", "-S", str(driver))
    starts = {
        **{name: (*python, str(zig.path), command) for name, command in _COMPILERS.items()},
        **{name: (str(zig.path), command) for name, command in _TOOLS.items()},
    }
    cache = shlex.quote(str(folder / "cache"))
    texts = {
        f"{PREFIX}{name}": f"#!/bin/sh\n# {about}\n"
        f'test -n "$ZIG_GLOBAL_CACHE_DIR" || export ZIG_GLOBAL_CACHE_DIR={cache}\n'
        f'exec {shlex.join(start)} "$@"\n'
        for name, start in starts.items()
    }
    here = folder / digest_json(texts)[:16]
    for name, text in texts.items():
        write_if_changed(here / name, text)
        (here / name).chmod(0o755)
    return here / f"{PREFIX}clang++"


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in version.split(".")[:2])
