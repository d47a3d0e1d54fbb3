"""The steps of a job whose program runs in an app: project, app and bundle.

As in `pipeline.py`, an action imports what only it needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from etdeploy.apps.merge import LIST_FILE, Conflicts, Written, write_project
from etdeploy.apps.model import MODEL_FILE, AppModel, Payload
from etdeploy.apps.platform import AppSubject, BuiltApp, RuntimeSources
from etdeploy.apps.project import Project
from etdeploy.bench.bundle import bundle_file
from etdeploy.cache.folder import CacheKind
from etdeploy.core import console
from etdeploy.core.errors import CheckError
from etdeploy.core.files.basic import copy_file, folder_files
from etdeploy.core.hashing import digest_json, sha256_bytes, sha256_file
from etdeploy.core.values import Progress
from etdeploy.devices.base import AppLaunch, Bundle
from etdeploy.graph.app_plan import abis_of, platform_of
from etdeploy.graph.backends import extras_for
from etdeploy.graph.job import (
    CODE,
    Job,
    StepName,
    flat,
    load_program,
    load_runner,
    stage_path,
)
from etdeploy.graph.on_device import generation_inputs, request_files
from etdeploy.graph.resolve import Resolved, resolve
from etdeploy.graph.tasks.steps import Load, Step, StepLog
from etdeploy.plan.model import Provider, RuntimePlan
from etdeploy.program.folder import PROGRAM_FILE, load_provenance
from etdeploy.provider.checkout import Libraries
from etdeploy.runner.model import AppDetails, BuiltRunner

ARCHIVE = {"android": "app.apk", "ios": "app.ipa"}
"""The app's file in a bundle."""
_PROJECT, _WORK = "project", "build"


def app_steps(resolved: Resolved) -> tuple[Step, ...]:
    """The steps between the plan and the push."""
    if resolved.job.app and resolved.job.app.given:
        return (_given(resolved), _bundle(resolved))
    return (_project(resolved), _app(resolved), _bundle(resolved))


def _project(resolved: Resolved) -> Step:
    job = resolved.job
    recipe = job.loaded.recipe
    output = stage_path(job, StepName.PROJECT)
    platform = platform_of(job)

    def act(log: StepLog) -> str:
        from etdeploy.apps.merge import digest_content, write_project
        from etdeploy.apps.project import project_files
        from etdeploy.core.files.basic import remove_tree

        log.progress("writing the project")
        model, payload, notes = _carried(job)
        subject = subject_of(job, model)
        folder = job.state / _PROJECT
        files = project_files(platform, subject, payload)
        # A build from source puts its libraries beside them, which a release must not find.
        remove_tree(folder)
        write_project(folder, files, platform.kind)
        project = Project(
            folder=str(folder),
            platform=platform.name,
            kind=platform.kind,
            id=subject.model.app_id,
            files=digest_json({path: digest_content(content) for path, content in files.items()}),
            from_source=subject.plan.provider.value == Provider.SOURCE,
            notes=(*notes, *platform.notes(subject), *_source_notes(subject.plan)),
        )
        project.save(output)
        suffix = "".join(f"; {note}" for note in project.notes)
        return f"{console.count(len(files), 'file')} for {platform.name}{suffix}"

    return Step(
        StepName.PROJECT,
        "write the app's project",
        output,
        act,
        needs=(StepName.EXPORT, StepName.PLAN),
        inputs={
            **flat("app", recipe.app),
            "name": job.loaded.name,
            "description": recipe.description,
            "ABIs": list(abis_of(job)),
            "benchmark.method": recipe.benchmark.method,
            "benchmark.warmup": recipe.benchmark.warmup,
            "benchmark.iterations": recipe.benchmark.iterations,
            **flat("benchmark.tolerance", recipe.benchmark.tolerance),
            **generation_inputs(job),
            "runtime.threads": recipe.runtime.threads,
            "SoC": job.facts.soc if job.facts else None,
            **resolved.bundle_inputs,
            "the templates": resolved.app.project if resolved.app else None,
        },
        sound=lambda: None if (job.state / _PROJECT).is_dir() else "the project is gone",
        value=Project,
    )


def _source_notes(plan: RuntimePlan) -> Iterator[str]:
    if plan.provider.value == Provider.SOURCE:
        yield f"The app's ExecuTorch is built from source: {plan.provider.reason}."


def _carried(job: Job) -> tuple[AppModel, Payload, tuple[str, ...]]:
    """What the app carries of the program of the step before, with notes."""
    from etdeploy.apps.payload import make_payload

    exported, program = load_program(job)
    folder = Path(exported.folder)
    library = bool(job.app and job.app.library)
    return make_payload(job.loaded, program, load_provenance(folder), folder, library=library)


