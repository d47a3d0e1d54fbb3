"""Qualcomm's simulator of the HTP, which is in the library that compiles on Linux x86_64.

It computes what the HTP would, for any SoC, and takes its own time for it. Its library is loaded
from where it is on this machine, and nothing of it is copied.
"""

from __future__ import annotations

from collections.abc import Iterator

from etdeploy.backends.qnn.compiler import CompileKit, compile_problem, find_compile_kit
from etdeploy.backends.qnn.diagnostics import SHARED_WEIGHTS
from etdeploy.backends.qnn.facts import is_newer, short_version
from etdeploy.backends.qnn.loading import library_environment
from etdeploy.backends.qnn.payload import SHARES_WEIGHTS
from etdeploy.backends.qnn.phone import compiled_version
from etdeploy.backends.qnn.sdk import for_soc
from etdeploy.backends.schemes import OTHER_BACKEND, OTHER_PROGRAM
from etdeploy.backends.values import (
    Destination,
    ExportRequest,
    Extras,
    Partitions,
    Simulated,
    Workstation,
)
from etdeploy.core.errors import Blocker, BuildError
from etdeploy.targets.platforms import Target


def simulates(target: Target) -> bool:
    """Whether programs are simulated on a target.

    Not with a portable runner: Qualcomm's libraries need the C library of this machine.
    """
    return target.name == "linux-x86_64"


def soc_blocker(wanted: str, where: Destination) -> Blocker | None:
    """What prevents a program for the recipe's SoC from running on a device with Linux."""
    if not where.is_here:
        return _elsewhere(where, OTHER_BACKEND)
    if wanted != "auto" or not simulates(where.target):
        return None
    return Blocker(
        what="SoC",
        why=f"export.soc is auto, which asks a phone; {where.device} simulates any SoC, and has "
        "none of its own",
        remedy="Name the SoC of the phone that you mean: --set export.soc=SM8650",
    )


def request_blocker(request: ExportRequest, methods: int) -> Blocker | None:
    """What will prevent a program from running in the simulator, before it is exported."""
    if methods > 1 and request.options.get("weight_sharing"):
        return _shared_weights(finished=False)
    return None


def device_blockers(partitions: Partitions, where: Destination) -> Iterator[Blocker]:
    """What prevents a compiled program from running on a device with Linux.

    Every one elsewhere, and here one whose methods share weights.
    """
    if not where.is_here:
        yield _elsewhere(where, OTHER_PROGRAM if partitions.finished else OTHER_BACKEND)
    elif partitions.methods > 1 and any(SHARES_WEIGHTS in c.settings for c in partitions.compiled):
        # With one method, where nothing is shared, such a program runs (QNN 2.49).
        yield _shared_weights(finished=partitions.finished)


def simulator_blockers(
    station: Workstation, soc: str | None, partitions: Partitions
) -> Iterator[Blocker]:
    """What a simulated run needs and this machine does not have."""
    kit = _kit(station, soc, partitions)
    if isinstance(kit, Blocker):
        yield for_soc(kit, soc)
        return
    problem = compile_problem(kit) or _too_new(partitions, kit)
    if problem:
        yield problem


def simulator_extras(station: Workstation, partitions: Partitions) -> Extras:
    """Where the runner finds the simulator."""
    for blocker in simulator_blockers(station, None, partitions):
        raise BuildError(blocker.why, remedy=blocker.remedy)
    kit = _kit(station, None, partitions)
    if isinstance(kit, Blocker):
        raise BuildError(kit.why, remedy=kit.remedy)
    return Extras(environment=library_environment(kit, station.environ))


def simulation(station: Workstation, partitions: Partitions) -> Simulated | None:
    """What simulates a program here; None without a simulator."""
    kit = _kit(station, None, partitions)
    if isinstance(kit, Blocker):
        return None
    socs = [compiled.soc for compiled in partitions.compiled if compiled.soc]
    return Simulated(
        backend="qnn", by=f"QNN {kit.number}", soc=", ".join(dict.fromkeys(socs)) or None
    )


def _kit(station: Workstation, soc: str | None, partitions: Partitions) -> CompileKit | Blocker:
    """The compiler that an export for the same SoC uses, so that it can load what that made."""
    compiled = next((c.soc for c in partitions.compiled), None)
    return find_compile_kit(station, compiled or soc)


def _too_new(partitions: Partitions, kit: CompileKit) -> Blocker | None:
    """A program of a newer QNN, which the simulator would not load (error 5000)."""
    made_by = compiled_version(partitions.compiled, partitions.versions.get("qnn"))
    if made_by is None or not is_newer(made_by, kit.version):
        return None
    return Blocker(
        what=f"QNN {short_version(made_by)}",
        why=f"the program was compiled with QNN {short_version(made_by)}, and the simulator in "
        f"{kit.from_} is of QNN {kit.number}: an older QNN cannot load what a newer one compiled",
        remedy=f"Export the model again with QNN {kit.number} or an older one, and name the new "
        "file in\nmodel.program\nor run it on a phone: --device android"
        if partitions.finished
        else "Export it again: etdeploy clean programs",
    )


def _shared_weights(*, finished: bool) -> Blocker:
    """The simulator's error 1000, before the run."""
    without = SHARED_WEIGHTS.program_remedy if finished else SHARED_WEIGHTS.remedy
    return Blocker(
        what="weight sharing",
        why="the program's methods share weights, and Qualcomm's simulator cannot load such a "
        "program",
        remedy=f"{without.rstrip('.')}\nor run it on a phone: --device android",
    )


def _elsewhere(where: Destination, other: str) -> Blocker:
    return Blocker(
        what=f"Qualcomm's HTP on {where.device}",
        why="QNN programs run on Android phones with a Snapdragon SoC and, simulated, on the Linux "
        f"x86_64 machine that etdeploy runs on. {where.device} is neither",
        remedy=f"Use a phone: --device android\nor the simulator: --device host\n{other}",
    )
