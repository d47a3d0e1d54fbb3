"""Apps for Android."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

import etdeploy
from etdeploy.apps.android.apk import build_apk
from etdeploy.apps.android.app import ASSETS, JARS, NATIVE, AndroidApp
from etdeploy.apps.android.gradle import GRADLE_FILES, OUTPUT, apply_gradle_files, build_with_gradle
from etdeploy.apps.android.native import API, LIBRARY, build_api, build_library, require_fbjni
from etdeploy.apps.android.runtime import RELEASE_API, choose_runtime
from etdeploy.apps.android.sdk import Jdk, find_jdk, find_sdk
from etdeploy.apps.android.tools import (
    COMPILE_SDK,
    GRADLE,
    WRAPPER,
    Tools,
    find_gradle,
    find_kotlin,
    find_tools,
    require_tools,
)
from etdeploy.apps.model import MODEL_FILE, AppModel, app_id, app_name, recorded_paths
from etdeploy.apps.platform import AppRuntime, AppSubject, BuiltApp, RuntimeSources
from etdeploy.apps.project import TENSOR, render_tree
from etdeploy.backends.base import Backend
from etdeploy.backends.registry import backend_of
from etdeploy.backends.values import Extras, Workstation
from etdeploy.core.commands import quoted
from etdeploy.core.errors import Blocker, BuildError, CheckError, UsageError, require
from etdeploy.core.files.basic import new_folder, resource_folder
from etdeploy.core.hashing import digest_json
from etdeploy.core.values import Progress, ReasonedChoice, silent
from etdeploy.plan.model import Provider, RuntimePlan
from etdeploy.program.model import Program
from etdeploy.recipe.model import Recipe

_DTYPES = ("float32", "float64", "float16", "int64", "int32", "int8", "uint8")
_PAYLOAD = f"{ASSETS}/model"
_TEST_ASSETS = "app/src/androidTest/assets/golden"
_NO_APP = "or measure it in a runner, without an app:\netdeploy run --device android"


class AndroidValues(AndroidApp):
    """The variable `app` of the templates in templates/android.

    `variables` are the environment variables that hold the folder of the native libraries;
    `system_libraries` are the phone's own that those open, and `features` those of Android that
    backends need, with their least versions.
    """

    workload: str
    runtime: str
    artifacts: tuple[str, ...]
    variables: tuple[str, ...]
    system_libraries: tuple[str, ...]
    model_name: str
    etdeploy_version: str
    task: str = TENSOR
    features: tuple[tuple[str, str], ...] = ()
    library: bool = False


class Android:
    """See `apps/platform.py`."""

    name = "android"
    kind = "android app"
    payload = _PAYLOAD
    anchor = "app/src/main/kotlin/*/MainActivity.kt"
    output = OUTPUT

    @property
    def templates(self) -> Path:
        return resource_folder("templates") / "android"

    @property
    def parts(self) -> tuple[Path, ...]:
        return (self.templates,)

    def place(self, subject: AppSubject, path: str) -> str | None:
        if subject.model.generation and path in recorded_paths(subject.model):
            return f"{_TEST_ASSETS}/{path}"
        return f"{self.payload}/{path}"

    def runtime(
        self, recipe: Recipe, program: Program, version: str, abis: tuple[str, ...]
    ) -> AppRuntime:
        return choose_runtime(recipe, program, version, abis)

    def values(self, subject: AppSubject) -> Mapping[str, object]:
        require_readable(subject.model)
        return {"app": android_values(subject)}

    def files(self, subject: AppSubject) -> Mapping[str, bytes | Path]:
        return {
            f"{NATIVE}/{abi}/{file.name}": Path(file.source)
            for abi in subject.abis
            for file in subject.extras.files
        }

    def notes(self, subject: AppSubject) -> tuple[str, ...]:
        del subject
        return ()

    def missing(self, recipe: Recipe, plan: RuntimePlan) -> tuple[Blocker, ...]:
        found = _gradle(recipe)
        if isinstance(found, Blocker):
            return (found,)
        if found == Path(WRAPPER) and isinstance(jdk := find_jdk(Workstation.this()), Blocker):
            return (jdk,)
        if found and plan.provider.value != Provider.SOURCE:
            return ()
        tools = _tools(recipe, plan, None)
        return () if isinstance(tools, Tools) else tools

    def fingerprint(self, recipe: Recipe) -> str:
        found = _gradle(recipe)
        if found:
            return "" if isinstance(found, Blocker) else str(found)
        station = Workstation.this()
        jdk, sdk, kotlin = find_jdk(station), find_sdk(station, COMPILE_SDK), find_kotlin(station)
        if isinstance(jdk, Blocker) or isinstance(sdk, Blocker) or isinstance(kotlin, Blocker):
            return ""
        tools = [str(tool) for tool in (sdk.aapt2, sdk.r8, sdk.apksigner, sdk.android_jar)]
        return digest_json([*tools, jdk.version, kotlin.version, recipe.app.aar])

    def build(
        self, subject: AppSubject, project: Path, work: Path, progress: Progress, log: Path | None
    ) -> BuiltApp:
        recipe = subject.loaded.recipe
        files = render_tree(self.templates, self.values(subject))
        generated = {path: files[path].decode() for path in GRADLE_FILES}
        app, ignored = apply_gradle_files(project, android_values(subject), generated)
        if not subject.sources:
            refuse_stale_library(project)
        else:
            _build_executorch(subject, subject.sources, project, work, progress, log)
        built = build_app(
            project,
            work,
            app,
            list_artifacts(subject.plan),
            recipe.app.build,
            progress,
            aar=_aar(recipe),
            log=log,
        )
        if built.how == "gradle":
            return built
        return built.model_copy(update={"notes": (*built.notes, *ignored)})

    def read_archive(self, archive: Path) -> tuple[BuiltApp, AppModel]:
        model = _model_in(archive)
        return BuiltApp.of(archive, id=model.app_id, version="", how="given"), model


def refuse_stale_library(project: Path) -> None:
    """Raises unless the app gets its ExecuTorch from the release alone."""
    found = sorted((project / NATIVE).glob(f"*/{LIBRARY}"))
    jar = project / JARS / API
    left = [path for path in (*found, jar) if path.is_file()]
    if left:
        raise BuildError(
            "the project has an ExecuTorch built from source, and the app needs the release",
            place=str(left[0]),
            remedy="Build it from source again: --set app.runtime=source\n"
            f"or remove it: rm {' '.join(quoted(path) for path in left)}",
        )


def require_readable(model: AppModel) -> None:
    """Raises unless ExecuTorch's Java API can hand over a model's inputs and outputs.

    Its DType has no other data types, and its EValue gives no None to a method (1.5.1).
    """
    for size in model.sizes:
        for noun, values in (("input", size.inputs), ("output", size.expected)):
            for index, value in enumerate(values):
                name = value.name or f"{noun}_{index}"
                if value.kind == "None" and noun == "input":
                    raise CheckError(
                        f"the input {name} is None, which ExecuTorch's Java API cannot hand over",
                        remedy=f"Export the model without that input, {_NO_APP}",
                    )
                if value.dtype and value.dtype not in _DTYPES:
                    raise CheckError(
                        f"the {noun} {name} is a tensor of {value.dtype}, which ExecuTorch's Java "
                        f"API does not have; it has {', '.join(_DTYPES)}",
                        remedy=f"Convert it inside the model, {_NO_APP}",
                    )


def android_values(subject: AppSubject) -> AndroidValues:
    recipe, plan = subject.loaded.recipe, subject.plan
    built = plan.provider.value == Provider.SOURCE
    return AndroidValues(
        id=app_id(subject.loaded),
        name=app_name(subject.loaded),
        min_sdk=recipe.runtime.android_api if built else RELEASE_API,
        abis=subject.abis,
        extracted=bool(folder_variables(subject.extras)),
        workload=subject.model.workload,
        task=subject.model.task,
        features=tuple(each for backend in _backends(subject.program) for each in backend.features),
        runtime=str(plan.provider.value),
        artifacts=list_artifacts(plan),
        variables=folder_variables(subject.extras),
        system_libraries=tuple(
            name for each in _backends(subject.program) for name in each.system_libraries
        ),
        model_name=recipe.description or subject.loaded.name,
        etdeploy_version=etdeploy.__version__,
    )


def _backends(program: Program) -> list[Backend]:
    found = map(backend_of, program.backend_ids)
    return [backend for backend in found if backend]


def list_artifacts(plan: RuntimePlan) -> tuple[str, ...]:
    """Maven's names of ExecuTorch's release among a plan's components."""
    if plan.provider.value != Provider.PREBUILT:
        return ()
    return tuple(part.value for part in plan.components if part.value)


