"""The shared libraries that are deployed with a runner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from etdeploy.core.cancel import checkpoint
from etdeploy.core.errors import BuildError
from etdeploy.core.processes import process


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
    """Every library that the executable needs, directly or through others, by its name.

    Args:
        executable: Of any architecture.
        find: Returns the file of a library by its name; None omits it and all that it needs.
    """
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


def system_library(compiler: Path, name: str) -> Path:
    """The file that the compiler links for a library of its C or C++ runtime.

    Raises:
        BuildError: The compiler does not know it.
    """
    outcome = process.run(process.Request((str(compiler), f"-print-file-name={name}")))
    # Without a path it only repeats the name.
    path = Path(outcome.stdout.strip())
    if not outcome.ok or not path.is_absolute() or not path.is_file():
        raise BuildError(
            f"{compiler.name} cannot find {name}, which is deployed with a portable runner",
            remedy="Use GCC: export CXX=g++",
        )
    return path.resolve()
