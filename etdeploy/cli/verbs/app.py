"""etdeploy app."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click

from etdeploy.apps.merge import Conflicts
from etdeploy.cli.options import (
    JobOptions,
    complete_device,
    json_option,
    model_options,
    quiet_option,
    recipe_options,
)
from etdeploy.core import console
from etdeploy.core.commands import quoted
from etdeploy.core.errors import UsageError
from etdeploy.core.layout import fit
from etdeploy.graph.job import StepName

if TYPE_CHECKING:
    from etdeploy.apps.merge import Written
    from etdeploy.apps.platform import BuiltApp
    from etdeploy.apps.project import Project
    from etdeploy.graph.job import Job

F = TypeVar("F", bound=Callable[..., Any])
_TARGETS = {"android": "android-arm64", "ios": "ios-arm64"}
_SHOWN = 6


@click.group()
def command() -> None:
    """Write the project of a sample app that runs the recipe's model.

    The app shows latencies, or the text of a language model, and leaves the same results as a
    runner: etdeploy run --as app measures it.
    """


def _options(function: F) -> F:
    """The options of both platforms."""
    for option in (
        quiet_option,
        json_option,
        click.option(
            "--conflicts",
            type=click.Choice(get_args(Conflicts)),
            default="refuse",
            show_default=True,
            help="What to do about files that you changed and that are generated in another way "
            "now: write nothing, keep yours, or move yours to the folder `yours`.",
        ),
        click.option("--build", is_flag=True, help="Also build the app of the project."),
        click.option(
            "-d",
            "--device",
            metavar="DEVICE",
            shell_complete=complete_device,
            help="A device that is connected: the app is for its processor and SoC.",
        ),
        click.option(
            "-o",
            "--output",
            required=True,
            type=click.Path(path_type=Path),
            metavar="FOLDER",
            help="The project's folder: new, empty, or with an earlier project of this kind.",
        ),
        model_options,
        recipe_options,
    ):
        function = option(function)
    return function


@command.command("android")
@_options
def android(**options: Any) -> None:
    """Write a Gradle project in Kotlin, which opens in Android Studio.

    --build builds its APK: with Gradle if it is installed, else with the tools of the Android SDK
    alone.
    """
    _write("android", **options)


@command.command("ios")
@_options
def ios(**options: Any) -> None:
    """Write an Xcode project in Swift.

    --build builds and signs it, on a Mac with Xcode.
    """
    _write("ios", **options)


def _write(
    platform: str,
    *,
    recipe: str,
    overrides: tuple[str, ...],
    output: Path,
    device: str | None,
    build: bool,
    conflicts: Conflicts,
    as_json: bool,
    quiet: bool,
) -> None:
    from etdeploy.apps.merge import require_project
    from etdeploy.cli.invocation import run_recipe
    from etdeploy.graph.app_steps import copy_project
    from etdeploy.graph.job import AppOptions

    _require_kind(platform, device)
    require_project(output, f"{platform} app")
    target = None if device else _TARGETS[platform]
    named = JobOptions(
        (recipe,), overrides, (device,), target, quiet=quiet, app=AppOptions(builds=build)
    )
    with run_recipe(named, StepName.PROJECT) as job:
        project, written = copy_project(job, output, conflicts)
        built = _built(job, output, quiet=quiet) if build else None
    if as_json:
        console.result_json(_as_json(output, project, written, built))
    else:
        console.result(fit(_as_text(output, project, written, built), console.width()))


def _require_kind(platform: str, device: str | None) -> None:
    """Raises UsageError for a device of another kind."""
    if device and device.partition(":")[0] != platform:
        raise UsageError(
            f"the app targets {platform}; {device} does not run {platform} apps",
            remedy=f"Name one like --device {platform}, or none",
        )


def _built(job: Job, folder: Path, *, quiet: bool) -> BuiltApp:
    from etdeploy.core.console import lazy_task
    from etdeploy.graph.app_steps import build_of

    with (
        console.TaskDisplay(quiet=quiet) as display,
        lazy_task(display, "app", "built") as tell,
    ):
        return build_of(job, folder, tell)


def _as_json(
    output: Path, project: Project, written: Written, built: BuiltApp | None
) -> dict[str, Any]:
    return {
        "folder": str(output.resolve()),
        "platform": project.platform,
        "id": project.id,
        "notes": project.notes,
        **vars(written),
        "app": built.model_dump(mode="json") if built else None,
    }


def _as_text(output: Path, project: Project, written: Written, built: BuiltApp | None) -> str:
    lines = [f"project    {output}  ({project.id})"]
    for label, paths in vars(written).items():
        if paths:
            more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
            names = ", ".join(paths[:_SHOWN]) + more
            lines.append(f"{label:<10} {console.count(len(paths), 'file')}: {names}")
    if not any(vars(written).values()):
        lines.append("changed    nothing")
    notes = (*project.notes, *(built.notes if built else ()))
    lines += [f"note       {note}" for note in notes]
    if built:
        lines.append(f"app        {built.archive}, {console.size(built.size_bytes)}")
        lines.append(f"built by   {built.how}")
    return "\n".join([*lines, "", *_next(project, output, built)])


def _next(project: Project, output: Path, built: BuiltApp | None) -> list[str]:
    """What to do with it."""
    if built and project.platform == "android":
        return [f"next: adb install -r {quoted(Path(built.archive))}"]
    if project.from_source:
        return [
            "next: add --build, which also builds ExecuTorch and puts it into the project; Android "
            "Studio finds it there from then on"
        ]
    if project.platform == "android":
        return [
            "next: open the folder in Android Studio and press Run, or build it here: add --build"
        ]
    return [f"next: on a Mac, open {quoted(output)} in Xcode, choose your team, and press Run"]
