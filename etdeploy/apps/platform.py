"""The interface of a platform for apps; Android and iOS implement it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from etdeploy.apps.model import AppModel
from etdeploy.backends.values import Extras
from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import Blocker
from etdeploy.core.hashing import sha256_file
from etdeploy.core.values import Progress, ReasonedChoice, Value
from etdeploy.custom_ops.kernels import CustomOps
from etdeploy.plan.model import RuntimePlan
from etdeploy.program.model import Program
from etdeploy.provider.checkout import Checkout
from etdeploy.recipe.load import LoadedRecipe
from etdeploy.recipe.model import Recipe
from etdeploy.targets.platforms import Target


@dataclass(frozen=True)
class AppRuntime:
    """The ExecuTorch of an app, and the packages of its release: none for `source`.

    `custom_ops` is the digest of the recipe's own kernels if the project has their sources.
    """

    name: ReasonedChoice
    packages: tuple[ReasonedChoice, ...] = ()
    custom_ops: str | None = None


@dataclass(frozen=True)
class AppSubject:
    """What an app is made of: `model` is `model.json`, `plan` that of the app's ExecuTorch.

    `abis` are what an Android app's native libraries are for, `extras` a device maker's libraries,
    `sources` what its ExecuTorch is built from; None for a release.
    """

    loaded: LoadedRecipe
    program: Program
    model: AppModel
    plan: RuntimePlan
    target: Target
    abis: tuple[str, ...]
    extras: Extras
    sources: RuntimeSources | None = None


@dataclass(frozen=True)
class RuntimeSources:
    """A checkout, the program whose operators are selected, and the recipe's own kernels."""

    checkout: Checkout
    workspace: Workspace
    program: Path
    custom_ops: CustomOps | None = None


class BuiltApp(Value):
    """An `.apk` or `.ipa`, ready to be installed; its `notes` are warnings, as sentences.

    `how` names what built it; `given` where somebody else did.
    """

    archive: str
    id: str
    version: str
    sha256: str
    size_bytes: int
    how: str
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, archive: Path, **facts: Any) -> BuiltApp:
        """Describe a file; `facts` are what the file alone does not tell."""
        digest, size_bytes = sha256_file(archive), archive.stat().st_size
        return cls(archive=str(archive), sha256=digest, size_bytes=size_bytes, **facts)


class Platform(Protocol):
    """Apps for one system."""

    @property
    def name(self) -> str:
        """As the command line names it: android, ios."""
        ...

    @property
    def templates(self) -> Path:
        """The folder with the project's templates."""
        ...

    @property
    def kind(self) -> str:
        """What a project is, for messages and for the list in its folder: `android app`."""
        ...

    @property
    def parts(self) -> tuple[Path, ...]:
        """All folders whose files decide what a project looks like; `templates` is one."""
        ...

    @property
    def payload(self) -> str:
        """The folder of the model's files in a project."""
        ...

    def place(self, subject: AppSubject, path: str) -> str | None:
        """Return where a file of the payload is in a project; None for one that it lacks."""
        ...

    @property
    def anchor(self) -> str:
        """The path of a source that every project has, with `*` for the name in paths and texts."""
        ...

    @property
    def output(self) -> str:
        """Where the system's own tools leave the app of a project, in its folder."""
        ...

    def runtime(
        self, recipe: Recipe, program: Program, version: str, abis: tuple[str, ...]
    ) -> AppRuntime:
        """Return the app's ExecuTorch; a BuildError names all that the requested one lacks."""
        ...

    def values(self, subject: AppSubject) -> Mapping[str, object]:
        """Return the variables of the templates; `app` is among them."""
        ...

    def files(self, subject: AppSubject) -> Mapping[str, bytes | Path]:
        """Further files of the project, such as a device maker's libraries."""
        ...

    def notes(self, subject: AppSubject) -> tuple[str, ...]:
        """What the user should know of the project, as sentences."""
        ...

    def missing(self, recipe: Recipe, plan: RuntimePlan) -> tuple[Blocker, ...]:
        """Return a blocker for each tool that a build needs and this machine lacks."""
        ...

    def fingerprint(self, recipe: Recipe) -> str:
        """Of the tools that a build would use; another one is a reason to build again."""
        ...

    def build(
        self, subject: AppSubject, project: Path, work: Path, progress: Progress, log: Path | None
    ) -> BuiltApp:
        """Build the app of a project.

        `work` is a folder for this project alone, whose contents stay for the next time. Raises
        BuildError where a tool is missing or failed.
        """
        ...

    def read_archive(self, archive: Path) -> tuple[BuiltApp, AppModel]:
        """Return what an app that somebody built says of itself, with its `model.json`.

        Raises UsageError unless etdeploy wrote its project.
        """
        ...
