"""Which of Qualcomm's libraries a phone needs, and whether there are those."""

from __future__ import annotations

from etdeploy.backends.qnn.kits.aar import Aar
from etdeploy.backends.qnn.kits.deploy import NAME_AN_AAR, DeployKit
from etdeploy.backends.qnn.kits.sdk import VARIABLE, how_to_get
from etdeploy.backends.qnn.socs import QualcommSoc
from etdeploy.backends.qnn.versions import (
    LEAST_SDK,
    PINNED_VERSION,
    dotted,
    short_version,
    version_numbers,
)
from etdeploy.core.errors import Blocker


def required_libraries(soc: QualcommSoc) -> tuple[str, ...]:
    """The names of the libraries that a program for the HTP of an SoC loads on Android.

    `libqnn_executorch_backend.so`, which loads them, is ExecuTorch's and comes with the runner.
    """
    arch = soc.htp_arch
    return (
        "libQnnHtp.so",
        f"libQnnHtp{arch}Stub.so",
        "libQnnHtpPrepare.so",
        "libQnnSystem.so",
        f"libQnnHtp{arch}Skel.so",
    )


def too_old(version: str | None, place: str, soc: QualcommSoc) -> Blocker | None:
    """The blocker for a QNN that is too old for the SoC; None if it is new enough, or not known.

    Args:
        version: Of QNN; None if it is not known.
        place: The package, folder or archive that has it.
        soc: What is compiled for or run on.
    """
    least = soc.least_sdk
    if version is None or version_numbers(version)[:2] >= least:
        return None
    wanted = dotted(least)
    why = (
        f"{soc.name} (HTP {soc.htp_arch}) needs QNN {wanted} or newer, and the one in {place} is "
        f"{short_version(version)}"
    )
    if version_numbers(PINNED_VERSION)[:2] < least:
        why += f"; {PINNED_VERSION}, which ExecuTorch downloads, is too old as well"
    return Blocker(f"QNN {wanted}", why, how_to_get(wanted))


def absent_libraries(kit: DeployKit, soc: QualcommSoc) -> Blocker | None:
    """The blocker for a kit without a library for the SoC; None if it has all."""
    absent = [name for name in required_libraries(soc) if name not in kit.libraries]
    if not absent:
        return None
    arch = soc.htp_arch
    what = f"libraries for HTP {arch}"
    is_new = kit.version is None or version_numbers(kit.version)[:2] >= LEAST_SDK[arch]
    if arch in kit.htp_archs or (is_new and not isinstance(kit.origin, Aar)):
        names = " and no ".join(kit.where(name, arch) for name in absent)
        return Blocker(what, f"{kit} is incomplete: there is no {names}", _whole_again(kit))
    wanted = dotted(LEAST_SDK[arch])
    known = ", ".join(kit.htp_archs)
    others = f"it has those for {known}" if known else "it has none for any HTP"
    newer = "" if is_new else f"; {wanted} has them"
    return Blocker(
        what,
        f"{soc.name} has HTP {arch}, for which {kit} has no libraries ({others}){newer}",
        f"{how_to_get(wanted)}\n{NAME_AN_AAR}",
    )


def _whole_again(kit: DeployKit) -> str:
    if isinstance(kit.origin, Aar):
        return f"Take another archive, or an SDK:\n{how_to_get()}\n{NAME_AN_AAR}"
    return f"Unpack all of the SDK again, or use another:\nexport {VARIABLE}=/path/to/qairt/VERSION"
