"""etdeploy plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import click

from etdeploy.cli.options import options
from etdeploy.core import console
from etdeploy.core.errors import UsageError
from etdeploy.core.layout import fit
from etdeploy.graph.options import JobOptions, job_options

if TYPE_CHECKING:
    from etdeploy.core.values import ReasonedChoice
    from etdeploy.graph.explain import Explanation, GraphExplanation
    from etdeploy.graph.run import Ready

# A longer name does not push the reasons of the others to the right.
_NAME_COLUMNS = 52


@click.command()
@options(
    "recipes",
    "set",
    "model",
    "text",
    "image",
    "audio",
    "context",
    "devices",
    "target",
    "output",
    "as",
    "app",
)
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
    help="Fail with a run's exit code if a run would fail before its first step.",
)
def plan(form: str, why: str | None, check: bool, **values: Any) -> None:
    """Explain every choice and every task of a run; change nothing.

    Without --check, it succeeds even if a run could not start, unless the model cannot be exported.

    With --target, no device is contacted. `--format cmake-preset` prints a CMakePresets.json for
    plain cmake and IDEs: put it next to the CMakeLists.txt that it names.

    With several recipes or devices, the plan shows which tasks they share.
    """
    named = job_options(needs_device=False, downloads=False, **values)
    if form == "cmake-preset":
        _require_preset(named)
    from etdeploy.graph.explain import cmake_presets, explain_graph, graph_mermaid, mermaid
    from etdeploy.graph.invocation import open_named, raise_failures
    from etdeploy.graph.run import look_up, refused_of

    with open_named(named) as members:
        ready, ends = look_up(members.all)
        if named.single:
            raise_failures(ends)
        graph = explain_graph(ready)
        [first, *_] = graph.jobs or [None]
        if first is None:
            pass  # the list of failures says why
        elif why is not None:
            _show_choice(graph, ready, why, form, named.single)
        elif form == "cmake-preset":
            console.result_json(cmake_presets(ready[0].resolved))
        elif form == "json":
            console.result_json((first if named.single else graph).model_dump(mode="json"))
        elif form == "mermaid":
            console.result(mermaid(first) if named.single else graph_mermaid(graph))
        elif named.single:
            console.result(plan_text(first, console.width()))
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
    """Print one choice of each job whose plan has it; raise UsageError if none has."""
    found, errors = {}, []
    for each, plan in zip(ready, graph.jobs, strict=True):
        try:
            found[each.member.pair] = find_choice(plan, why)
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
    """Return the graph as text: its jobs, shared tasks, and what prevents a run."""
    head = f"{console.count(len(graph.jobs), 'run')}, {console.count(len(graph.tasks), 'task')}"
    jobs = [
        f"  {each.member.pair}: {_in_short(plan)}"
        for each, plan in zip(ready, graph.jobs, strict=True)
    ]
    rows = [(t.name, _state(t.value, t.expected), t.reason) for t in graph.tasks]
    table = console.table(("task", "state", "why"), rows, width=width and width - 2)
    parts = [
        "\n".join([head, *jobs]),
        "tasks, each done once for all runs that it names\n" + _indented(table),
        *_obstacles(graph, ready),
    ]
    if any(task.expected for task in graph.tasks):
        parts.append(
            "expected: these runs share the task if their programs turn out as the recipes\n"
            "suggest; that is known after the export."
        )
    parts.append("etdeploy plan with one recipe and one device explains every choice.")
    return fit("\n\n".join(parts), width)


def _in_short(plan: Explanation) -> str:
    provisional = ", derived from the recipe alone" if plan.provisional else ""
    return f"{plan.target}, {plan.provider.value} {plan.executorch_version}{provisional}"


def _state(value: str, expected: bool) -> str:
    return f"{value}, expected" if expected else value


def _obstacles(graph: GraphExplanation, ready: Sequence[Ready]) -> Iterator[str]:
    """Yield what prevents runs, once for all runs with the same reason."""
    by_text: dict[str, list[str]] = {}
    for each, plan in zip(ready, graph.jobs, strict=True):
        for section in obstacles(plan):
            by_text.setdefault(section, []).append(str(each.member.pair))
    for section, pairs in by_text.items():
        title, _, rest = section.partition("\n")
        yield f"{title} ({', '.join(pairs)})\n{rest}"


def find_choice(plan: Explanation, name: str) -> ReasonedChoice:
    """Return the choice with this name."""
    toolchain = [plan.toolchain] if plan.toolchain else []
    program = (*plan.language_model, *plan.rewrites)
    every = (plan.provider, *toolchain, *program, *plan.components, *plan.options)
    choices = {choice.name: choice for choice in every}
    bare = name.removeprefix("-D").partition("=")[0]
    for candidate in (bare, bare.upper(), f"EXECUTORCH_{bare.upper()}"):
        if candidate in choices:
            return choices[candidate]
    near = get_close_matches(bare.upper(), choices, n=3) or get_close_matches(bare, choices, n=3)
    raise UsageError(
        f"the plan for {plan.target} does not set {bare}: ExecuTorch's default applies",
        remedy=f"Did you mean {' or '.join(near)}?" if near else "etdeploy plan shows what is set.",
    )


def plan_text(plan: Explanation, width: int | None = None) -> str:
    """Return the explanation as text, in lines of at most `width` columns."""
    where = f"device {plan.device}" if plan.device else "no device"
    head = [f"recipe {plan.recipe} for {plan.target} ({where})"]
    if plan.provisional:
        head.append(
            "provisional: the program is not exported yet, so this is derived from the recipe"
        )
    toolchain = [plan.toolchain] if plan.toolchain else []
    parts = [
        "\n".join(head),
        _section("runtime", [plan.provider, *toolchain]),
        *([_section("language model", plan.language_model)] if plan.language_model else []),
        *([_section("rewrites of the model", plan.rewrites)] if plan.rewrites else []),
        _section("components", plan.components),
        _section("cmake options", plan.options),
        *_changed(plan),
        "tasks\n"
        + _indented(
            console.table(
                ("task", "state", "why"),
                [(t.name, t.value, t.reason) for t in plan.tasks],
                width=width and width - 2,
            )
        ),
        *obstacles(plan),
    ]
    return fit("\n\n".join(parts), width)


def obstacles(plan: Explanation) -> list[str]:
    """Return what prevents a run, and notes, as sections."""
    parts = []
    for title, blockers in (("blockers", plan.blockers), ("not installed", plan.not_installed)):
        if blockers:
            parts.append(
                f"{title}\n"
                + "\n".join(
                    f"  {b.what}: {b.why}\n{_indented(_indented(b.remedy))}" for b in blockers
                )
            )
    if plan.notes:
        parts.append("notes\n" + "\n".join(f"  {note}" for note in plan.notes))
    return parts


def _changed(plan: Explanation) -> list[str]:
    """Return a section with what the program changed, if anything."""
    if not plan.changes:
        return []
    lines = [
        f"  {c.name}: {_or_none(c.before)} -> {_or_none(c.now)}  because {c.reason}"
        for c in plan.changes
    ]
    return [
        "changed by the program, compared with the plan from the recipe alone\n" + "\n".join(lines)
    ]


def _or_none(value: str | None) -> str:
    return "not set" if value is None else value


def _section(title: str, items: Sequence[ReasonedChoice]) -> str:
    if not items:
        return f"{title}\n  none"
    rows = [(f"{i.name}={i.value}" if i.value is not None else i.name, i.reason) for i in items]
    width = max((len(name) for name, _ in rows if len(name) <= _NAME_COLUMNS), default=0)
    return title + "\n" + "\n".join(f"  {name:<{width}}  because {why}" for name, why in rows)


def _indented(block: str) -> str:
    return "\n".join("  " + line for line in block.splitlines())
