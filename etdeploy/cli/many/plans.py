"""`plan` with several recipes or devices: the graph that they share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from etdeploy.cli.many.jobs import raise_failures, wanted_of
from etdeploy.cli.options import JobOptions
from etdeploy.cli.plan_text import explained, obstacles
from etdeploy.core import console
from etdeploy.core.errors import UsageError
from etdeploy.core.layout import fit
from etdeploy.graph.explain import Explanation
from etdeploy.graph.many.explain import GraphExplanation, explain_graph, mermaid
from etdeploy.graph.many.members import open_members
from etdeploy.graph.many.run import Ready, look_up, refused_of


def explain_all(named: JobOptions, form: str, why: str | None, check: bool) -> None:
    """Explains the graph of every recipe on every device; changes nothing."""
    if form == "cmake-preset":
        raise UsageError(
            "a CMakePresets.json is for one recipe and one device",
            remedy="Name one of each: etdeploy plan --recipe RECIPE --device DEVICE "
            "--format cmake-preset",
        )
    with open_members(wanted_of(named)) as members:
        for note in members.notes:
            console.warn(note)
        ready, ends = look_up(members.all)
        graph = explain_graph(ready)
        if not ready:
            pass  # the list of failures says why
        elif why is not None:
            _show_choice(graph, ready, why, form)
        elif form == "json":
            console.result_json(graph.model_dump(mode="json"))
        elif form == "mermaid":
            console.result(mermaid(graph))
        else:
            console.result(text(graph, ready, console.width()))
        if check:
            ends += refused_of(ready)
    raise_failures(ends, len(members.all))


def _show_choice(graph: GraphExplanation, ready: Sequence[Ready], why: str, form: str) -> None:
    """One choice in each job; a job whose plan does not have it says so."""
    found, errors = {}, []
    for each, plan in zip(ready, graph.jobs, strict=True):
        try:
            found[each.member.pair] = explained(plan, why)
        except UsageError as error:
            errors.append(error)
    if not found and errors:
        raise errors[0]
    if form == "json":
        console.result_json(
            [{**pair._asdict(), **choice.model_dump(mode="json")} for pair, choice in found.items()]
        )
        return
    lines = [
        f"{pair}: {c.name if c.value is None else f'{c.name}={c.value}'}\n  because {c.reason}"
        for pair, c in found.items()
    ]
    console.result(fit("\n".join(lines), console.width()))


def text(graph: GraphExplanation, ready: Sequence[Ready], width: int | None = None) -> str:
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
    for each, plan in zip(ready, graph.jobs, strict=True):
        for section in obstacles(plan):
            by_text.setdefault(section, []).append(str(each.member.pair))
    for section, pairs in by_text.items():
        title, _, rest = section.partition("\n")
        yield f"{title} ({', '.join(pairs)})\n{rest}"


def _indented(block: str) -> str:
    return "\n".join("  " + line for line in block.splitlines())
