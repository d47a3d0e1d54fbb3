"""What the hooks of a backend are asked with, and what they answer."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from etdeploy.core.errors import Blocker
from etdeploy.core.values import DoctorCheck, Value

if TYPE_CHECKING:
    from etdeploy.backends.options import OptionValue
    from etdeploy.targets.platforms import Target


class CompiledFor(Value):
    """The SoC that a partition was compiled for, and the SDK that compiled it.

    Attributes:
        soc_id: The SDK's number of the SoC.
        soc: Its name, like SM8650; None for a number that is not known.
        htp_arch: Generation of its neural processor, like V75; None if none is named.
        sdk_version: As in the SDK's build id, like 2.37.0.250724175447; None if the payload does
            not show it.
        profiled: Whether it was compiled to report the times of its operators.
        settings: What else it says that it was compiled with, as `name=value`; the names are those
            of the recipe's `export.options` where there is one. Empty where it says nothing.
    """

    soc_id: int
    soc: str | None = None
    htp_arch: str | None = None
    sdk_version: str | None = None
    profiled: bool = False
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Payload:
    """What a backend reads in the payload of one of its delegates.

    Attributes:
        nodes: The backend's own nodes; None if it does not show them.
        compiled_for: The SoC and the SDK, if it was compiled for one.
        data_keys: The names of weights that are not in the payload.
    """

    nodes: int | None = None
    compiled_for: CompiledFor | None = None
    data_keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Workstation:
    """The machine that exports and builds: where a backend looks for what it needs.

    Attributes:
        environ: The environment.
        home: The user's home folder.
    """

    environ: Mapping[str, str]
    home: Path

    @classmethod
    def this(cls) -> Workstation:
        """This machine."""
        return cls(os.environ, Path.home())


@dataclass(frozen=True)
class Package:
    """A Python package that an export imports.

    Attributes:
        name: Of the distribution.
        purpose: What needs it, for messages: `lowering to Core ML`.
        install: What pip installs to get it, a package or `etdeploy[extra]`.
        specifier: The releases that work, as in `>=2025.1,<2026`; empty for all.
        quantizations: The schemes that need it; empty for all.
    """

    name: str
    purpose: str
    install: str
    specifier: str = ""
    quantizations: tuple[str, ...] = ()

    def fits(self, version: str) -> bool:
        """Whether that release works."""
        if not self.specifier:
            return True
        from packaging.specifiers import SpecifierSet

        return SpecifierSet(self.specifier).contains(version, prereleases=True)


@dataclass(frozen=True)
class ExportRequest:
    """What is to be exported.

    Attributes:
        quantization: The scheme.
        soc: What the program is compiled for; None or `auto` until a device has said its own.
        options: The value of each option that the backend declares.
        overrides: Patterns of module paths with their schemes; the first that matches counts.
    """

    quantization: str
    soc: str | None = None
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    overrides: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class LanguageModelSizes:
    """A language model that is to be exported, as far as headers tell.

    Attributes:
        parameters: Number of weights, a table of embeddings that is tied to the output layer twice.
        embedded: Those of the table of embeddings; 0 where the configuration does not say.
        heads: Of queries; 0 where the configuration does not say.
        cached_values: Keys and values of all layers and positions.
        context: Positions.
        prefill_tokens: The most tokens of a prompt at once; 1 if the program takes single ones.
        methods: Of the program, without those of adapters.
        layers: Weights of each module by its path, without embeddings; empty where headers of files
            do not name them as transformers does.
    """

    parameters: int
    embedded: int
    heads: int
    cached_values: int
    context: int
    prefill_tokens: int
    methods: int
    layers: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class PlannedRun:
    """A run, as far as recipe and program tell it.

    Attributes:
        target: What the runner is for.
        threads: `runtime.threads` of the recipe as text; empty where the number is left to
            ExecuTorch.
        quantization: The recipe's scheme; None for a finished program, whose scheme is not known.
        soc: The SoC that the program is compiled for; None if it is not known yet, or of no
            importance.
    """

    target: Target
    threads: str
    quantization: str | None
    soc: str | None


@dataclass(frozen=True)
class Destination:
    """Where a program will run.

    Attributes:
        target: What the runner is for.
        device: The device's name, or the target's if there is no device.
        reports: Whether a device was asked.
        is_here: Whether it is this machine, with its files at their own paths.
        soc: The SoC that it reports; None if it reports none.
    """

    target: Target
    device: str
    reports: bool = False
    is_here: bool = False
    soc: str | None = None


@dataclass(frozen=True)
class Partitions:
    """A backend's partitions of a program.

    Attributes:
        compiled: What they were compiled for, without duplicates.
        versions: Of what exported the program, by name; empty if they are not known.
        finished: Whether the program was given as a file, so that no recipe can change it.
        quantization: The recipe's scheme; None for a finished program, whose scheme is not known.
        methods: How many of the program's methods have any.
    """

    compiled: tuple[CompiledFor, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    finished: bool = False
    quantization: str | None = None
    methods: int = 1


class RuntimeWishes(Protocol):
    """The keys of a recipe's section `runtime` that are about one backend."""

    @property
    def kleidiai(self) -> bool | None:
        """Whether a build includes Arm's KleidiAI kernels; None leaves it to the backend."""

    @property
    def weight_cache(self) -> bool:
        """Whether delegates share packed weights."""


@dataclass(frozen=True)
class Build:
    """A build of ExecuTorch from source.

    Attributes:
        target: What is compiled for.
        quantization: The recipe's scheme; None for a finished program, whose scheme is not known.
        runtime: What the recipe requests.
    """

    target: Target
    quantization: str | None
    runtime: RuntimeWishes


@dataclass(frozen=True)
class ExtraFile:
    """A third-party file: its path here, and its name beside the runner."""

    source: str
    name: str


@dataclass(frozen=True)
class Extras:
    """What a bundle has in addition to a runner and its own libraries.

    Attributes:
        files: Deployed into the runner's folder; a backend loads them by name on the device.
        folder_variables: Environment variables that are set to that folder alone.
        file_variables: Those that are set to the path of one of `files` there, by its name.
        environment: Other variables, for a device that is this machine also with paths of it.
    """

    files: tuple[ExtraFile, ...] = ()
    folder_variables: tuple[str, ...] = ()
    file_variables: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


def tool_finding(name: str, needed_for: str, found: str | Blocker) -> DoctorCheck:
    """The line of `etdeploy doctor` about something optional: what was found, or why not."""
    if isinstance(found, Blocker):
        remedy = f"{found.why}\n{found.remedy}"
        return DoctorCheck(
            name=name, state="optional", found=None, needed_for=needed_for, remedy=remedy
        )
    return DoctorCheck(name=name, state="ok", found=found, needed_for=needed_for)


class Simulated(Value):
    """What computed a program in place of the processor that it was compiled for.

    Attributes:
        backend: The backend that it belongs to, by its name.
        by: Its name and version.
        soc: The SoC that it stands for; None if the program does not name a known one.
    """

    backend: str
    by: str
    soc: str | None


def merged(parts: Iterable[Extras]) -> Extras:
    """The extras of several backends in one bundle."""
    each = tuple(parts)
    return Extras(
        files=tuple(dict.fromkeys(file for part in each for file in part.files)),
        folder_variables=tuple(dict.fromkeys(v for part in each for v in part.folder_variables)),
        file_variables={k: v for part in each for k, v in part.file_variables.items()},
        environment={k: v for part in each for k, v in part.environment.items()},
    )
