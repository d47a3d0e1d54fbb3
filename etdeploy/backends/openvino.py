"""OpenVINO: Intel's inference engine, on the CPU of Linux x86_64.

The delegate in ExecuTorch's wheel is a thin one: it loads OpenVINO's C library when it loads a
program, hands over the payload and asks for nothing else. So OpenVINO's own defaults decide what no
payload can say: in what precision it computes, and with how many threads. The facts here are those
of ExecuTorch 1.5.1 (backends/openvino/runtime) with OpenVINO 2025.4.1.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from etdeploy.backends.base import NEW_FILE, Backend
from etdeploy.backends.schemes import OTHER_BACKEND, OTHER_PROGRAM
from etdeploy.backends.values import (
    Destination,
    ExportRequest,
    Extras,
    Package,
    Partitions,
    PlannedRun,
    Workstation,
    tool_finding,
)
from etdeploy.core.commands import pip_command
from etdeploy.core.diagnostics import FailurePattern, FailureTable
from etdeploy.core.errors import Blocker, require
from etdeploy.core.values import DoctorCheck

_SUMS_OF_BYTES = ("avx512_vnni", "avx_vnni", "amx_int8")


def has_vnni(cpu_facts: str | None = None) -> bool:
    """Whether a processor adds products of bytes in 32 bits, as VNNI and AMX do.

    Without these instructions, OpenVINO adds two products of bytes in 16 bits, where they saturate
    if the weights use all 8 bits. `cpu_facts` is the text of /proc/cpuinfo.
    """
    if cpu_facts is None:
        try:
            cpu_facts = Path("/proc/cpuinfo").read_text()
        except OSError:
            return False
    return any(name in cpu_facts.split() for name in _SUMS_OF_BYTES)


EXTRA = "etdeploy[openvino]"
# ExecuTorch's wheel asks for these. A program of 2026.0 still runs in 2025.4, and one of 2025.1 to
# 2025.4 in any of them; 2025.4 does not load one of 2026.4, with which the delegate crashes.
PACKAGE = Package("openvino", "lowering to OpenVINO", EXTRA, ">=2025.1,<2026")

VARIABLE = "OPENVINO_LIB_PATH"
_LIBRARY = "libopenvino_c.so"
# What a run on the CPU loads besides: the C library's implementation, the reader of OpenVINO's own
# format, and the plug-in of the processor. They are looked for beside the C library's real file.
_BESIDE = (
    "libopenvino.so.*",
    "libopenvino_ir_frontend.so.*",
    "libopenvino_intel_cpu_plugin.so",
    "libtbb.so.*",
)


@dataclass(frozen=True)
class OpenVinoInstallation:
    """The OpenVINO beside etdeploy: the package's version, and the C library for the delegate."""

    version: str
    library: Path


