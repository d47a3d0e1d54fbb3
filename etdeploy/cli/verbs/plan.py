"""etdeploy plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

    from etdeploy.graph.explain import Explanation, GraphExplanation
    from etdeploy.graph.job import AppOptions
    from etdeploy.graph.run import Ready


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
    app: AppOptions | None,
) -> None:
    """Explain every choice and every task of a run; change nothing.

    Succeeds even if a run could not start, unless the model cannot be exported; scripts that need
    to know use --check.
    With --target, no device is contacted. `--format cmake-preset` prints a CMakePresets.json for
    plain cmake and IDEs: put it beside the CMakeLists.txt that it names.

    Several recipes or devices are one graph: it shows which tasks they share.
    """
    named = JobOptions(recipes, overrides, (None,) if target else devices, target, output, app=app)
    if form == "cmake-preset":
        _require_preset(named)
    from etdeploy.cli.invocation import open_named, raise_failures
    from etdeploy.cli.plan_text import text
    from etdeploy.graph.explain import cmake_presets, explain_graph, graph_mermaid, mermaid
    from etdeploy.graph.run import look_up, refused_of

    with open_named(named) as members:
        ready, ends = look_up(members.all)
        if named.single:
            raise_failures(ends)
        graph = explain_graph(ready)
        [plan, *_] = graph.jobs or [None]
        if plan is None:
            pass  # the list of failures says why
        elif why is not None:
            _show_choice(graph, ready, why, form, named.single)
        elif form == "cmake-preset":
            console.result_json(cmake_presets(ready[0].resolved))
        elif form == "json":
            console.result_json((plan if named.single else graph).model_dump(mode="json"))
        elif form == "mermaid":
            console.result(mermaid(plan) if named.single else graph_mermaid(graph))
        elif named.single:
            console.result(text(plan, console.width()))
        else:
            console.result(graph_text(graph, ready, console.width()))
        if check:
            ends += refused_of(ready)
    raise_failures(ends, len(members.all))


def _require_preset(named: JobOptions) -> None:
    """Raise UsageError unless one runner is named."""
    if not named.single:
        raise UsageError(
            "a CMakePresets.json is for one recipe and one device",
            remedy="Name one of each: etdeploy plan --recipe RECIPE --device DEVICE "
            "--format cmake-preset",
        )
    if named.app:
        raise UsageError(
            "an app is built by Gradle, Xcode or the Android SDK, and has no cmake preset",
            remedy="Leave out --as app, or: --format text",
        )


def _show_choice(
    graph: GraphExplanation, ready: Sequence[Ready], why: str, form: str, single: bool
) -> None:
    """One choice in each job; a job whose plan does not have it says so."""
    from etdeploy.cli.plan_text import explained

    found, errors = {}, []
    for each, plan in zip(ready, graph.jobs, strict=True):
        try:
            found[each.member.pair] = explained(plan, why)
        except UsageError as error:
            errors.append(error)
    if not found:
        raise errors[0]
    if form == "json":
        shown = [
            {**({} if single else pair._asdict()), **choice.model_dump(mode="json")}
            for pair, choice in found.items()
        ]
        console.result_json(shown[0] if single else shown)
        return
    lines = [
        f"{'' if single else f'{pair}: '}{c.name}{'' if c.value is None else f'={c.value}'}\n"
        f"  because {c.reason}"
        for pair, c in found.items()
    ]
    console.result(fit("\n".join(lines), console.width()))


def graph_text(graph: GraphExplanation, ready: Sequence[Ready], width: int | None = None) -> str:
    """The graph as text: its jobs, its tasks with whom they serve, and what prevents a run."""
    head = f"{console.count(len(graph.jobs), 'run')}, {console.count(len(graph.tasks), 'task')}"
    jobs = [
        f"  {each.member.pair}: {_in_short(plan)}"
        for each, plan in zip(ready, graph.jobs, strict=True)
    ]
    rows = [(t.name, _state(t.value, t.expected), t.reason) for t in graph.tasks]
    table = console.table(("task", "state", "why"), rows, width=width and width - 2)
    parts = [
        "\n".join([head, *jobs]),
        "tasks, each done once for all that it names\n" + _indented(table),
        *_obstacles(graph, ready),
    ]
    if any(task.expected for task in graph.tasks):
        parts.append(
            "expected: these runs share the task if their programs are what their recipes let\n"
            "expect; a run knows after the export."
        )
    parts.append("etdeploy plan with one recipe and one device explains every choice.")
    return fit("\n\n".join(parts), width)


def _in_short(plan: Explanation) -> str:
    provisional = ", derived from the recipe alone" if plan.provisional else ""
    return f"{plan.target}, {plan.provider.value} {plan.executorch_version}{provisional}"


def _state(value: str, expected: bool) -> str:
    return f"{value}, expected" if expected else value


def _obstacles(graph: GraphExplanation, ready: Sequence[Ready]) -> Iterator[str]:
    """What prevents runs, once for all runs that it is the same for."""
    by_text: dict[str, list[str]] = {}
    from etdeploy.cli.plan_text import obstacles

    for each, plan in zip(ready, graph.jobs, strict=True):
        for section in obstacles(plan):
            by_text.setdefault(section, []).append(str(each.member.pair))
    for section, pairs in by_text.items():
        title, _, rest = section.partition("\n")
        yield f"{title} ({', '.join(pairs)})\n{rest}"


def _indented(block: str) -> str:
    return "\n".join("  " + line for line in block.splitlines())
