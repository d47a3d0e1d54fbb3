"""etdeploy plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from etdeploy.cli.named import Named
from etdeploy.cli.options import devices_option, output_option, recipes_options, target_option
from etdeploy.core import console
from etdeploy.core.text.layout import fit

if TYPE_CHECKING:
    from pathlib import Path

    from etdeploy.core.values import Explained
    from etdeploy.graph.explain import Explanation


_WIDE = 52


@click.command()
@recipes_options
@devices_option
@target_option
@output_option
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
) -> None:
    """Explain every choice and every task of a run; change nothing.

    Succeeds even if a run could not start; scripts that need to know use --check.
    With --target, no device is contacted. `--format cmake-preset` prints a CMakePresets.json for
    plain cmake and IDEs: put it beside the CMakeLists.txt that it names.

    Several recipes or devices are one graph: it shows which tasks they share.
    """
    named = Named(recipes, overrides, (None,) if target else devices, target, output)
    if named.single:
        _explain_one(named, form, why, check)
        return
    from etdeploy.cli.many_plans import explain_all

    explain_all(named, form, why, check)


def _explain_one(named: Named, form: str, why: str | None, check: bool) -> None:
    from etdeploy.graph.explain import explain, mermaid
    from etdeploy.graph.job import open_job
    from etdeploy.graph.preflight import refuse_early
    from etdeploy.graph.preset import cmake_presets
    from etdeploy.graph.resolve import resolve
    from etdeploy.recipe.load import load_recipe

    loaded = load_recipe(named.recipes[0], named.overrides)
    with open_job(loaded, named.output, named.devices[0], named.target) as job:
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


def explained(plan: Explanation, name: str) -> Explained:
    """The choice with that name.

    Raises:
        UsageError: The plan has no such choice.
    """
    from difflib import get_close_matches

    from etdeploy.core.errors import UsageError

    toolchain = [plan.toolchain] if plan.toolchain else []
    choices = {c.name: c for c in (plan.provider, *toolchain, *plan.components, *plan.options)}
    bare = name.removeprefix("-D").partition("=")[0]
    for candidate in (bare, bare.upper(), f"EXECUTORCH_{bare.upper()}"):
        if candidate in choices:
            return choices[candidate]
    near = get_close_matches(bare.upper(), choices, n=3) or get_close_matches(bare, choices, n=3)
    raise UsageError(
        f"the plan for {plan.target} does not set {bare}: ExecuTorch's default applies",
        remedy=f"Did you mean {' or '.join(near)}?" if near else "etdeploy plan shows what is set.",
    )


def text(plan: Explanation, width: int | None = None) -> str:
    """The explanation as text, with lines of at most `width` columns if that is given."""
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
    """What prevents a run, and what to know before one, as sections."""
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
    """What the program changed, as a section; nothing if there are no changes."""
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


def _section(title: str, items: Sequence[Explained]) -> str:
    if not items:
        return f"{title}\n  none"
    rows = [(f"{i.name}={i.value}" if i.value is not None else i.name, i.reason) for i in items]
    # A single long value must not push all reasons to the right.
    width = max((len(name) for name, _ in rows if len(name) <= _WIDE), default=0)
    return title + "\n" + "\n".join(f"  {name:<{width}}  because {why}" for name, why in rows)


def _indented(block: str) -> str:
    return "\n".join("  " + line for line in block.splitlines())