def subject_of(job: Job, model: AppModel) -> AppSubject:
    """What the app of a job is made of, from the program and plan of the steps before."""
    exported, program = load_program(job)
    versions = load_provenance(Path(exported.folder)).versions
    return AppSubject(
        loaded=job.loaded,
        program=program,
        model=model,
        plan=RuntimePlan.load(stage_path(job, StepName.PLAN)),
        target=job.target,
        abis=abis_of(job),
        extras=extras_for(job, program, versions),
    )


def sourced(resolved: Resolved, subject: AppSubject, log: StepLog) -> AppSubject:
    """The same with the sources that its ExecuTorch is built from."""
    from etdeploy.graph.pipeline import obtain_libraries

    job = resolved.job
    planned = resolved.with_program(subject.program)
    exported, _ = load_program(job)
    versions = load_provenance(Path(exported.folder)).versions
    made_with = versions.get("executorch")
    libraries = obtain_libraries(planned, made_with, log.progress, log.log)
    if libraries.checkout is None:
        raise RuntimeError("a build from source has no checkout")
    program = Path(exported.folder) / PROGRAM_FILE
    sources = RuntimeSources(libraries.checkout, job.workspace, program, resolved.custom_ops)
    return replace(subject, sources=sources)


def written_model(job: Job) -> AppModel:
    """`model.json` of the project that the project step wrote."""
    folder = Path(Project.load(stage_path(job, StepName.PROJECT)).folder)
    return AppModel.load(folder / platform_of(job).payload / MODEL_FILE)


def _app(resolved: Resolved) -> Step:
    job = resolved.job
    output = stage_path(job, StepName.RUNNER)
    platform = platform_of(job)

    def act(log: StepLog) -> str:
        subject = subject_of(job, written_model(job))
        if subject.plan.provider.value == Provider.SOURCE:
            subject = sourced(resolved, subject, log)
        project = Project.load(stage_path(job, StepName.PROJECT))
        work = job.state / _WORK
        built = platform.build(subject, Path(project.folder), work, log.progress, log.log)
        _as_runner(built, subject.plan).save(output)
        return "; ".join(
            [f"{built.id}, {console.size(built.size_bytes)}, built by {built.how}", *built.notes]
        )

    def sound() -> str | None:
        return None if _archive(BuiltRunner.load(output)).is_file() else "the app is gone"

    return Step(
        StepName.RUNNER,
        "build the app",
        output,
        act,
        needs=(StepName.EXPORT, StepName.PLAN, StepName.PROJECT),
        inputs={
            "the tools": resolved.app.tools if resolved.app else None,
            CODE: resolved.rules,
        },
        sound=sound,
        value=BuiltRunner,
        load=Load.HEAVY,
    )


def _given(resolved: Resolved) -> Step:
    job = resolved.job
    output = stage_path(job, StepName.RUNNER)
    archive = job.app.given if job.app else None

    def act(log: StepLog) -> str:  # noqa: ARG001 - pure and quick
        if archive is None:
            raise RuntimeError("no app is given")
        _, program = load_program(job)
        built, model = platform_of(job).read_archive(archive)
        if model.program_sha256 != program.sha256:
            raise CheckError(
                "the app was made for another program than the recipe's",
                place=str(archive),
                remedy=_write_again(job.target.system),
            )
        _as_runner(built, RuntimePlan.load(stage_path(job, StepName.PLAN))).save(output)
        return f"{built.id}, {console.size(built.size_bytes)}, as it was given"

    return Step(
        StepName.RUNNER,
        "look at the app",
        output,
        act,
        needs=(StepName.EXPORT, StepName.PLAN),
        inputs={
            "the app": str(archive),
            "its contents": resolved.app.given if resolved.app else None,
        },
        value=BuiltRunner,
    )


def _write_again(system: str) -> str:
    return (
        f"Write the project again, with the same recipe, and build it: etdeploy app {system} "
        "--output FOLDER"
    )


def _as_runner(built: BuiltApp, plan: RuntimePlan) -> BuiltRunner:
    """An app as what runs a program."""
    archive = Path(built.archive)
    return BuiltRunner(
        path=str(archive.parent),
        executable=archive.name,
        libraries=(),
        loader=None,
        target=plan.target,
        sha256=built.sha256,
        operators=(),
        backends=(),
        executorch_version=plan.executorch_version,
        listed_by="libraries",
        size_bytes=built.size_bytes,
        provider=Provider(str(plan.provider.value)),
        app=AppDetails(
            id=built.id,
            version=built.version,
            # Products of one Swift package have its version alone.
            artifacts=tuple(dict.fromkeys(part.value for part in plan.components if part.value)),
            build=built.how,
        ),
    )