def _build_executorch(
    subject: AppSubject,
    sources: RuntimeSources,
    project: Path,
    work: Path,
    progress: Progress,
    log: Path | None,
) -> None:
    """Builds the native library and the Java API, and puts both into the project."""
    if len(subject.abis) > 1:
        raise BuildError(
            "an ExecuTorch from source is built for one instruction set, and app.abis names "
            f"{' and '.join(subject.abis)}",
            remedy=f"--set app.abis=[{subject.abis[0]}]",
        )
    tools = require_tools(_tools(subject.loaded.recipe, subject.plan, project))
    build_library(
        subject.plan, sources.checkout, require_fbjni(tools), sources.workspace, project,
        progress, log, sources.program, sources.custom_ops,
    )  # fmt: skip
    with new_folder(work / "api") as classes:
        build_api(sources.checkout, tools, classes, project, log)


def _gradle(recipe: Recipe) -> Path | Blocker | None:
    """The Gradle that builds the app; None where the SDK's own tools do."""
    try:
        return choose_build(recipe.app.build, Workstation.this(), None, _aar(recipe))[1]
    except BuildError as error:
        return Blocker(GRADLE, error.message, error.remedy or "")


def _aar(recipe: Recipe) -> Path | None:
    return Path(recipe.app.aar) if recipe.app.aar else None


