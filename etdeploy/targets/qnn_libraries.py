"""Which libraries of the QNN SDK a phone needs, and whether an SDK has them."""

from __future__ import annotations

from pathlib import Path

from etdeploy.targets.android import QualcommSoc, least_sdk_of
from etdeploy.targets.missing import Missing
from etdeploy.targets.qnn_sdk import PINNED_VERSION, VARIABLE, QnnSdk, how_to_get, version_numbers


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


def too_old(sdk: QnnSdk, soc: QualcommSoc) -> Missing | None:
    """What to say of an SDK that is older than the SoC; None when it is new enough."""
    least = soc.least_sdk
    if least is None or version_numbers(sdk.version)[:2] >= least:
        return None
    wanted = ".".join(map(str, least))
    why = (
        f"{soc.name} (HTP {soc.htp_arch}) needs the QNN SDK {wanted} or newer, and the one in "
        f"{sdk.root} is {sdk.number}"
    )
    if version_numbers(PINNED_VERSION)[:2] < least:
        why += f"; {PINNED_VERSION}, which ExecuTorch downloads, is too old as well"
    return Missing(f"QNN {wanted}", why, how_to_get(wanted))


def absent_libraries(sdk: QnnSdk, soc: QualcommSoc) -> Missing | None:
    """What to say of an SDK that lacks a library for the SoC; None when it has them all."""
    absent = [path for path in required_libraries(sdk, soc) if not path.is_file()]
    if not absent:
        return None
    arch = soc.htp_arch
    what = f"libraries for HTP {arch}"
    least = least_sdk_of(arch)
    if arch in sdk.htp_archs or least is None or version_numbers(sdk.version)[:2] >= least:
        names = " and no ".join(str(path.relative_to(sdk.root)) for path in absent)
        return Missing(
            what,
            f"the QNN SDK {sdk.number} in {sdk.root} is not whole: there is no {names}",
            f"Unpack all of the SDK again, or take another:\n"
            f"export {VARIABLE}=/path/to/qairt/VERSION",
        )
    wanted = ".".join(map(str, least))
    return Missing(
        what,
        f"{soc.name} has HTP {arch}, for which the QNN SDK {sdk.number} in {sdk.root} has no "
        f"libraries (it has those for {', '.join(sdk.htp_archs)}); {wanted} has them",
        how_to_get(wanted),
    )
