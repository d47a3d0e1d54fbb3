"""Finds the tools of a build: cmake, ninja, a C++ compiler, and ccache if it is installed."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from etdeploy.core.commands import pip_command, system_command
from etdeploy.core.errors import Blocker
from etdeploy.core.processes import process
from etdeploy.targets.platforms import Target

# Older versions write $ORIGIN incorrectly for the wheel's targets.
CMAKE_MINIMUM = (3, 28)


@dataclass(frozen=True)
class Tool:
    """A program that a build uses.

    Attributes:
        name: As people call it.
        path: Of the program; None if it is missing or too old.
        version: As it reports.
        needed_for: What it is used for.
        remedy: The command that installs it.
        required: Whether a build for the target fails without it.
    """

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
        version = _version(path)
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
    return Tool(name, path, _version(path) if path else None, needed_for, remedy, required)


def _version(path: Path) -> str | None:
    """The first number that looks like a version in what `--version` prints."""
    try:
        outcome = process.run(process.Request((str(path), "--version"), timeout_s=20))
    except OSError:
        return None
    found = re.search(r"\d+(\.\d+)+", outcome.stdout) if outcome.ok else None
    return found[0] if found else None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