def _archive(runner: BuiltRunner) -> Path:
    return Path(runner.path) / runner.executable


def _bundle(resolved: Resolved) -> Step:
    job = resolved.job
    output = stage_path(job, StepName.BUNDLE)

    def act(log: StepLog) -> str:  # noqa: ARG001 - pure and quick
        exported, _ = load_program(job)
        folder = Path(exported.folder)
        runner = BuiltRunner.load(stage_path(job, StepName.RUNNER))
        built, model = platform_of(job).read_archive(_archive(runner))
        name = ARCHIVE[job.target.system]
        files = {name: _archive(runner)}
        if not model.bundled:
            files[PROGRAM_FILE] = folder / PROGRAM_FILE
        files |= request_files(job, load_provenance(folder), folder) or {}
        bundle = Bundle(
            files=tuple(bundle_file(source, path) for path, source in files.items()),
            launch=AppLaunch(id=built.id, archive=name),
        )
        bundle.save(output)
        size_bytes = sum(file.size_bytes for file in bundle.files)
        return f"{console.count(len(files), 'file')}, {console.size(size_bytes)}"

    def sound() -> str | None:
        files = Bundle.load(output).files
        return None if all(Path(f.source).is_file() for f in files) else "one of the files is gone"

    return Step(
        StepName.BUNDLE,
        "list the files that go to the device",
        output,
        act,
        needs=(StepName.EXPORT, StepName.RUNNER),
        inputs=generation_inputs(job),
        sound=sound,
        value=Bundle,
    )


def load_project(job: Job) -> Project:
    """The last project of the project step."""
    return Project.load(stage_path(job, StepName.PROJECT))


def copy_project(job: Job, folder: Path, conflicts: Conflicts) -> tuple[Project, Written]:
    """Writes the project of the project step into a folder of the user."""
    project = load_project(job)
    made = Path(project.folder)
    content = {name: made / name for name in folder_files(made) if name != LIST_FILE}
    platform = platform_of(job)
    return project, write_project(folder, content, platform.kind, conflicts, platform.anchor)


def write_cpp_library(
    job: Job, folder: Path, conflicts: Conflicts, progress: Progress
) -> tuple[Project, Written]:
    """Builds the C++ library of a job whose runner was checked, and writes it for the user."""
    from etdeploy.apps.cpp import (
        KIND,
        CppSubject,
        library_files,
        require_library,
        require_no_own_c_library,
    )
    from etdeploy.apps.merge import digest_content
    from etdeploy.apps.payload import make_payload

    exported, program = load_program(job)
    made = Path(exported.folder)
    model, payload, notes = make_payload(
        job.loaded, program, load_provenance(made), made, library=True
    )
    if job.loaded.recipe.app.bundled is None:
        # Only an app has to stay small.
        payload = {**payload, PROGRAM_FILE: made / PROGRAM_FILE}
        model = model.model_copy(update={"bundled": True})
    plan = RuntimePlan.load(stage_path(job, StepName.PLAN))
    require_library(job.target, generates=model.generation is not None)
    require_no_own_c_library(plan)
    libraries = Libraries.load(stage_path(job, StepName.RUNTIME))
    subject = CppSubject(job.loaded, program, model, payload, plan, libraries, load_runner(job))
    own, log = resolve(job).custom_ops, job.state / "library.log"
    files, signature = library_files(subject, job.host, job.workspace, own, progress, log)
    project = Project(
        folder=str(folder),
        platform="cpp",
        kind=KIND,
        id=job.target.name,
        files=digest_json({path: digest_content(content) for path, content in files.items()}),
        notes=(*notes, *signature.notes),
    )
    return project, write_project(folder, files, KIND, conflicts)


def build_of(job: Job, folder: Path, progress: Progress) -> BuiltApp:
    """Builds the app of a user's project, with all that the user changed in it."""
    log = job.state / "app.log"
    subject = subject_of(job, written_model(job))
    if subject.plan.provider.value == Provider.SOURCE:
        subject = sourced(resolve(job), subject, StepLog(progress, log))
    where = sha256_bytes(str(folder.resolve()).encode())[:16]
    work = job.workspace.folder(CacheKind.BUILDS) / f"app-{where}"
    platform = platform_of(job)
    built = platform.build(subject, folder, work, progress, log)
    return built.model_copy(update={"archive": str(_beside(built, folder / platform.output))})


def _beside(built: BuiltApp, target: Path) -> Path:
    """The app where the system's own tools would leave it, outside of the sources."""
    source = Path(built.archive)
    if source != target and not (target.is_file() and sha256_file(target) == built.sha256):
        target.parent.mkdir(parents=True, exist_ok=True)
        copy_file(source, target)
    return target.absolute()
