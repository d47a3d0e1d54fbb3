"""Apps for iOS."""

from __future__ import annotations

import os
import plistlib
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from pydantic import ValidationError

import etdeploy
from etdeploy.apps.identity import app_id, app_name
from etdeploy.apps.ios.build import app_version, build_ipa, keychain_teams, xcode_version
from etdeploy.apps.ios.products import package_blockers, swift_products
from etdeploy.apps.ios.project import IosApp, further_files, ios_app, template_variables
from etdeploy.apps.ios.signing import chosen_team
from etdeploy.apps.ios.xcode import XcodeBuild
from etdeploy.apps.model import MODEL_FILE, AppModel
from etdeploy.apps.platform import AppRuntime, AppSubject, BuiltApp
from etdeploy.core.blocker import Blocker, refuse
from etdeploy.core.errors import BuildError, UsageError
from etdeploy.core.hashing import digest_json, sha256_file
from etdeploy.core.progress import Progress
from etdeploy.core.resources import resource_folder
from etdeploy.core.values import Explained
from etdeploy.plan.model import RuntimePlan
from etdeploy.program.model import Program
from etdeploy.recipe.model import Recipe

_PAYLOAD = "Model"
_OUTPUT = "build/App.ipa"


class Ios:
    """See `apps/platform.py`."""

    name = "ios"
    payload = _PAYLOAD
    anchor = "*/App.swift"
    output = _OUTPUT

    @property
    def templates(self) -> Path:
        return resource_folder("templates") / "ios"

    def runtime(
        self, recipe: Recipe, program: Program, version: str, abis: tuple[str, ...]
    ) -> AppRuntime:
        del abis  # one package for every phone
        refuse(_blockers(recipe, program))
        reason = f"ExecuTorch's Swift package {version} has everything that the program needs"
        packages = tuple(
            Explained(name=product, value=f"swiftpm-{version}", reason=reason)
            for product in swift_products(program)
        )
        return AppRuntime(Explained(name="prebuilt", value="prebuilt", reason=reason), packages)

    def values(self, subject: AppSubject) -> Mapping[str, object]:
        return template_variables(_app(subject))

    def files(self, subject: AppSubject) -> Mapping[str, bytes | Path]:
        return further_files(_app(subject))

    def missing(self, recipe: Recipe, plan: RuntimePlan) -> tuple[Blocker, ...]:
        del plan
        if not shutil.which("xcodebuild"):
            return (
                Blocker(
                    what="Xcode",
                    why="an iOS app is built by Xcode, which runs on a Mac only",
                    remedy="Write the project with the same recipe, and open it in Xcode on a "
                    "Mac:\netdeploy app ios --output FOLDER\n"
                    "or run an app that was built there:  etdeploy run --device ios --app X.ipa",
                ),
            )
        team = chosen_team(recipe.app.team, os.environ, keychain_teams)
        return (team,) if isinstance(team, Blocker) else ()

    def fingerprint(self, recipe: Recipe) -> str:
        return digest_json([xcode_version(), recipe.app.team or ""])

    def build(
        self, subject: AppSubject, project: Path, work: Path, progress: Progress, log: Path | None
    ) -> BuiltApp:
        app = _app(subject)
        team = chosen_team(subject.loaded.recipe.app.team, os.environ, keychain_teams)
        if isinstance(team, Blocker):
            raise BuildError(team.why, remedy=team.remedy)
        build = XcodeBuild(project / f"{app.target}.xcodeproj", app.target, work, team=team)
        ipa = project / _OUTPUT
        ipa.parent.mkdir(parents=True, exist_ok=True)
        folder = build_ipa(build, ipa, progress, log)
        return _built(ipa, app.id, app_version(folder), "xcodebuild")

    def given(self, archive: Path) -> tuple[BuiltApp, AppModel]:
        model, facts = _contents(archive)
        # In Xcode a person may have chosen another id than the project had.
        found_id = str(facts.get("CFBundleIdentifier", model.app_id))
        version = str(facts.get("CFBundleShortVersionString", ""))
        return _built(archive, found_id, version, "given"), model


def _blockers(recipe: Recipe, program: Program) -> Iterator[Blocker]:
    """What keeps an app with the program from having ExecuTorch's Swift package."""
    if recipe.app.runtime == "source":
        yield Blocker(
            what="app.runtime",
            why="an iOS app has ExecuTorch's Swift package: app.runtime cannot be source",
            remedy="Remove app.runtime, or: --set app.runtime=prebuilt",
        )
    yield from package_blockers(program, finished=recipe.model.program is not None)


def _built(ipa: Path, bundle_id: str, version: str, how: str) -> BuiltApp:
    return BuiltApp(
        archive=str(ipa),
        id=bundle_id,
        version=version,
        sha256=sha256_file(ipa),
        size_bytes=ipa.stat().st_size,
        how=how,
    )


def _app(subject: AppSubject) -> IosApp:
    loaded, model = subject.loaded, subject.model
    return ios_app(
        subject.program,
        app_id=app_id(loaded),
        name=app_name(loaded),
        model_name=loaded.name,
        workload=model.workload,
        executorch_version=model.executorch_version,
        etdeploy_version=etdeploy.__version__,
        team=loaded.recipe.app.team or "",
        file=model.program,
        bundled=model.bundled,
    )


def _contents(archive: Path) -> tuple[AppModel, dict[str, object]]:
    """`model.json` and the Info.plist of an .ipa.

    Raises:
        UsageError: It lacks them, or is no .ipa.
    """
    try:
        with zipfile.ZipFile(archive) as opened:
            folder = _app_folder(opened)
            model = AppModel.model_validate_json(opened.read(f"{folder}/{_PAYLOAD}/{MODEL_FILE}"))
            facts: dict[str, object] = plistlib.loads(opened.read(f"{folder}/Info.plist"))
            return model, facts
    except (
        OSError, zipfile.BadZipFile, KeyError, ValidationError, plistlib.InvalidFileException,
    ) as error:  # fmt: skip
        raise UsageError(
            "this is no app of a project that etdeploy wrote: it has no model.json that can be "
            f"read ({error})",
            place=str(archive),
            remedy="Build the project that etdeploy app ios writes, and name its .ipa.",
        ) from error


def _app_folder(opened: zipfile.ZipFile) -> PurePosixPath:
    for name in opened.namelist():
        parts = PurePosixPath(name).parts
        if len(parts) > 2 and parts[0] == "Payload" and parts[1].endswith(".app"):
            return PurePosixPath(*parts[:2])
    raise KeyError("Payload")
