"""Whether a QNN program runs on a target or a phone, and which of Qualcomm's libraries go there.

The libraries are those that ExecuTorch's backends/qualcomm/export_utils.py pushes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from etdeploy.backends.qnn.compiler import find_compile_kit, rejects
from etdeploy.backends.qnn.deploy import (
    DeployKit,
    absent_libraries,
    find_deploy_kit,
    name_an_aar,
    required_libraries,
)
from etdeploy.backends.qnn.facts import (
    QUALCOMM_SOCS,
    dotted,
    is_newer,
    is_newer_patch,
    short_version,
    soc_of,
    version_numbers,
)
from etdeploy.backends.qnn.sdk import SDK_VARIABLE, for_soc, how_to_get, newer_sdk, too_old
from etdeploy.backends.schemes import DEFAULT, OTHER_BACKEND
from etdeploy.backends.values import CompiledFor, ExtraFile, Extras, Partitions, Workstation
from etdeploy.core.errors import Blocker, BuildError
from etdeploy.targets.ndk import soc_name
from etdeploy.targets.platforms import Target


def target_blockers(
    target: Target, build_target: Target, other: str, *, simulated: bool
) -> Iterator[Blocker]:
    """Qualcomm's libraries, which the delegate loads and which are deployed to phones alone."""
    emulator = htp_blocker(target)
    if emulator:
        yield emulator
    elif build_target.system == "linux" and not simulated:
        # A plan for a phone uses the sources unless the recipe forbids it.
        phone = (
            "--device android   (without a phone: --target android-arm64)\n"
            "or simulate it on Linux x86_64: --device host, without --target"
        )
        if target.system == "android":
            phone = "--set runtime.provider=source"
        musl = (
            " They are built for Android's C library and for glibc: a static runner with musl, "
            f"as for {build_target.name}, cannot load either."
            if build_target.static
            else ""
        )
        yield Blocker(
            what="Qualcomm's libraries",
            why=f"QnnBackend loads Qualcomm's own libraries where it runs.{musl} etdeploy deploys "
            "them to Android phones only, and uses those of this machine on linux-x86_64 only",
            remedy=f"Build for the phone: {phone}\n{other}",
        )


def htp_blocker(target: Target) -> Blocker | None:
    """What prevents every QNN program from running on a target; None when nothing does."""
    if target.system != "android" or target.arch == "aarch64":
        return None
    return Blocker(
        what="Qualcomm's HTP",
        why=f"QNN runs on the HTP of a Snapdragon SoC, and {target.name} is an emulator, or a "
        "device with another maker's processor, neither of which has one",
        remedy=f"Use a phone with a Snapdragon SoC: --device android\n{OTHER_BACKEND}",
    )


def soc_blocker(wanted: str | None, device: str, reported: str | None) -> Blocker | None:
    """What prevents a program for the recipe's SoC from running on a device, or None."""
    has, is_named = soc_name(reported, None, QUALCOMM_SOCS), wanted not in (None, "auto")
    if has is None:
        if is_named:
            return None
        return Blocker(
            what="SoC",
            why=f"a QNN program is compiled for one SoC, and {device} does not report its own",
            remedy="Name it: --set export.soc=SM8650   (for one that is not Qualcomm's: "
            f"--set export.backend={DEFAULT})",
        )
    if has not in QUALCOMM_SOCS:
        return Blocker(
            what=f"SoC {has}",
            why=f"{device} reports the SoC {has}, which QNN does not compile for: it is not "
            "Qualcomm's, or ExecuTorch does not know it",
            remedy=OTHER_BACKEND,
        )
    if not is_named or soc_name(wanted, None, QUALCOMM_SOCS) == has:
        return None
    return Blocker(
        what=f"SoC {wanted}",
        why=f"export.soc is {wanted}, and {device} has {has}: a QNN program runs only on the SoC "
        "that it was compiled for",
        remedy=f"--set export.soc={has}   or ask the device: --set export.soc=auto",
    )


