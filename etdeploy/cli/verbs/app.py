"""etdeploy app."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click

from etdeploy.apps.merge import Conflicts
from etdeploy.cli.options import complete_device, options
from etdeploy.core import console
from etdeploy.core.commands import quoted
from etdeploy.core.errors import UsageError
from etdeploy.core.layout import fit
from etdeploy.graph.job import StepName
from etdeploy.graph.options import job_options

if TYPE_CHECKING:
    from etdeploy.apps.merge import Written
    from etdeploy.apps.platform import BuiltApp
    from etdeploy.apps.project import Project
    from etdeploy.graph.job import Job

F = TypeVar("F", bound=Callable[..., Any])
_TARGETS = {"android": "android-arm64", "ios": "ios-arm64"}
_SHOWN = 6


@click.group()
def app() -> None:
    """Write the project of a sample app that runs the recipe's model.

    The app shows latencies, or the text of a language model, and writes the same results as a
    runner: `etdeploy run --as app` measures it.
    """


def _shared(*more: Callable[[Any], Any]) -> Callable[[F], F]:
    """Give a platform's command its options, and `more` of its own."""

    def add_all(function: F) -> F:
        for add in (*_options(), *more):
            function = add(function)
        return function

    return add_all


def _options() -> Iterator[Callable[[Any], Any]]:
    yield from (
        options("json", "quiet"),
        click.option(
            "--conflicts",
            type=click.Choice(get_args(Conflicts)),
            default="refuse",
            show_default=True,
            help="For files of which both you and etdeploy changed the same lines: write nothing "
            "at all, keep yours, overwrite them, or write both versions between conflict markers. "
            "The last two save yours in the folder `yours`.",
        ),
        click.option(
            "-d",
            "--device",
            metavar="DEVICE",
            shell_complete=complete_device,
            help="Write the app for the processor and SoC of this connected device.",
        ),
        click.option(
            "-o",
            "--output",
            "folder",
            required=True,
            type=click.Path(path_type=Path),
            metavar="FOLDER",
            help="The project's folder: new, empty, or with an earlier project of this kind.",
        ),
        options("recipe", "set", "model", "text", "image", "audio", "context"),
    )


_BUILD = click.option("--build", is_flag=True, help="Build the app, too.")


@app.command("android")
@_shared(_BUILD)
def android(**values: Any) -> None:
    """Write a Gradle project in Kotlin, which opens in Android Studio.

    --build builds its APK: with Gradle if it is installed, else with the tools of the Android SDK
    alone.
    """
    _write("android", **values)


@app.command("ios")
@_shared(_BUILD)
def ios(**values: Any) -> None:
    """Write an Xcode project in Swift.

    --build builds and signs it, on a Mac with Xcode.
    """
    _write("ios", **values)


@app.group()
def library() -> None:
    """Write a library with the recipe's model, for an app that exists.

    It has the program, one class with the model's inputs and outputs by name and type, a test
    against the expected outputs, and a README with the lines that an app needs.
    """


@library.command("android")
@_shared()
def library_android(**values: Any) -> None:
    """Write a Gradle module in Kotlin, which can be published to a Maven folder."""
    _write("android", library=True, **values)


@library.command("ios")
@_shared()
def library_ios(**values: Any) -> None:
    """Write a Swift package."""
    _write("ios", library=True, **values)


@library.command("cpp")
@_shared(options("target"))
def library_cpp(
    folder: Path, device: str | None, conflicts: Conflicts, as_json: bool, **values: Any
) -> None:
    """Write a CMake package with a shared library, for Linux, macOS or Android.

    Without --target or --device, it is for this machine.
    """
    from etdeploy.apps.cpp import KIND, require_library
    from etdeploy.apps.merge import require_project
    from etdeploy.core.console import lazy_task
    from etdeploy.graph.app_steps import write_cpp_library
    from etdeploy.graph.invocation import run_recipe
    from etdeploy.recipe.load import load_recipes
    from etdeploy.targets.platforms import find_target, host_target

    require_project(folder, KIND)
    named = job_options(needs_device=False, device=device or "host", **values)
    # A library records no trace.
    named = replace(named, overrides=(*named.overrides, "benchmark.profile=false"))
    [loaded] = load_recipes(named.recipes, named.overrides)
    target = find_target(named.target) if named.target else host_target()
    # Before the export and the build, which may take minutes.
    require_library(target, generates=loaded.recipe.is_language_model)
    with (
        run_recipe(named, StepName.CHECK) as job,
        console.TaskDisplay(quiet=named.quiet) as display,
        lazy_task(display, "library", "built") as tell,
    ):
        project, written = write_cpp_library(job, folder, conflicts, tell)
    _show(folder, project, written, None, as_json=as_json)


def _write(
    platform: str, *, folder: Path, device: str | None, conflicts: Conflicts, as_json: bool,
    build: bool = False, library: bool = False, **values: Any,
) -> None:  # fmt: skip
    from etdeploy.apps.merge import require_project
    from etdeploy.graph.app_steps import copy_project
    from etdeploy.graph.invocation import run_recipe
    from etdeploy.graph.job import AppOptions

    if device and device.partition(":")[0] != platform:
        raise UsageError(
            f"the app targets {platform}; {device} does not run {platform} apps",
            remedy=f"Name one like --device {platform}, or none",
        )
    require_project(folder, f"{platform} {'library' if library else 'app'}")
    named = replace(
        job_options(**values),
        devices=(device,),
        target=None if device else _TARGETS[platform],
        app=AppOptions(builds=build, library=library),
    )
    with run_recipe(named, StepName.PROJECT) as job:
        project, written = copy_project(job, folder, conflicts)
        built = _built(job, folder, quiet=named.quiet) if build else None
    _show(folder, project, written, built, as_json=as_json)


def _show(
    folder: Path, project: Project, written: Written, built: BuiltApp | None, *, as_json: bool
) -> None:
    if as_json:
        console.result_json(_as_json(folder, project, written, built))
    else:
        console.result(fit(_as_text(folder, project, written, built), console.width()))


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
        **vars(written),
        "notes": [*project.notes, *written.notes],
        "app": built.model_dump(mode="json") if built else None,
    }


def _as_text(output: Path, project: Project, written: Written, built: BuiltApp | None) -> str:
    lines = [f"project    {output}  ({project.id})"]
    for label, paths in vars(written).items():
        if paths and label != "notes":
            more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
            names = ", ".join(paths[:_SHOWN]) + more
            lines.append(f"{label:<10} {console.count(len(paths), 'file')}: {names}")
    if not any(vars(written).values()):
        lines.append("changed    nothing")
    notes = (*project.notes, *written.notes, *(built.notes if built else ()))
    lines += [f"note       {note}" for note in notes]
    if built:
        lines.append(f"app        {built.archive}, {console.size(built.size_bytes)}")
        lines.append(f"built by   {built.how}")
    return "\n".join([*lines, "", *_next(project, output, built)])


def _next(project: Project, output: Path, built: BuiltApp | None) -> list[str]:
    """Return the next step for the user."""
    if project.kind.endswith("library"):
        return [f"next: {quoted(output / 'README.md')} has the lines that an app needs"]
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
