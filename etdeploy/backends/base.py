"""What a backend says about itself.

A backend is one value of `Backend`: facts as attributes, and hooks as methods that a class derived
from it replaces. Every hook has a default, so most backends are facts alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from etdeploy.backends.schemes import OTHER_BACKEND

if TYPE_CHECKING:
    from etdeploy.backends.options import Option
    from etdeploy.backends.values import (
        Build,
        CompiledFor,
        Destination,
        ExportRequest,
        Extras,
        Package,
        Partitions,
        Payload,
        PlannedRun,
        Simulated,
        Workstation,
    )
    from etdeploy.core.diagnostics import Diagnosis, FailureTable
    from etdeploy.core.errors import Blocker
    from etdeploy.core.flatbuffer import FlatbufferTable
    from etdeploy.core.values import DoctorCheck, ReasonedChoice
    from etdeploy.targets.platforms import Target


NEW_FILE = "and name the new file in\nmodel.program"
"""Ends a remedy for a finished program, which no option of the recipe can change."""


# Backends are compared by identity: there is one object of each.
@dataclass(frozen=True, kw_only=True, eq=False)
class Backend:
    """A backend of ExecuTorch.

    Attributes:
        name: As a recipe names it.
        delegate_id: The id that a program's delegates carry; None when nothing is delegated.
        quantizations: The schemes that it can run; see `schemes.py`.
        overrides: The schemes of these that one model can mix, as `export.overrides` of a recipe
            does; the quantiser finds what applies to a node with `scheme_of`. One for floats only
            overrides others. Empty where a model has one scheme.
        embeddings: How `export.embeddings` can quantise tables of embeddings for it; see
            `schemes.py`. They are looked up by ExecuTorch's kernels on the CPU.
        rewrites: Those of `rewrites.py` that its lowering can run.
        lowering: The module, for the child process that exports, with its `LOWERING`; None for a
            backend that etdeploy does not export for, whose finished programs it runs.
        needs: What must be installed to export for it or to run it, besides the ExecuTorch wheel.
            For docs/recipes.md.
        get: How to get that, for messages.
        options: What a recipe can set in `export.options`; the lowering finds the value of each in
            `spec.options`.
        packages: Python packages that an export imports, besides torch, torchao and executorch.
        component: The component of ExecuTorch's runtime that registers the delegate; a wheel has it
            as `executorch::<component>`.
        switch: The cmake option that builds the component.
        cmake_target: The library that this option builds, as ExecuTorch's CMakeLists.txt calls it.
        submodules: Those of ExecuTorch that this compiles, by their paths in a checkout.
        wheels: The targets whose wheel carries the component.
        aar: The artifact of `org.pytorch` on Maven, an Android library with ExecuTorch's Java API,
            that has the component; None if none has.
        system_libraries: Android's own libraries, of the phone's maker, that it opens: an app has
            to name them in its manifest.
        systems: Systems that the delegate runs on; empty for all.
        arches: The instruction sets that it runs on; empty for all.
        loads: Whether it loads the device maker's libraries when it starts.
        threaded: Whether it runs on the thread pool of ExecuTorch.
        own_kernels: Whether kernels of etdeploy's own may stand between its partitions: it computes
            on the CPU, and in 32-bit floats.
        tried: Whether it was built and run with etdeploy; the others follow ExecuTorch's
            documentation.
        socs: The SoCs that a program can be compiled for, each for one of them, which `export.soc`
            names; empty for a backend whose programs do not depend on the SoC.
        profile_compiled: Whether a program reports the times of its operators only if it was
            compiled to.
        judged_as: Schemes whose outputs are held to the tolerances of another, since the backend
            computes so: {"none": "fp16"} for one without 32-bit floats.
        traced: What its nodes in a trace compute, if it does not report debug handles: the
            beginning of a node's name, and the operators of the graph that become such nodes,
            `aten::linear`. It must execute the nodes of a partition in the order of the graph.
        failures: What its lines in a runner's log mean.
    """

    name: str
    delegate_id: str | None = None
    quantizations: tuple[str, ...] = ("none",)
    overrides: tuple[str, ...] = ()
    embeddings: tuple[str, ...] = ()
    rewrites: tuple[str, ...] = ()
    lowering: str | None = None
    needs: str | None = None
    get: str | None = None
    options: tuple[Option, ...] = ()
    packages: tuple[Package, ...] = ()
    component: str | None = None
    switch: str | None = None
    cmake_target: str | None = None
    submodules: tuple[str, ...] = ()
    wheels: tuple[str, ...] = ()
    aar: str | None = None
    system_libraries: tuple[str, ...] = ()
    systems: tuple[str, ...] = ()
    arches: tuple[str, ...] = ()
    loads: bool = False
    threaded: bool = False
    own_kernels: bool = False
    tried: bool = False
    socs: tuple[str, ...] = ()
    profile_compiled: bool = False
    judged_as: Mapping[str, str] = field(default_factory=dict)
    traced: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    failures: FailureTable | None = None

    # --- the plan: asked with values alone, and the same on every machine

    def runs_on(self, target: Target) -> bool:
        """Whether the delegate runs on targets of that system and instruction set."""
        return (not self.systems or target.system in self.systems) and (
            not self.arches or target.arch in self.arches
        )

    @property
    def where(self) -> str:
        """The systems that the delegate runs on, for a message: `android on aarch64`."""
        return " or ".join(self.systems) + (f" on {self.arches[0]}" if self.arches else "")

    def plan_notes(self, run: PlannedRun) -> Iterator[str]:
        """What to know about a run with this backend, as sentences."""
        yield from ()

    def cmake_options(self, build: Build) -> Iterator[ReasonedChoice]:
        """Options of a build besides `switch`, with their reasons.

        The value `$NAME` stands for what `definitions` finds on the machine that builds.
        """
        yield from ()

    def build_notes(self, options: Mapping[str, str | None]) -> Iterator[str]:
        """What to know about a build with these options before it starts, as sentences."""
        yield from ()

    def target_blockers(
        self, target: Target, build_target: Target, other: str = OTHER_BACKEND
    ) -> Iterator[Blocker]:
        """What keeps every program of this backend from running on a target.

        Args:
            target: What the runner is for.
            build_target: What it is built for, which differs for a portable runner.
            other: The remedy that names another backend.
        """
        yield from ()

    # --- the export

    def packages_for(self, quantization: str | None) -> Iterator[Package]:
        """The packages that an export with this scheme imports."""
        for package in self.packages:
            if not package.quantizations or quantization in package.quantizations:
                yield package

    def export_blockers(self, request: ExportRequest, station: Workstation) -> Iterator[Blocker]:
        """What an export needs and this machine does not have; the first is told."""
        yield from ()

    def export_environment(self, request: ExportRequest, station: Workstation) -> Mapping[str, str]:
        """Environment variables for the child process that exports."""
        return {}

    def prepare_export(self, request: ExportRequest, station: Workstation) -> None:
        """Makes what an export needs on this machine; called before each.

        Raises:
            EtdeployError: It cannot be made.
        """

    def versions(self, request: ExportRequest, station: Workstation) -> Mapping[str, str | None]:
        """Versions of what compiles a program, by name; None for what is not there.

        They are in the key of the export and in the program's provenance.
        """
        return {}

    def export_failure(self, text: str) -> Diagnosis | None:
        """What the output of a failed lowering means; None where it says nothing that is known.

        Args:
            text: All that the export printed.
        """
        return None

    # --- the program

    def read_payload(self, delegate: FlatbufferTable, payload: memoryview) -> Payload:
        """What the payload of one of its delegates says.

        Args:
            delegate: Its entry in the program (`BackendDelegate` of schema/program.fbs).
            payload: What the backend compiled.

        Raises:
            CorruptError: The payload is damaged.
        """
        from etdeploy.backends.values import Payload

        return Payload()

    def describe_target(self, compiled: CompiledFor) -> str:
        """What a partition was compiled for, for people: `for SM8650`."""
        return f"for {compiled.soc or f'the SoC number {compiled.soc_id}'}"

    # --- the device

    def device_blocker(self, wanted_soc: str, where: Destination) -> Blocker | None:
        """What keeps a program that is still to be exported from running there.

        Args:
            wanted_soc: `export.soc` of the recipe, also `auto`.
            where: The device, or the target alone.
        """
        return None

    def program_blockers(self, partitions: Partitions, where: Destination) -> Iterator[Blocker]:
        """What keeps a compiled program from running there; nothing if the device is not known."""
        yield from ()

    # --- the build

    def build_blockers(
        self, station: Workstation, options: Mapping[str, str | None]
    ) -> Iterator[Blocker]:
        """What a build of the component needs and this machine does not have.

        Args:
            station: This machine.
            options: Those of the build, with what the recipe sets by hand.
        """
        yield from ()

    def definitions(
        self, station: Workstation, options: Mapping[str, str | None]
    ) -> Mapping[str, str]:
        """Options that depend on this machine; those that the recipe sets by hand stay.

        Args:
            station: This machine.
            options: Those of the build; `$NAME` where `cmake_options` left one to this machine.

        Raises:
            BuildError: What `build_blockers` tells.
        """
        return {}

    def build_key(self, station: Workstation) -> str:
        """What on this machine changes the built component, besides compiler and sources."""
        return ""

    # --- the bundle and the run

    def bundle_blockers(
        self, station: Workstation, where: Destination, partitions: Partitions
    ) -> Iterator[Blocker]:
        """What a bundle needs and this machine does not have.

        Args:
            station: This machine.
            where: Where the program will run; its SoC is the recipe's if that names one.
            partitions: Of the program; empty if that is not exported yet.
        """
        yield from ()

    def bundle_inputs(self, station: Workstation) -> Mapping[str, str | None]:
        """What on this machine a bundle is made from, for its step: names and versions."""
        return {}

    def extras(self, station: Workstation, where: Destination, partitions: Partitions) -> Extras:
        """Libraries and environment that a bundle has for this backend.

        Args:
            station: This machine.
            where: Where the program will run.
            partitions: Of the program.

        Raises:
            BuildError: Something is missing, or does not fit the device or the program.
        """
        from etdeploy.backends.values import Extras

        return Extras()

    def bundle_notes(
        self, station: Workstation, where: Destination, partitions: Partitions
    ) -> Iterator[str]:
        """What to know about a bundle that can be made, as sentences.

        Args:
            station: This machine.
            where: Where the program will run.
            partitions: Of the program.
        """
        yield from ()

    def simulated(
        self, station: Workstation, where: Destination, partitions: Partitions
    ) -> Simulated | None:
        """What simulates the program's processor there; None where that processor itself runs it.

        A simulated run has outputs, and no times: none of them is shown as a device's.

        Args:
            station: This machine.
            where: Where the program will run.
            partitions: Of the program.
        """
        return None

    def failure(self, text: str, device: str) -> Diagnosis | None:
        """What the output of a failed runner means; None where no line of this backend is in it.

        Args:
            text: The output.
            device: As `--device` takes it.
        """
        return self.failures.diagnose(text, device=device) if self.failures else None

    # --- this machine

    def findings(self, station: Workstation) -> Iterator[DoctorCheck]:
        """What `etdeploy doctor` shows."""
        yield from ()
