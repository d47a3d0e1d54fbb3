"""What a platform for apps has to be able to do; Android and iOS are the two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from etdeploy.apps.model import AppModel
from etdeploy.backends.values import Extras
from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import Blocker, UsageError
from etdeploy.core.values import Explained, Progress, Value
from etdeploy.custom_ops.kernels import CustomOps
from etdeploy.plan.model import RuntimePlan
from etdeploy.program.model import Program
from etdeploy.provider.checkout import Checkout
from etdeploy.recipe.load import LoadedRecipe
from etdeploy.recipe.model import Recipe
from etdeploy.targets.platforms import Target


@dataclass(frozen=True)
class AppRuntime:
    """The ExecuTorch of an app.

    Attributes:
        name: `prebuilt` or `source`, with the reason.
        packages: Of the release; empty for `source`. `value` is what a build tool asks for.
    """

    name: Explained
    packages: tuple[Explained, ...] = ()


@dataclass(frozen=True)
class AppSubject:
    """What an app is made of.

    Attributes:
        loaded: The recipe.
        program: What inspection found in the program.
        model: `model.json`.
        plan: Of the app's ExecuTorch.
        target: What the app is for.
        abis: On Android, what its native libraries are for.
        extras: What the program's backends add: a device maker's libraries.
        sources: What its ExecuTorch is built from; None where it is a release.
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
    """What an app's own ExecuTorch is built from.

    Attributes:
        checkout: ExecuTorch's sources.
        workspace: The cache, with the build folders.
        program: The file whose operators are selected.
        custom_ops: The recipe's own kernels.
    """

    checkout: Checkout
    workspace: Workspace
    program: Path
    custom_ops: CustomOps | None = None


class BuiltApp(Value):
    """An app, ready to be installed.

    Attributes:
        archive: The `.apk` or `.ipa`.
        id: Its application id or bundle id.
        version: For people.
        sha256: Of the archive.
        size_bytes: Of the archive.
        how: What built it; `given` where somebody else did.
        notes: Warnings about it, as sentences.
    """

    archive: str
    id: str
    version: str
    sha256: str
    size_bytes: int
    how: str
    notes: tuple[str, ...] = ()


class Platform(Protocol):
    """What etdeploy knows of apps for one system."""

    @property
    def name(self) -> str:
        """As the command line names it: android, ios."""
        ...

    @property
    def templates(self) -> Path:
        """The folder with the project's templates."""
        ...

    @property
    def payload(self) -> str:
        """The folder of the model's files in a project."""
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
        """The app's ExecuTorch.

        Raises:
            BuildError: The recipe asks for one that lacks something; names all of it.
        """
        ...

    def values(self, subject: AppSubject) -> Mapping[str, object]:
        """What the templates are filled with; `app` is among them."""
        ...

    def files(self, subject: AppSubject) -> Mapping[str, bytes | Path]:
        """Further files of the project, such as a device maker's libraries."""
        ...

    def missing(self, recipe: Recipe, plan: RuntimePlan) -> tuple[Blocker, ...]:
        """What a build of the app needs and this machine does not have."""
        ...

    def fingerprint(self, recipe: Recipe) -> str:
        """Of the tools that a build would use; another one is a reason to build again."""
        ...

    def build(
        self, subject: AppSubject, project: Path, work: Path, progress: Progress, log: Path | None
    ) -> BuiltApp:
        """Builds the app of a project.

        Args:
            subject: What the app is made of.
            project: Its folder.
            work: A folder for this project alone, whose contents stay for the next time.
            progress: Reports each stage.
            log: Receives all commands and their output.

        Raises:
            BuildError: A tool is missing or failed.
        """
        ...

    def given(self, archive: Path) -> tuple[BuiltApp, AppModel]:
        """What is known of an app that somebody else built, with its `model.json`.

        Raises:
            UsageError: It is no app of a project that etdeploy wrote.
        """
        ...


def platform_for(system: str) -> Platform:
    """The platform of a target's system.

    Raises:
        UsageError: There are no apps for it.
    """
    if system == "android":
        from etdeploy.apps.android.platform import Android

        return Android()
    if system == "ios":
        from etdeploy.apps.ios.platform import Ios

        return Ios()
    raise UsageError(f"there are no apps for {system}", remedy="Apps are made for android and ios.")
