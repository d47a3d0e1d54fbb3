"""The project of an app in a folder of the user, and the app that is built of it there."""

from __future__ import annotations

from pathlib import Path

from etdeploy.apps.merge import Conflicts, Written, write_project
from etdeploy.apps.platform import BuiltApp, platform_for
from etdeploy.apps.project import Project
from etdeploy.apps.renaming import LIST_FILE
from etdeploy.cache.folder import CacheKind
from etdeploy.core.files.basic import copy_file, folder_files
from etdeploy.core.hashing import sha256_bytes, sha256_file
from etdeploy.core.progress import Progress
from etdeploy.graph.apps.steps import sourced, subject_of, written_model
from etdeploy.graph.job import Job
from etdeploy.graph.resolve import resolve
from etdeploy.graph.stage_values import StepName, stage_path
from etdeploy.graph.tasks.steps import StepLog
from etdeploy.plan.model import Provider


def load_project(job: Job) -> Project:
    """The last project of the project step."""
    return Project.load(stage_path(job, StepName.PROJECT))


def copy_project(job: Job, folder: Path, conflicts: Conflicts) -> tuple[Project, Written]:
    """Writes the project of the project step into a folder of the user.

    Raises:
        UsageError: The folder holds something else, or the user changed what is generated in
            another way now.
    """
    project = load_project(job)
    made = Path(project.folder)
    content = {name: made / name for name in folder_files(made) if name != LIST_FILE}
    anchor = platform_for(project.platform).anchor
    what = f"{project.platform} app"
    return project, write_project(folder, content, what, conflicts, anchor)


def build_of(job: Job, folder: Path, progress: Progress) -> BuiltApp:
    """Builds the app of a user's project, with all that the user changed in it.

    Raises:
        BuildError: A tool is missing or failed.
    """
    log = job.state / "app.log"
    subject = subject_of(job, written_model(job))
    if subject.plan.provider.value == Provider.SOURCE:
        subject = sourced(resolve(job), subject, StepLog(progress, log))
    where = sha256_bytes(str(folder.resolve()).encode())[:16]
    work = job.workspace.folder(CacheKind.BUILDS) / f"app-{where}"
    platform = platform_for(job.target.system)
    built = platform.build(subject, folder, work, progress, log)
    return built.model_copy(update={"archive": str(_beside(built, folder / platform.output))})


def _beside(built: BuiltApp, target: Path) -> Path:
    """The app where the system's own tools would leave it, which is no part of the sources."""
    source = Path(built.archive)
    if source != target and not (target.is_file() and sha256_file(target) == built.sha256):
        target.parent.mkdir(parents=True, exist_ok=True)
        copy_file(source, target)
    return target.absolute()