def find_openvino() -> OpenVinoInstallation | Blocker:
    """The installed package; nothing of it is imported."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        package = distribution(PACKAGE.name)
    except PackageNotFoundError:
        return _blocker("OpenVINO, whose libraries the runner loads, is not installed")
    if not PACKAGE.fits(package.version):
        return _blocker(
            f"OpenVINO {package.version} is installed, and ExecuTorch's delegate works with "
            f"{PACKAGE.specifier}"
        )
    return installed_in(Path(str(package.locate_file("openvino/libs"))), package.version)


def installed_in(folder: Path, version: str) -> OpenVinoInstallation | Blocker:
    """The libraries of a package, by the folder that holds them."""
    patterns = (f"{_LIBRARY}.*", *_BESIDE)
    found = {pattern: min(folder.glob(pattern), default=None) for pattern in patterns}
    library = found[patterns[0]]
    lacking = [pattern.removesuffix(".*") for pattern, path in found.items() if path is None]
    if lacking or library is None:
        return _blocker(
            f"OpenVINO {version} in {folder} lacks {', '.join(lacking)}",
            f"{PACKAGE.name}=={version}",
            " --force-reinstall --no-deps",
        )
    return OpenVinoInstallation(version, library)


def named_library(environ: Mapping[str, str]) -> str | Blocker | None:
    """The library that the user chose for runs on this machine; None for none.

    It may be of any release, and have other processors' libraries beside it.
    """
    named = environ.get(VARIABLE)
    # A name without a folder is looked for by the system's loader.
    if not named or os.sep not in named or Path(named).is_file():
        return named or None
    return Blocker(
        what="OpenVINO",
        why=f"{VARIABLE} names {named}, which does not exist",
        remedy=f"unset {VARIABLE}   # the package etdeploy[openvino] has its own",
    )


def _blocker(why: str, install: str = EXTRA, options: str = "") -> Blocker:
    return Blocker(what="OpenVINO", why=why, remedy=pip_command(install) + options)


# On a CPU with AVX512-BF16 or AMX, OpenVINO computes 32-bit floats as bfloat16, whose 8 bits cost
# up to 1 % of the largest output. The property against it, INFERENCE_PRECISION_HINT, is not saved
# with a program, and the delegate sets none. This variable of oneDNN (its documentation: CPU
# dispatcher control) hides those instructions: the example convnet's largest error is 3.6e-3
# without it and 5.8e-7 with it, of outputs up to 1.
_IN_32_BITS = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI"}


@dataclass(frozen=True, kw_only=True)
class Openvino(Backend):
    """OpenVINO, whose libraries come from the Python package beside etdeploy."""

    def plan_notes(self, run: PlannedRun) -> Iterator[str]:
        """That the number of threads does not reach OpenVINO."""
        if run.threads:
            yield (
                f"runtime.threads is {run.threads}, which does not limit OpenVINO: it has threads "
                "of its own, one for each core that the runner may use."
            )

    def export_environment(self, request: ExportRequest, station: Workstation) -> Mapping[str, str]:
        """Keeps the quantizer from reporting its use to its maker."""
        return {"NNCF_CI": "1"}

    def versions(self, request: ExportRequest, station: Workstation) -> Mapping[str, str | None]:
        """Whether this processor has VNNI, which decides the range of quantized weights."""
        quantizes = request.quantization == "int8_static"
        return {"VNNI": "yes" if has_vnni() else "no"} if quantizes else {}

    def device_blocker(self, wanted_soc: str, where: Destination) -> Blocker | None:
        """Any device but this machine, or a library that the user names and that does not exist."""
        named = named_library(Workstation.this().environ) if where.is_here else None
        return _elsewhere(where, OTHER_BACKEND) or (named if isinstance(named, Blocker) else None)

    def program_blockers(self, partitions: Partitions, where: Destination) -> Iterator[Blocker]:
        blocker = _elsewhere(where, OTHER_PROGRAM if partitions.finished else OTHER_BACKEND)
        if blocker:
            yield blocker

    def bundle_blockers(
        self, station: Workstation, where: Destination, partitions: Partitions
    ) -> Iterator[Blocker]:
        found = named_library(station.environ) or find_openvino()
        if isinstance(found, Blocker):
            yield found

    def bundle_inputs(self, station: Workstation) -> Mapping[str, str | None]:
        found = find_openvino()
        known = None if isinstance(found, Blocker) else f"{found.version}, {found.library}"
        return {"OpenVINO": known, VARIABLE: station.environ.get(VARIABLE)}

    def extras(self, station: Workstation, where: Destination, partitions: Partitions) -> Extras:
        """Where OpenVINO is, and the precision of a program in 32-bit floats."""
        precision = _IN_32_BITS if partitions.quantization == "none" else {}
        named = named_library(station.environ)
        library = require(named) if named else str(require(find_openvino()).library)
        return Extras(environment={VARIABLE: library, **precision})

    def bundle_notes(
        self, station: Workstation, where: Destination, partitions: Partitions
    ) -> Iterator[str]:
        """That a program was, or may have been, exported for processors with VNNI."""
        assumes = partitions.finished or partitions.versions.get("VNNI") == "yes"
        if assumes and not has_vnni():
            yield (
                "this processor has no VNNI: 8-bit layers of a program that was exported on a "
                "processor with VNNI saturate here; if outputs differ, export the model on this "
                "machine"
            )

    def findings(self, station: Workstation) -> Iterator[DoctorCheck]:
        found = find_openvino()
        known = found if isinstance(found, Blocker) else found.version
        yield tool_finding("OpenVINO", "the backend openvino", known)


def _elsewhere(where: Destination, other: str) -> Blocker | None:
    """OpenVINO's libraries are those of this machine, and no bundle carries them.

    They find each other beside their real files, with their own names; a device's store may lay a
    bundle out as links to contents.
    """
    if where.is_here or not where.reports:
        return None
    return Blocker(
        what=f"OpenVINO on {where.device}",
        why=f"OpenVINO's libraries are not deployed, so its programs run on the machine that "
        f"etdeploy runs on, and not on {where.device}",
        remedy="Run etdeploy on that machine itself (--device host), if it is Linux x86_64.\n"
        f"{other}",
    )


OPENVINO_FAILURES = FailureTable(
    "OpenVINO",
    7,
    (
        FailurePattern(
            r"OpenVINO runtime not found \(dlopen failed: (?P<reason>[^)]+)\)",
            "OpenvinoBackend is in the runner, but not available on this device: "
            "OpenVINO's library cannot be loaded ({reason})",
            f"Without {VARIABLE}, the runner loads the libraries of the package:\n"
            f'unset {VARIABLE}\npip install "{EXTRA}"',
        ),
        FailurePattern(
            r"OpenVINO: failed to resolve symbol '(?P<name>[^']*)'",
            "OpenVINO's library has no {name}: it is of another release than ExecuTorch expects",
            f'pip install "{EXTRA}"',
        ),
        FailurePattern(
            r"OpenVINO: failed to import model for device '(?P<name>[^']*)'",
            "OpenVINO does not load this program for {name}: another release of OpenVINO "
            "compiled it, or the processor is too old",
            "Export it again with the installed OpenVINO: etdeploy clean programs",
            f"Export the model again with OpenVINO {PACKAGE.specifier}, {NEW_FILE}.",
        ),
    ),
)
OPENVINO = Openvino(
    name="openvino",
    delegate_id="OpenvinoBackend",
    quantizations=("none", "fp16", "int8_static"),
    lowering="etdeploy.export.worker.backends.openvino",
    needs="Linux x86_64 and the extra `openvino` ([details](openvino.md))",
    get="Run etdeploy on Linux x86_64 (device host), with its extra openvino.",
    packages=(
        PACKAGE,
        # 3.0 imports a module that torch 2.13 no longer has, 3.4 a type that OpenVINO 2025.4 lacks.
        Package("nncf", "OpenVINO's quantizer", EXTRA, ">=3.1,<3.3", ("int8_static",)),
    ),
    component="backend_openvino",
    switch="EXECUTORCH_BUILD_OPENVINO",
    cmake_target="openvino_backend",
    wheels=("linux-x86_64", "linux-aarch64"),
    systems=("linux",),
    # The wheel for aarch64 has the delegate, too, but OpenVINO's package is that of this machine.
    arches=("x86_64",),
    loads=True,
    # bfloat16 on CPUs that have it, 32-bit floats on others.
    judged_as={"fp16": "bf16"},
    failures=OPENVINO_FAILURES,
)
