"""OpenVINO: Intel's inference engine, on the CPU of Linux x86_64.

The delegate in ExecuTorch's wheel is a thin one: it loads OpenVINO's C library when it loads a
program, hands over the payload and asks for nothing else. So OpenVINO's own defaults decide what no
payload can say: in what precision it computes, and with how many threads. The facts here are those
of ExecuTorch 1.5.1 (backends/openvino/runtime) with OpenVINO 2025.4.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from etdeploy.backends.base import Backend
from etdeploy.backends.causes import NEW_FILE, Cause
from etdeploy.backends.names import OTHER_BACKEND, OTHER_PROGRAM
from etdeploy.backends.openvino.library import (
    EXTRA,
    PACKAGE,
    VARIABLE,
    find_openvino,
    named_library,
)
from etdeploy.backends.openvino.processor import has_vnni
from etdeploy.backends.values import (
    Destination,
    ExportRequest,
    Extras,
    Package,
    Partitions,
    PlannedRun,
    Workstation,
)
from etdeploy.core.blocker import Blocker, require
from etdeploy.core.finding import Finding

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
        """Keeps the quantiser from reporting its use to its maker."""
        return {"NNCF_CI": "1"}

    def versions(self, request: ExportRequest, station: Workstation) -> Mapping[str, str | None]:
        """Whether this processor has VNNI, which decides the range of quantised weights."""
        quantizes = request.quantization == "int8_static"
        return {"VNNI": "yes" if has_vnni() else "no"} if quantizes else {}

    def device_blocker(self, wanted_soc: str, where: Destination) -> Blocker | None:
        """Any device but this machine, or a library that the user names and that does not exist."""
        named = named_library(Workstation.this().environ) if where.is_here else None
        return _elsewhere(where, OTHER_BACKEND) or (named if isinstance(named, Blocker) else None)

    def program_blockers(self, partitions: Partitions, where: Destination) -> Iterator[Blocker]:
        """Any device but this machine."""
        blocker = _elsewhere(where, OTHER_PROGRAM if partitions.finished else OTHER_BACKEND)
        if blocker:
            yield blocker

    def bundle_blockers(
        self, station: Workstation, where: Destination, partitions: Partitions
    ) -> Iterator[Blocker]:
        """No OpenVINO, or one without the libraries of the CPU."""
        found = named_library(station.environ) or find_openvino()
        if isinstance(found, Blocker):
            yield found

    def bundle_inputs(self, station: Workstation) -> Mapping[str, str | None]:
        """The OpenVINO whose libraries the runner loads."""
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

    def findings(self, station: Workstation) -> Iterator[Finding]:
        """The package, with the release that works."""
        found = find_openvino()
        missing = isinstance(found, Blocker)
        yield Finding(
            name="OpenVINO",
            state="optional" if missing else "ok",
            found=None if isinstance(found, Blocker) else found.version,
            needed_for="the backend openvino",
            remedy=f"{found.why}\n{found.remedy}" if isinstance(found, Blocker) else None,
        )


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
        Package("nncf", "OpenVINO's quantiser", EXTRA, ">=3.1,<3.3", ("int8_static",)),
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
    words=(
        (r"OpenVINO runtime not found \(dlopen failed: (?P<why>[^)]+)\)", Cause(
            "OpenvinoBackend is in the runner, but not available on this device: "
            "OpenVINO's library cannot be loaded ({why})",
            f"Without {VARIABLE}, the runner loads the libraries of the package:\n"
            f'unset {VARIABLE}\npip install "{EXTRA}"')),
        (r"OpenVINO: failed to resolve symbol '(?P<name>[^']*)'", Cause(
            "OpenVINO's library has no {name}: it is of another release than ExecuTorch expects",
            f'pip install "{EXTRA}"')),
        (r"OpenVINO: failed to import model for device '(?P<name>[^']*)'", Cause(
            "OpenVINO does not load this program for {name}: another release of OpenVINO compiled "
            "it, or the processor is too old",
            "Export it again with the installed OpenVINO: etdeploy clean programs",
            f"Export the model again with OpenVINO {PACKAGE.specifier}, {NEW_FILE}.")),
    ),
)  # fmt: skip
