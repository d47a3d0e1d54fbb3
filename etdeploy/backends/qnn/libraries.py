"""Which libraries of the QNN SDK a phone and an export need, and whether an SDK has them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from etdeploy.backends.qnn.sdk import VARIABLE, QnnSdk, how_to_get
from etdeploy.backends.qnn.socs import QualcommSoc
from etdeploy.backends.qnn.versions import (
    ADAPTOR_SDK,
    LEAST_SDK,
    PINNED_VERSION,
    dotted,
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


def too_old(sdk: QnnSdk, soc: QualcommSoc) -> Blocker | None:
    """The blocker for an SDK that is too old for the SoC; None if it is new enough."""
    least = soc.least_sdk
    if version_numbers(sdk.version)[:2] >= least:
        return None
    wanted = dotted(least)
    why = (
        f"{soc.name} (HTP {soc.htp_arch}) needs the QNN SDK {wanted} or newer, and the one in "
        f"{sdk.root} is {sdk.number}"
    )
    if version_numbers(PINNED_VERSION)[:2] < least:
        why += f"; {PINNED_VERSION}, which ExecuTorch downloads, is too old as well"
    return Blocker(f"QNN {wanted}", why, how_to_get(wanted))


def too_old_to_export(sdk: QnnSdk) -> Blocker | None:
    """The blocker for an SDK that is older than ExecuTorch's adaptor; None if it is not."""
    if version_numbers(sdk.version)[:2] >= ADAPTOR_SDK:
        return None
    wanted = dotted(ADAPTOR_SDK)
    return Blocker(
        f"QNN {wanted}",
        f"ExecuTorch compiles with the QNN SDK {wanted} or newer, whatever the SoC, and the one in "
        f"{sdk.root} is {sdk.number}",
        how_to_get(wanted),
    )


def absent_to_export(sdk: QnnSdk) -> Blocker | None:
    """The blocker for an SDK without a library that an export loads; None if it has all."""
    absent = [path for path in sdk.compiling_libraries if not path.is_file()]
    return _not_whole(sdk, "libraries that compile", absent) if absent else None


def absent_libraries(sdk: QnnSdk, soc: QualcommSoc) -> Blocker | None:
    """The blocker for an SDK without a library for the SoC; None if it has all."""
    absent = [path for path in required_libraries(sdk, soc) if not path.is_file()]
    if not absent:
        return None
    arch = soc.htp_arch
    what = f"libraries for HTP {arch}"
    if arch in sdk.htp_archs or version_numbers(sdk.version)[:2] >= LEAST_SDK[arch]:
        return _not_whole(sdk, what, absent)
    wanted = dotted(LEAST_SDK[arch])
    return Blocker(
        what,
        f"{soc.name} has HTP {arch}, for which the QNN SDK {sdk.number} in {sdk.root} has no "
        f"libraries (it has those for {', '.join(sdk.htp_archs)}); {wanted} has them",
        how_to_get(wanted),
    )


def _not_whole(sdk: QnnSdk, what: str, absent: Iterable[Path]) -> Blocker:
    names = " and no ".join(str(path.relative_to(sdk.root)) for path in absent)
    return Blocker(
        what,
        f"the QNN SDK {sdk.number} in {sdk.root} is incomplete: there is no {names}",
        f"Unpack all of the SDK again, or use another:\nexport {VARIABLE}=/path/to/qairt/VERSION",
    )
