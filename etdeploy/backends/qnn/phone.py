"""Whether a QNN program runs on a target or a phone, by what phone, recipe and program say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from etdeploy.backends.qnn.socs import QUALCOMM_SOCS, soc_of
from etdeploy.backends.qnn.versions import version_numbers
from etdeploy.backends.schemes import DEFAULT, OTHER_BACKEND
from etdeploy.backends.values import CompiledFor
from etdeploy.core.errors import Blocker
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
        yield Blocker(
            what="Qualcomm's libraries",
            why="QnnBackend loads Qualcomm's own libraries where it runs. etdeploy deploys them to "
            "Android phones only, and uses those of this machine on linux-x86_64 only",
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
    has = soc_name(reported, None, QUALCOMM_SOCS)
    if has is None:
        return None if _named(wanted) else _says_nothing(device)
    if has not in QUALCOMM_SOCS:
        return Blocker(
            what=f"SoC {has}",
            why=f"{device} reports the SoC {has}, which QNN does not compile for: it is not "
            "Qualcomm's, or ExecuTorch does not know it",
            remedy=OTHER_BACKEND,
        )
    if not _named(wanted) or soc_name(wanted, None, QUALCOMM_SOCS) == has:
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


def _named(wanted: str | None) -> bool:
    return wanted not in (None, "auto")


def _says_nothing(device: str) -> Blocker:
    return Blocker(
        what="SoC",
        why=f"a QNN program is compiled for one SoC, and {device} does not report its own",
        remedy="Name it: --set export.soc=SM8650   (for one that is not Qualcomm's: "
        f"--set export.backend={DEFAULT})",
    )