def _tools(recipe: Recipe, plan: RuntimePlan, project: Path | None) -> Tools | tuple[Blocker, ...]:
    artifacts = list_artifacts(plan)
    return find_tools(Workstation.this(), artifacts, project=project, aar=_aar(recipe))


def _model_in(archive: Path) -> AppModel:
    """`model.json` of an APK."""
    try:
        with zipfile.ZipFile(archive) as opened:
            return AppModel.model_validate_json(opened.read(f"assets/model/{MODEL_FILE}"))
    except (OSError, zipfile.BadZipFile, KeyError, ValidationError) as error:
        raise UsageError(
            f"this is not an app of an etdeploy project: it has no readable model.json ({error})",
            place=str(archive),
            remedy="Build the project that etdeploy app android writes, and name its .apk.",
        ) from error


# An app's libraries are found without it: Android looks into the app's own folder.
_BY_ITSELF = frozenset({"LD_LIBRARY_PATH"})


def folder_variables(extras: Extras) -> tuple[str, ...]:
    """Environment variables that the app sets to the folder of its native libraries.

    It has to do so before it loads ExecuTorch's library, and the libraries have to be files there:
    what reads the variables opens them by their paths.
    """
    return tuple(name for name in extras.folder_variables if name not in _BY_ITSELF)


BuildChoice = Literal["auto", "gradle", "sdk"]


def choose_build(
    wish: BuildChoice, station: Workstation, project: Path | None, aar: Path | None = None
) -> tuple[ReasonedChoice, Path | None]:
    """Choose what builds the app, with the reason; return Gradle's path where it is Gradle."""
    if wish == "sdk":
        return _chosen("sdk", "app.build is sdk"), None
    found = find_gradle(station, project)
    if wish == "gradle":
        # The user asked for it: the wrapper, which every new project has, may download it.
        wrapper = (project or Path()) / WRAPPER
        if isinstance(found, Blocker) and (project is None or os.access(wrapper, os.X_OK)):
            found = wrapper
        return _chosen("gradle", "app.build is gradle"), require(found)
    if aar:
        return _chosen("sdk", f"app.aar names {aar}, which the project's build files do not"), None
    if isinstance(found, Blocker):
        return _chosen("sdk", found.why), None
    return _chosen("gradle", f"there is {found}"), found


def build_app(
    project: Path,
    work: Path,
    app: AndroidApp,
    artifacts: Sequence[str],
    wish: BuildChoice = "auto",
    progress: Progress = silent,
    *,
    station: Workstation | None = None,
    aar: Path | None = None,
    log: Path | None = None,
) -> BuiltApp:
    """Build the APK; unchanged stages are reused."""
    here = station or Workstation.this()
    _, gradle = choose_build(wish, here, project, aar)
    if gradle:
        jdk = find_jdk(here)
        return build_with_gradle(
            project, gradle, app, progress, jdk=jdk if isinstance(jdk, Jdk) else None, log=log
        )
    tools = require_tools(
        find_tools(here, artifacts, compile_sdk=app.compile_sdk, project=project, aar=aar)
    )
    return build_apk(project, work, tools, app, progress, station=here, log=log)


def _chosen(value: str, reason: str) -> ReasonedChoice:
    return ReasonedChoice(name="app.build", value=value, reason=reason)
