"""etdeploy plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from etdeploy.cli.options import (
    JobOptions,
    as_option,
    devices_option,
    model_options,
    output_option,
    recipes_options,
    target_option,
)
from etdeploy.core import console
from etdeploy.core.errors import UsageError
from etdeploy.core.layout import fit

if TYPE_CHECKING:
    from pathlib import Path

    from etdeploy.core.values import Explained
    from etdeploy.graph.job import AppWish


@click.command()
@recipes_options
@model_options
@devices_option
@target_option
@output_option
@as_option
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "mermaid", "cmake-preset"]),
    default="text",
    show_default=True,
    help="The output format.",
)
@click.option("--json", "form", flag_value="json", help="The same as --format json.")
@click.option("--why", metavar="NAME", help="Explain only this option, component or choice.")
@click.option(
    "--check",
    is_flag=True,
    help="Then fail if a run would fail before its first step, with the same exit code.",
)
def command(
    recipes: tuple[str, ...],
    overrides: tuple[str, ...],
    devices: tuple[str, ...],
    target: str | None,
    output: Path,
    form: str,
    why: str | None,
    check: bool,
    app: AppWish | None,
) -> None:
    """Explain every choice and every task of a run; change nothing.

    Succeeds even if a run could not start, unless the model cannot be exported; scripts that need
    to know use --check.
    With --target, no device is contacted. `--format cmake-preset` prints a CMakePresets.json for
    plain cmake and IDEs: put it beside the CMakeLists.txt that it names.

    Several recipes or devices are one graph: it shows which tasks they share.
    """
    named = JobOptions(recipes, overrides, (None,) if target else devices, target, output, app=app)
    if named.single:
        _explain_one(named, form, why, check)
        return
    from etdeploy.cli.many.plans import explain_all

    explain_all(named, form, why, check)


def _explain_one(named: JobOptions, form: str, why: str | None, check: bool) -> None:
    from etdeploy.cli.plan_text import explained, text
    from etdeploy.graph.explain import cmake_presets, explain, mermaid
    from etdeploy.graph.job import open_job
    from etdeploy.graph.preflight import refuse_early
    from etdeploy.graph.resolve import resolve
    from etdeploy.recipe.load import load_recipe

    if named.app and form == "cmake-preset":
        raise UsageError(
            "an app is built by Gradle, Xcode or the Android SDK, and has no cmake preset",
            remedy="Leave out --as app, or: --format text",
        )
    loaded = load_recipe(named.recipes[0], named.overrides)
    with open_job(loaded, named.output, named.devices[0], named.target, app=named.app) as job:
        resolved = resolve(job)
        explanation = explain(resolved)
        presets = cmake_presets(resolved) if form == "cmake-preset" else None
        if why is not None:
            _show_choice(explained(explanation, why), form)
        elif presets is not None:
            console.result_json(presets)
        elif form == "json":
            console.result_json(explanation.model_dump(mode="json"))
        elif form == "mermaid":
            console.result(mermaid(explanation))
        else:
            console.result(text(explanation, console.width()))
        if check:
            refuse_early(resolved, measures=True)


def _show_choice(found: Explained, form: str) -> None:
    shown = f"{found.name}={found.value}" if found.value is not None else found.name
    if form == "json":
        console.result_json(found.model_dump(mode="json"))
    else:
        console.result(fit(f"{shown}\n  because {found.reason}", console.width()))
