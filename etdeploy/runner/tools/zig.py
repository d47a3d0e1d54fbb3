"""The cross compiler for linux-aarch64-musl: zig, from the PyPI package `ziglang`.

A build expects separate programs that behave like Clang's; zig is one program with subcommands. So
a small program for each is written into a folder of the cache.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from etdeploy.core.commands import pip_command
from etdeploy.core.errors import Blocker
from etdeploy.core.files.basic import write_if_changed
from etdeploy.core.hashing import digest_json, sha256_file
from etdeploy.core.resources import resource_folder

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
    """An installed zig.

    Attributes:
        path: The program.
        version: Of the package, which is zig's.
    """

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

    Args:
        zig: What they start.
        folder: In the cache, for these programs and zig's own cache.

    Returns:
        The C++ compiler; the other programs are beside it.
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
