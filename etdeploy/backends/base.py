"""The interface of a backend.

A backend is one value of `Backend`: facts as attributes, and hooks as methods that a class derived
from it replaces. Every hook has a default, so most backends are facts alone.

The hooks have the same arguments: `station` is this machine, `target` what the runner is for,
`where` the device (or the target alone), `partitions` the program's (empty before its export), and
`options` those of the build with what the recipe sets by hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from etdeploy.backends.schemes import FLOAT_SCHEMES, OTHER_BACKEND

if TYPE_CHECKING:
    from etdeploy.backends.options import Option
    from etdeploy.backends.values import (
        Build,
        CompiledFor,
        Destination,
        ExportRequest,
        Extras,
        LanguageModelSizes,
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
            does; the quantizer finds what applies to a node with `scheme_of`. One for floats only
            overrides others. Empty where a model has one scheme.
        with_floats: Further schemes, with which parts of a model can stay in floats (`none`), and
            have no other scheme.
        embeddings: How `export.embeddings` can quantize tables of embeddings for it; see
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
        features: Features of Android that it needs, with the least version of each: an app names
            them in its manifest.
        frameworks: Apple's frameworks that it links: no module of an app has a name like theirs.
        systems: Systems that the delegate runs on; empty for all.
        arches: The instruction sets that it runs on; empty for all.
        loads: Whether it loads the device maker's libraries when it starts.
        threaded: Whether it runs on the thread pool of ExecuTorch.
        own_kernels: Whether kernels of etdeploy's own may stand between its partitions: it computes
            on the CPU, and in 32-bit floats.
        static_cache: Whether a language model's keys and values are inputs and outputs of its
            methods, since it keeps no state between calls; see `program/generation.py`.
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
    with_floats: tuple[str, ...] = ()
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
    features: tuple[tuple[str, str], ...] = ()
    frameworks: tuple[str, ...] = ()
    systems: tuple[str, ...] = ()
    arches: tuple[str, ...] = ()
    loads: bool = False
    threaded: bool = False
    own_kernels: bool = False
    static_cache: bool = False
    tried: bool = False
    socs: tuple[str, ...] = ()
    profile_compiled: bool = False
    judged_as: Mapping[str, str] = field(default_factory=dict)
    traced: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    failures: FailureTable | None = None

    # --- the plan: asked with values alone, and the same on every machine

    def mixed_with(self, quantization: object) -> tuple[str, ...]:
        """The schemes that parts of a model can have if the whole has this one."""
        if quantization in self.with_floats:
            return ("none",)
        mixes = quantization in self.overrides and quantization not in FLOAT_SCHEMES
        return self.overrides if mixes else ()

    def runs_on(self, target: Target) -> bool:
        """Whether the delegate runs on that system and instruction set."""
        return (not self.systems or target.system in self.systems) and (
            not self.arches or target.arch in self.arches
        )

    @property
    def where(self) -> str:
        """The systems that the delegate runs on, for a message: `android on aarch64`."""
        return " or ".join(self.systems) + (f" on {self.arches[0]}" if self.arches else "")

    def plan_notes(self, run: PlannedRun) -> Iterator[str]:
        """Yield notes about a run with this backend, as sentences."""
        yield from ()

    def cmake_options(self, build: Build) -> Iterator[ReasonedChoice]:
        """Yield the options of a build besides `switch`, with their reasons.

        The value `$NAME` stands for what `definitions` finds on the machine that builds.
        """
        yield from ()

    def build_notes(self, options: Mapping[str, str | None]) -> Iterator[str]:
        """Yield notes about a build with these options before it starts, as sentences."""
        yield from ()

    def target_blockers(
        self, target: Target, build_target: Target, other: str = OTHER_BACKEND
    ) -> Iterator[Blocker]:
        """Yield what prevents every program of this backend from running on a target.

        `build_target` differs from it for a portable runner; `other` is the remedy that names
        another backend.
        """
        yield from ()

    # --- the export

    def packages_for(self, quantization: str | None) -> Iterator[Package]:
        """Yield the packages that an export with this scheme imports."""
        for package in self.packages:
            if not package.quantizations or quantization in package.quantizations:
                yield package

    def export_blockers(self, request: ExportRequest, station: Workstation) -> Iterator[Blocker]:
        """Yield what an export needs and this machine lacks; a message shows the first."""
        yield from ()

    def language_blocker(self, request: ExportRequest, sizes: LanguageModelSizes) -> Blocker | None:
        """Return what prevents the export of a language model of such sizes."""
        return None

    def language_notes(self, request: ExportRequest, sizes: LanguageModelSizes) -> Iterator[str]:
        """Yield sentences about the program of such a model, and about what its export takes."""
        yield from ()

    def language_export_bytes(
        self, request: ExportRequest, sizes: LanguageModelSizes
    ) -> int | None:
        """Return the memory that such an export takes; None for the general estimate."""
        return None

    def export_environment(self, request: ExportRequest, station: Workstation) -> Mapping[str, str]:
        """Environment variables for the child process that exports."""
        return {}

    def prepare_export(self, request: ExportRequest, station: Workstation) -> None:
        """Make what an export needs on this machine; called before each.

        Raises:
            EtdeployError: It cannot be made.
        """

    def versions(self, request: ExportRequest, station: Workstation) -> Mapping[str, str | None]:
        """Return the versions of what compiles a program, by name; None for what is absent.

        They are in the key of the export and in the program's provenance.
        """
        return {}

    def export_failure(self, text: str) -> Diagnosis | None:
        """Explain the output of a failed export; None where it has no known failure."""
        return None

    # --- the program

    def read_payload(self, delegate: FlatbufferTable, payload: memoryview) -> Payload:
        """Read the payload of one of its delegates (`BackendDelegate` of schema/program.fbs).

        Raises:
            CorruptError: The payload is damaged.
        """
        from etdeploy.backends.values import Payload

        return Payload()

    def describe_target(self, compiled: CompiledFor) -> str:
        """Describe what a partition was compiled for: `for SM8650`."""
        return f"for {compiled.soc or f'the SoC number {compiled.soc_id}'}"

    # --- the device

    def device_blocker(self, wanted_soc: str, where: Destination) -> Blocker | None:
        """Return what prevents a program that is not exported yet from running there.

        `wanted_soc` is `export.soc` of the recipe, also `auto`.
        """
        return None

    def request_blocker(
        self, request: ExportRequest, methods: int, where: Destination
    ) -> Blocker | None:
        """Return what will prevent a program of so many methods from running there.

        It is not exported yet; `methods` is 1 where only the export tells.
        """
        return None

    def program_blockers(self, partitions: Partitions, where: Destination) -> Iterator[Blocker]:
        """Yield what prevents a compiled program from running there."""
        yield from ()

    # --- the build

    def build_blockers(
        self, station: Workstation, options: Mapping[str, str | None]
    ) -> Iterator[Blocker]:
        """Yield what a build of the component needs and this machine lacks."""
        yield from ()

    def definitions(
        self, station: Workstation, options: Mapping[str, str | None]
    ) -> Mapping[str, str]:
        """Return the options that depend on this machine: `$NAME` of `cmake_options` by its value.

        Raises:
            BuildError: There is a blocker of `build_blockers`.
        """
        return {}

    def build_key(self, station: Workstation) -> str:
        """Return what changes the built component, besides compiler and sources."""
        return ""

    # --- the bundle and the run

    def bundle_blockers(
        self, station: Workstation, where: Destination, partitions: Partitions
    ) -> Iterator[Blocker]:
        """Yield what a bundle needs and this machine lacks."""
        yield from ()

    def bundle_inputs(self, station: Workstation) -> Mapping[str, str | None]:
        """Return what this machine adds to a bundle: names and versions, for the step's inputs."""
        return {}

    def extras(self, station: Workstation, where: Destination, partitions: Partitions) -> Extras:
        """Return the libraries and the environment that a bundle has for this backend.

        Raises:
            BuildError: Something is missing, or does not fit the device or the program.
        """
        from etdeploy.backends.values import Extras

        return Extras()

    def bundle_notes(
        self, station: Workstation, where: Destination, partitions: Partitions
    ) -> Iterator[str]:
        """Yield notes about a bundle that can be made, as sentences."""
        yield from ()

    def simulated(
        self, station: Workstation, where: Destination, partitions: Partitions
    ) -> Simulated | None:
        """Return the simulator of the program's processor; None where that processor runs it.

        A simulated run has outputs, and no times: none of them is shown as a device's.
        """
        return None

    def failure(self, text: str, device: str) -> Diagnosis | None:
        """Explain the output of a failed runner; None where no line of this backend is in it."""
        return self.failures.diagnose(text, device=device) if self.failures else None

    # --- this machine

    def findings(self, station: Workstation) -> Iterator[DoctorCheck]:
        """Yield what `etdeploy doctor` shows."""
        yield from ()