def program_blockers(
    compiled: Iterable[CompiledFor], device: str, reported: str | None, *, finished: bool = False
) -> Iterator[Blocker]:
    """What prevents a compiled program from running on a device.

    Nothing if the device does not report its SoC.
    """
    has = QUALCOMM_SOCS.get(soc_name(reported, None, QUALCOMM_SOCS) or "")
    for number in sorted({c.soc_id for c in compiled}) if has else ():
        if has and number != has.qnn_id:
            soc = soc_of(number)
            name = f"{soc.name} (HTP {soc.htp_arch})" if soc else f"QNN's SoC number {number}"
            yield Blocker(
                what="the program's SoC",
                why=f"the program was compiled for {name}, and {device} has {has.name} (HTP "
                f"{has.htp_arch}): a QNN program runs only on the SoC that it was compiled for",
                remedy=f"{_export_for(has.name, finished=finished)}\nor name a device that has "
                f"{soc.name if soc else 'that SoC'}: etdeploy devices",
            )


def compiled_version(compiled: Iterable[CompiledFor], noted: str | None) -> str | None:
    """The version of the SDK that compiled a program; the newest where partitions differ."""
    shown = [c.sdk_version for c in compiled if c.sdk_version]
    return noted or max(shown, key=version_numbers, default=None)


def _export_for(soc: str, *, finished: bool) -> str:
    if finished:
        return f"Export the model again for {soc}, and name the new file in model.program,"
    return f"Export the model for this phone: --set export.backend=qnn --set export.soc={soc}"


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
        yield for_soc(problem, soc)
    if compiled_with and is_newer(compiled_with, kit.version):
        wanted = short_version(compiled_with)
        least = dotted(version_numbers(compiled_with)[:2])
        yield Blocker(
            what=f"QNN {least}",
            why=f"the program was compiled with QNN {wanted}, and the libraries in {kit.place}, "
            f"which go to the phone, are of {kit.number}: an older QNN cannot load what a newer "
            "one compiled",
            remedy=f"{how_to_get(least)}\n{name_an_aar(least)}{_export_with(kit)}",
        )


def _export_with(kit: DeployKit) -> str:
    """The remedy that keeps the libraries, unless nothing of their version compiles."""
    if kit.version is None or rejects(kit.version):
        return ""
    return (
        f"\nor export the program again with {kit.number}: export {SDK_VARIABLE}=/path/to/its/SDK"
    )


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
    compiled = partitions.compiled
    known = soc or _soc_of(compiled)
    compiled_with = compiled_version(compiled, None)
    if not compiled and not partitions.finished:
        compiler = find_compile_kit(station, known)
        compiled_with = None if isinstance(compiler, Blocker) else compiler.version
    kit = _kit_for(station, known, compiled_with)
    if isinstance(kit, Blocker):
        yield kit
    elif known:
        yield from kit_blockers(kit, known, compiled_with)


def _kit_for(
    station: Workstation, soc: str | None, compiled_with: str | None
) -> DeployKit | Blocker:
    """The libraries for phones; a blocker names those that the SoC needs, and their version."""
    least = dotted(version_numbers(compiled_with)[:2]) if compiled_with else newer_sdk(soc)
    kit, facts = find_deploy_kit(station, least), QUALCOMM_SOCS.get(soc or "")
    if facts is None or not isinstance(kit, Blocker):
        return kit
    why = f"{kit.why}; {facts.name} needs {', '.join(required_libraries(facts))}"
    return for_soc(replace(kit, why=why), facts.name)


def program_extras(station: Workstation, soc: str | None, partitions: Partitions) -> Extras:
    """Qualcomm's libraries for the bundle of a program."""
    compiled = partitions.compiled
    if not compiled:
        return Extras()
    known = soc or _soc_of(compiled) or ""
    compiled_with = compiled_version(compiled, partitions.versions.get("qnn"))
    return qnn_extras(_kit_for(station, known, compiled_with), known, compiled_with)


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
