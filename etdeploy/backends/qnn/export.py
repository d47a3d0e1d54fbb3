"""What an export for QNN needs: Qualcomm's compiler, and a SoC that it compiles for."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator

from etdeploy.backends.qnn.kits.compiler import compile_problem, find_compile_kit
from etdeploy.backends.qnn.kits.loading import loading_problem
from etdeploy.backends.qnn.kits.package import runs_here
from etdeploy.backends.qnn.socs import QUALCOMM_SOCS
from etdeploy.backends.qnn.versions import ADAPTOR_SDK, dotted
from etdeploy.backends.values import Workstation
from etdeploy.core.errors import Blocker
from etdeploy.targets.ndk import soc_name

_NEEDS = f"the backend qnn needs Qualcomm's compiler (QNN {dotted(ADAPTOR_SDK)} or newer)"


def export_blockers(soc: str | None, station: Workstation) -> Iterator[Blocker]:
    """What prevents an export, the most general first.

    Args:
        soc: The SoC to compile for; None or `auto` while it is not known.
        station: This machine.
    """
    if not runs_here():
        yield Blocker(
            "Linux x86_64",
            f"{_NEEDS} on Linux x86_64; this is {sys.platform} {platform.machine()}",
            "Export on a Linux x86_64 machine, and use that program with\n"
            "model: {program: model.pte}",
        )
        return
    kit = find_compile_kit(station, soc)
    if isinstance(kit, Blocker):
        yield Blocker(kit.what, f"{_NEEDS}; {kit.why}", kit.remedy)
        return
    unknown = _soc_blocker(soc)
    if unknown:
        yield unknown
        return
    problem = compile_problem(kit, QUALCOMM_SOCS[str(soc)]) or loading_problem(kit, station.environ)
    if problem:
        yield problem


def _soc_blocker(name: str | None) -> Blocker | None:
    """A SoC that is not known yet, or that QNN does not list; a variant's own name is told."""
    if name in (None, "auto"):
        return Blocker(
            "SoC",
            "a qnn program is compiled for one SoC, and no device has reported which",
            "Name a device with --device android, or the SoC with --set export.soc=SM8650",
        )
    if name in QUALCOMM_SOCS:
        return None
    near = soc_name(name, None, QUALCOMM_SOCS)
    return Blocker(
        f"SoC {name}",
        f"export.soc: QNN does not compile for the SoC {name!r}, as far as ExecuTorch knows",
        f"--set export.soc={near}"
        if near in QUALCOMM_SOCS
        else f"Name one of: {', '.join(QUALCOMM_SOCS)}",
    )
