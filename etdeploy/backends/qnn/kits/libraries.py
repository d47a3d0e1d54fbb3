"""Which libraries of the QNN SDK a phone needs, and whether an SDK has them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from etdeploy.backends.qnn.kits.sdk import VARIABLE, QnnSdk, how_to_get
from etdeploy.backends.qnn.socs import QualcommSoc
from etdeploy.backends.qnn.versions import (
    LEAST_SDK,
    PINNED_VERSION,
    dotted,
    short_version,
    version_numbers,
)
from etdeploy.core.blocker import Blocker


def required_libraries(sdk: QnnSdk, soc: QualcommSoc) -> tuple[Path, ...]:
    """The libraries of the SDK that a program for the HTP of an SoC loads on Android.

    `libqnn_executorch_backend.so`, which loads them, is ExecuTorch's and comes with the runner.
    """
    arch = soc.htp_arch
    here = ("libQnnHtp.so", f"libQnnHtp{arch}Stub.so", "libQnnHtpPrepare.so", "libQnnSystem.so")
    return (
        *(sdk.android_libraries / name for name in here),
        sdk.skels(arch) / f"libQnnHtp{arch}Skel.so",
    )


def too_old(version: str, from_: str, soc: QualcommSoc) -> Blocker | None:
    """The blocker for a QNN that is too old for the SoC; None if it is new enough.

    Args:
        version: Of QNN.
        from_: The package or folder that has it.
        soc: What is compiled for or run on.
    """
    least = soc.least_sdk
    if version_numbers(version)[:2] >= least:
        return None
    wanted = dotted(least)
    why = (
        f"{soc.name} (HTP {soc.htp_arch}) needs QNN {wanted} or newer, and the one in {from_} is "
        f"{short_version(version)}"
    )
    if version_numbers(PINNED_VERSION)[:2] < least:
        why += f"; {PINNED_VERSION}, which ExecuTorch downloads, is too old as well"
    return Blocker(f"QNN {wanted}", why, how_to_get(wanted))


def absent_libraries(sdk: QnnSdk, soc: QualcommSoc) -> Blocker | None:
    """The blocker for an SDK without a library for the SoC; None if it has all."""
    absent = [path for path in required_libraries(sdk, soc) if not path.is_file()]
    if not absent:
        return None
    arch = soc.htp_arch
    what = f"libraries for HTP {arch}"
    if arch in sdk.htp_archs or version_numbers(sdk.version)[:2] >= LEAST_SDK[arch]:
        return not_whole(sdk, what, absent)
    wanted = dotted(LEAST_SDK[arch])
    return Blocker(
        what,
        f"{soc.name} has HTP {arch}, for which the QNN SDK {sdk.number} in {sdk.root} has no "
        f"libraries (it has those for {', '.join(sdk.htp_archs)}); {wanted} has them",
        how_to_get(wanted),
    )


def not_whole(sdk: QnnSdk, what: str, absent: Iterable[Path]) -> Blocker:
    """The blocker for an SDK of which files are missing."""
    names = " and no ".join(str(path.relative_to(sdk.root)) for path in absent)
    return Blocker(
        what,
        f"the QNN SDK {sdk.number} in {sdk.root} is incomplete: there is no {names}",
        f"Unpack all of the SDK again, or use another:\nexport {VARIABLE}=/path/to/qairt/VERSION",
    )
