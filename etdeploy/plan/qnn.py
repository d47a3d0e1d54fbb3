"""Whether a QNN program runs on a phone, by what phone, recipe and program say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from etdeploy.backends.payload import CompiledFor
from etdeploy.core.blocker import Blocker
from etdeploy.targets.android import QUALCOMM_SOCS, soc_name, soc_of
from etdeploy.targets.qnn_versions import version_numbers

_OTHER_BACKEND = "Lower to another backend: --set export.backend=xnnpack"


def soc_blocker(wanted: str | None, device: str, reported: str | None) -> Blocker | None:
    """What prevents a program for the recipe's SoC from running on a device, or None.

    Args:
        wanted: `export.soc` of the recipe; None stands for `auto`.
        device: Its name, as on the command line.
        reported: The SoC that it reports; None if it reports none.
    """
    has = soc_name(reported, None)
    if has is None:
        return None if _named(wanted) else _says_nothing(device)
    if has not in QUALCOMM_SOCS:
        return Blocker(
            what=f"SoC {has}",
            why=f"{device} reports the SoC {has}, which QNN does not compile for: it is not "
            "Qualcomm's, or ExecuTorch does not know it",
            remedy=_OTHER_BACKEND,
        )
    if not _named(wanted) or soc_name(wanted, None) == has:
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

    Args:
        compiled: What the program says (`Program.compiled_for`).
        device: Its name.
        reported: The SoC that it reports.
        finished: Whether the program was given as a file, so that no recipe can change it.
    """
    has = QUALCOMM_SOCS.get(soc_name(reported, None) or "")
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
    """The version of the SDK that compiled a program; the newest where partitions differ.

    Args:
        compiled: What the program says.
        noted: What the export recorded (`Provenance.versions["qnn"]`).
    """
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
        "--set export.backend=xnnpack)",
    )
