"""Which of Qualcomm's libraries go to a phone, and whether they fit it and the program.

They are those that ExecuTorch's backends/qualcomm/export_utils.py pushes.
"""

from __future__ import annotations

from collections.abc import Iterator

from etdeploy.backends.qnn.kits.compiler import (
    absent_libraries,
    find_compile_kit,
    rejects,
    required_libraries,
    too_old,
)
from etdeploy.backends.qnn.kits.deploy import NAME_AN_AAR, DeployKit, find_deploy_kit
from etdeploy.backends.qnn.kits.sdk import VARIABLE, how_to_get
from etdeploy.backends.qnn.phone import compiled_version
from etdeploy.backends.qnn.socs import QUALCOMM_SOCS
from etdeploy.backends.qnn.versions import (
    dotted,
    is_newer,
    is_newer_patch,
    short_version,
    version_numbers,
)
from etdeploy.backends.values import CompiledFor, ExtraFile, Extras, Partitions, Workstation
from etdeploy.core.errors import Blocker, BuildError

# fastrpc does not split ADSP_LIBRARY_PATH at ':' (qualcomm/fastrpc 379), so one folder has all. The
# runner needs LD_LIBRARY_PATH although its libraries are beside it: $ORIGIN in its run path is the
# folder that its symbolic link leads to.
_FOLDER_VARIABLES = ("LD_LIBRARY_PATH", "ADSP_LIBRARY_PATH")


def kit_blockers(
    kit: DeployKit | Blocker, soc: str, compiled_with: str | None = None
) -> Iterator[Blocker]:
    """What is wrong with a deploy kit for a phone and a program."""
    if isinstance(kit, Blocker):
        yield kit
        return
    facts = QUALCOMM_SOCS.get(soc)
    if facts is None:
        yield Blocker(
            what=f"SoC {soc}",
            why=f"QNN does not compile for {soc}, as far as ExecuTorch knows",
            remedy=f"Name one of: {', '.join(QUALCOMM_SOCS)}",
        )
        return
    problem = too_old(kit.version, str(kit.place), facts) or absent_libraries(kit, facts)
    if problem:
        yield problem
    if compiled_with and is_newer(compiled_with, kit.version):
        wanted = short_version(compiled_with)
        least = dotted(version_numbers(compiled_with)[:2])
        yield Blocker(
            what=f"QNN {least}",
            why=f"the program was compiled with QNN {wanted}, and the libraries in {kit.place}, "
            f"which go to the phone, are of {kit.number}: an older QNN cannot load what a newer "
            "one compiled",
            remedy=f"{how_to_get(least)}\n{NAME_AN_AAR}{_export_with(kit)}",
        )


def _export_with(kit: DeployKit) -> str:
    """The remedy that keeps the libraries, unless nothing of their version compiles."""
    if kit.version is None or rejects(kit.version):
        return ""
    return f"\nor export the program again with {kit.number}: export {VARIABLE}=/path/to/its/SDK"


def kit_note(kit: DeployKit | Blocker, compiled_with: str | None) -> str | None:
    """What to know of a deploy kit that is not refused; None if there is nothing."""
    if isinstance(kit, Blocker):
        return None
    if compiled_with is None:
        return (
            "the program does not say which QNN compiled it, so it is not known whether "
            f"{kit.number}, which goes to the phone, can load it: an older QNN cannot load what a "
            "newer one compiled"
        )
    compiler = f"QNN {short_version(compiled_with)}"
    if kit.version is None:
        return (
            f"{kit.place} does not say which QNN its libraries are of: older ones than {compiler} "
            "cannot load the program"
        )
    if is_newer_patch(compiled_with, kit.version):
        return (
            f"{compiler} compiled the program, and {kit.number} goes to the phone: they differ in "
            "the patch number only, which was not tried"
        )
    return None


def qnn_extras(kit: DeployKit | Blocker, soc: str, compiled_with: str | None = None) -> Extras:
    """The additional files in the bundle of a QNN program."""
    if isinstance(kit, Blocker):
        raise BuildError(kit.why, remedy=kit.remedy)
    for blocker in kit_blockers(kit, soc, compiled_with):
        raise BuildError(blocker.why, remedy=blocker.remedy)
    libraries = kit.paths(required_libraries(QUALCOMM_SOCS[soc]))
    return Extras(
        files=tuple(ExtraFile(source=str(path), name=path.name) for path in libraries),
        folder_variables=_FOLDER_VARIABLES,
    )


def missing_libraries(
    station: Workstation, soc: str | None, partitions: Partitions
) -> Iterator[Blocker]:
    """What a bundle needs and the libraries for phones here do not provide."""
    kit, compiled = find_deploy_kit(station), partitions.compiled
    known = soc or _soc_of(compiled)
    if isinstance(kit, Blocker):
        yield kit
    elif known:
        compiled_with = compiled_version(compiled, None)
        if not compiled and not partitions.finished:
            compiler = find_compile_kit(station, known)
            compiled_with = None if isinstance(compiler, Blocker) else compiler.version
        yield from kit_blockers(kit, known, compiled_with)


def program_extras(station: Workstation, soc: str | None, partitions: Partitions) -> Extras:
    """Qualcomm's libraries for the bundle of a program."""
    compiled = partitions.compiled
    if not compiled:
        return Extras()
    return qnn_extras(
        find_deploy_kit(station),
        soc or _soc_of(compiled) or "",
        compiled_version(compiled, partitions.versions.get("qnn")),
    )


def program_notes(station: Workstation, partitions: Partitions) -> Iterator[str]:
    """What to know of the libraries for the bundle of a program, as sentences."""
    if partitions.compiled:
        compiled = compiled_version(partitions.compiled, partitions.versions.get("qnn"))
        note = kit_note(find_deploy_kit(station), compiled)
        if note:
            yield note


def _soc_of(compiled: tuple[CompiledFor, ...]) -> str | None:
    if not compiled:
        return None
    return compiled[0].soc or f"number {compiled[0].soc_id}"
