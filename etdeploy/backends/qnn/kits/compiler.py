"""A compiler of Qualcomm's on this machine, and whether ExecuTorch can compile with it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from etdeploy.backends.qnn.kits.libraries import too_old
from etdeploy.backends.qnn.kits.package import QNN_VERSION, executorch_version, get_package
from etdeploy.backends.qnn.kits.sdk import (
    COMPILER,
    HOST_LIBRARIES,
    READER,
    how_to_get,
    unpack_again,
)
from etdeploy.backends.qnn.socs import QualcommSoc
from etdeploy.backends.qnn.versions import (
    ADAPTOR_SDK,
    PINNED_VERSION,
    REJECTING,
    dotted,
    short_version,
    version_numbers,
)
from etdeploy.core.blocker import Blocker


@dataclass(frozen=True)
class CompileKit:
    """Qualcomm's compiler and simulator for Linux x86_64.

    Attributes:
        version: Of QNN, for example 2.49.40.260810104044.
        from_: Where it is from, for messages: `onnxruntime-qnn 2.5.0`, or an SDK's folder.
        libraries: The folder with libQnnHtp.so and libQnnSystem.so.
        root: The folder for QNN_SDK_ROOT. For the package one in the cache, which
            `compile_environment` makes.
        license: The text of the licence that comes with the package; None for an SDK, whose user
            has accepted it to get the SDK.
    """

    version: str
    from_: str
    libraries: Path
    root: Path
    license: Path | None = None

    @property
    def number(self) -> str:
        """The short version, 2.49.40."""
        return short_version(self.version)


def compile_problem(kit: CompileKit, soc: QualcommSoc | None = None) -> Blocker | None:
    """What is wrong with a kit for an export; None if nothing is.

    Args:
        kit: The result of `find_compile_kit`.
        soc: What is compiled for; None for what concerns all.
    """
    return (
        (too_old(kit.version, kit.from_, soc) if soc else None)
        or _too_old_to_export(kit)
        or _rejecting(kit)
        or _absent_to_export(kit)
    )


def _too_old_to_export(kit: CompileKit) -> Blocker | None:
    """The blocker for a kit that is older than ExecuTorch's adaptor; None if it is not."""
    if version_numbers(kit.version)[:2] >= ADAPTOR_SDK:
        return None
    wanted = dotted(ADAPTOR_SDK)
    return Blocker(
        f"QNN {wanted}",
        f"ExecuTorch compiles with QNN {wanted} or newer, whatever the SoC, and the one in "
        f"{kit.from_} is {kit.number}",
        how_to_get(wanted),
    )


def _rejecting(kit: CompileKit) -> Blocker | None:
    """The blocker for a QNN that ExecuTorch's adaptor cannot configure; None if it can."""
    if not rejects(kit.version):
        return None
    return Blocker(
        f"QNN {PINNED_VERSION}",
        f"the libraries of QNN {kit.number} in {kit.from_} reject the configuration of "
        "ExecuTorch's adaptor (error 14001), whose layout they changed",
        f"Compile with QNN {short_version(QNN_VERSION)} of the package, whose programs the SDK's "
        f"libraries load if they are newer:\n{get_package()}\n"
        f"or take an SDK that ExecuTorch is tested with:\n{how_to_get()}",
    )


def rejects(version: str) -> bool:
    """Whether compiling is known to fail.

    One's own build of ExecuTorch, whose version has a suffix, may have other headers.
    """
    if version_numbers(version)[:2] not in REJECTING:
        return False
    executorch = executorch_version()
    return executorch is None or re.fullmatch(r"[\d.]+", executorch) is not None


def _absent_to_export(kit: CompileKit) -> Blocker | None:
    """The blocker for an SDK without a library that an export loads; None if it has all."""
    absent = [name for name in (COMPILER, READER) if not (kit.libraries / name).is_file()]
    if not absent:
        return None
    names = " and no ".join(f"{HOST_LIBRARIES}/{name}" for name in absent)
    return Blocker(
        "libraries that compile",
        f"the QNN SDK {kit.number} in {kit.root} is incomplete: there is no {names}",
        unpack_again(),
    )
