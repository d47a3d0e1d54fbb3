"""QNN: the neural processor (HTP) of Qualcomm's Snapdragon SoCs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from etdeploy.backends.base import Backend
from etdeploy.backends.qnn import phone, simulator
from etdeploy.backends.qnn.compiler import find_compile_kit, get_package
from etdeploy.backends.qnn.deploy import find_deploy_kit
from etdeploy.backends.qnn.diagnostics import (
    COMPILER_FAILURES,
    PHONE_FAILURES,
    SIMULATOR_FAILURES,
)
from etdeploy.backends.qnn.facts import IN_BLOCKS, OPTIONS, QUALCOMM_SOCS
from etdeploy.backends.qnn.loading import (
    compile_environment,
    examine_qnn,
    lay_out,
    library_environment,
)
from etdeploy.backends.qnn.payload import compiled_for, describe_target
from etdeploy.backends.qnn.precision import (
    export_blockers,
    finished_notes,
    language_blocker,
    language_export_bytes,
    language_notes,
    option_blocker,
    precision_notes,
    scheme_blocker,
)
from etdeploy.backends.qnn.sdk import find_headers, headers_problem
from etdeploy.backends.schemes import OTHER_BACKEND
from etdeploy.backends.values import (
    Build,
    CompiledFor,
    Destination,
    ExportRequest,
    Extras,
    LanguageModelSizes,
    Partitions,
    Payload,
    PlannedRun,
    Simulated,
    Workstation,
)
from etdeploy.core.diagnostics import Diagnosis
from etdeploy.core.errors import Blocker
from etdeploy.core.flatbuffer import FlatbufferTable
from etdeploy.core.values import DoctorCheck, ReasonedChoice
from etdeploy.targets.platforms import Target

_SDK_OPTION = "QNN_SDK_ROOT"


class Qnn(Backend):
    """QNN, with Qualcomm's compiler on this machine and its libraries on the phone."""

    def mixed_with(self, quantization: object) -> tuple[str, ...]:
        """Beside blocks, layers may have a scale for each output channel."""
        return ("16a8w", "16a4w") if quantization == IN_BLOCKS else super().mixed_with(quantization)

    def plan_notes(self, run: PlannedRun) -> Iterator[str]:
        yield from precision_notes(run.quantization, run.soc)
        if simulator.simulates(run.target):
            yield (
                "Qualcomm's simulator runs the program on this machine: its outputs are compared, "
                "and nothing is timed. benchmark.runs, warmup, iterations, memory and profile have "
                "no effect."
            )

    def cmake_options(self, build: Build) -> Iterator[ReasonedChoice]:
        yield ReasonedChoice(
            name=_SDK_OPTION,
            value=f"${_SDK_OPTION}",
            reason="the headers of Qualcomm's SDK; without it ExecuTorch downloads an SDK itself",
        )

    def target_blockers(
        self, target: Target, build_target: Target, other: str = OTHER_BACKEND
    ) -> Iterator[Blocker]:
        simulated = simulator.simulates(target)
        return phone.target_blockers(target, build_target, other, simulated=simulated)

    def export_blockers(self, request: ExportRequest, station: Workstation) -> Iterator[Blocker]:
        """The SDK with all that compiles, the SoC, and that the compiler can be loaded here."""
        scheme, options, soc = request.quantization, request.options, request.soc
        blocker = scheme_blocker(scheme, soc) or option_blocker(options, soc)
        return iter((blocker,)) if blocker else export_blockers(request.soc, station)

    def language_blocker(self, request: ExportRequest, sizes: LanguageModelSizes) -> Blocker | None:
        return language_blocker(request, sizes)

    def language_notes(self, request: ExportRequest, sizes: LanguageModelSizes) -> Iterator[str]:
        return language_notes(request, sizes)

    def language_export_bytes(
        self, request: ExportRequest, sizes: LanguageModelSizes
    ) -> int | None:
        return language_export_bytes(sizes)

    def export_environment(self, request: ExportRequest, station: Workstation) -> Mapping[str, str]:
        """Qualcomm's compiler, for ExecuTorch and for the loader."""
        kit = find_compile_kit(station, request.soc)
        return {} if isinstance(kit, Blocker) else compile_environment(kit, station.environ)

    def prepare_export(self, request: ExportRequest, station: Workstation) -> None:
        """Makes Qualcomm's package look like an SDK, and names its licence when that is new."""
        kit = find_compile_kit(station, request.soc)
        if not isinstance(kit, Blocker):
            lay_out(kit)

    def versions(self, request: ExportRequest, station: Workstation) -> Mapping[str, str | None]:
        kit = find_compile_kit(station, request.soc)
        return {"qnn": None if isinstance(kit, Blocker) else kit.version}

    def export_failure(self, text: str) -> Diagnosis | None:
        return COMPILER_FAILURES.diagnose(text)

    def read_payload(self, delegate: FlatbufferTable, payload: memoryview) -> Payload:
        """The SoC in the compile spec, and the version in the context binary."""
        return Payload(compiled_for=compiled_for(delegate, payload))

    def describe_target(self, compiled: CompiledFor) -> str:
        """`for SM8650 (HTP V75), by QNN 2.37.0.250724175447, with precision=fp16`."""
        return describe_target(compiled)

    def device_blocker(self, wanted_soc: str, where: Destination) -> Blocker | None:
        blocker = phone.htp_blocker(where.target)
        if blocker or not where.reports:
            return blocker
        if where.target.system == "android":
            return phone.soc_blocker(wanted_soc, where.device, where.soc)
        # What other systems cannot do with QNN is a matter of the plan.
        return simulator.soc_blocker(wanted_soc, where) if _on_linux(where) else None

    def request_blocker(
        self, request: ExportRequest, methods: int, where: Destination
    ) -> Blocker | None:
        """Shared weights in the simulator, for which nothing has to be exported."""
        if not (_on_linux(where) and where.reports):
            return None
        return simulator.request_blocker(request, methods)

    def program_blockers(self, partitions: Partitions, where: Destination) -> Iterator[Blocker]:
        """Another SoC than the one that it was compiled for, or no place for Qualcomm's library."""
        if _on_linux(where):
            return simulator.device_blockers(partitions, where) if where.reports else iter(())
        return phone.program_blockers(
            partitions.compiled, where.device, where.soc, finished=partitions.finished
        )

    def build_blockers(
        self, station: Workstation, options: Mapping[str, str | None]
    ) -> Iterator[Blocker]:
        """No headers; a recipe may name those of another folder."""
        if options.get(_SDK_OPTION) in (None, f"${_SDK_OPTION}"):
            problem = headers_problem(station)
            if problem:
                yield problem

    def definitions(
        self, station: Workstation, options: Mapping[str, str | None]
    ) -> Mapping[str, str]:
        sdk = find_headers(station)
        return {_SDK_OPTION: "" if isinstance(sdk, Blocker) else str(sdk.root)}

    def build_key(self, station: Workstation) -> str:
        sdk = find_headers(station)
        return sdk.why if isinstance(sdk, Blocker) else sdk.version

    def bundle_blockers(
        self, station: Workstation, where: Destination, partitions: Partitions
    ) -> Iterator[Blocker]:
        """No libraries for phones, or some that do not fit the phone or the program.

        Here no simulator, or one that is older than the program.
        """
        if _on_linux(where):
            return simulator.simulator_blockers(station, where.soc, partitions)
        return phone.missing_libraries(station, where.soc, partitions)

    def bundle_inputs(self, station: Workstation) -> Mapping[str, str | None]:
        libraries = find_deploy_kit(station)
        compiler = find_compile_kit(station)
        found: dict[str, str | None] = {
            "QNN libraries": None if isinstance(libraries, Blocker) else libraries.identity
        }
        if not isinstance(compiler, Blocker):
            found["QNN compiler"] = f"{compiler.version} of {compiler.from_}"
            found |= library_environment(compiler, station.environ)
        return found

    def extras(self, station: Workstation, where: Destination, partitions: Partitions) -> Extras:
        if _on_linux(where):
            return simulator.simulator_extras(station, partitions)
        return phone.program_extras(station, where.soc, partitions)

    def bundle_notes(
        self, station: Workstation, where: Destination, partitions: Partitions
    ) -> Iterator[str]:
        """That it is not certain that the libraries load the program, or the HTP has floats."""
        if partitions.finished:
            yield from finished_notes(partitions.compiled)
        if where.target.system == "android":
            yield from phone.program_notes(station, partitions)

    def simulated(
        self, station: Workstation, where: Destination, partitions: Partitions
    ) -> Simulated | None:
        return simulator.simulation(station, partitions) if _on_linux(where) else None

    def failure(self, text: str, device: str) -> Diagnosis | None:
        if device != "host":
            return PHONE_FAILURES.diagnose(text)
        return SIMULATOR_FAILURES.diagnose(text, install=get_package())

    def findings(self, station: Workstation) -> Iterator[DoctorCheck]:
        yield from examine_qnn(station)


def _on_linux(where: Destination) -> bool:
    return where.target.system == "linux"


QNN = Qnn(
    name="qnn",
    delegate_id="QnnBackend",
    quantizations=("none", "fp16", "int8_static", "8a4w", "16a8w", "16a4w", IN_BLOCKS),
    overrides=("int8_static", "8a4w", "16a8w", "16a4w"),
    lowering="etdeploy.export.worker.backends.qnn",
    needs="Linux x86_64 with the extra `qnn`, or Qualcomm's SDK; for a phone also Qualcomm's "
    "libraries ([details](qnn.md))",
    options=OPTIONS,
    component="backend_qnn",
    switch="EXECUTORCH_BUILD_QNN",
    cmake_target="qnn_executorch_backend",
    wheels=("linux-x86_64",),
    aar="executorch-android-qnn",
    system_libraries=("libcdsprpc.so",),
    systems=("android", "linux"),
    loads=True,
    socs=tuple(QUALCOMM_SOCS),
    profile_compiled=True,
    static_cache=True,
    judged_as={"none": "fp16"},  # the HTP has no 32-bit floats
)
