"""etdeploy plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from etdeploy.cli.options import device_option, output_option, recipe_options, target_option
from etdeploy.core import console

if TYPE_CHECKING:
    from pathlib import Path

    from etdeploy.core.values import Explained
    from etdeploy.graph.explain import Explanation


@click.command()
@recipe_options
@device_option
@target_option
@output_option
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "mermaid"]),
    default="text",
    show_default=True,
    help="How to print it.",
)
@click.option("--json", "form", flag_value="json", help="The same as --format json.")
def command(
    recipe: str,
    overrides: tuple[str, ...],
    device: str,
    target: str | None,
    output: Path,
    form: str,
) -> None:
    """Explain every choice and every task of a run; change nothing.

    With --target no device is asked.
    """
    from etdeploy.graph.explain import explain, mermaid
    from etdeploy.graph.job import open_job
    from etdeploy.recipe.load import load_recipe

    loaded = load_recipe(recipe, overrides)
    with open_job(loaded, output, None if target else device, target) as job:
        explanation = explain(job)
    if form == "json":
        console.result_json(explanation.model_dump(mode="json"))
    elif form == "mermaid":
        console.result(mermaid(explanation))
    else:
        console.result(text(explanation))


def text(plan: Explanation) -> str:
    """The explanation for people."""
    where = f"device {plan.device}" if plan.device else "no device"
    head = [f"recipe {plan.recipe} for {plan.target} ({where})"]
    if plan.provisional:
        head.append("provisional: the program is not exported yet, so this follows from the recipe")
    toolchain = [plan.toolchain] if plan.toolchain else []
    parts = [
        "\n".join(head),
        _section("runtime", [plan.provider, *toolchain]),
        _section("components", plan.components),
        _section("cmake options", plan.options),
        "tasks\n"
        + _indented(
            console.table(
                ("task", "state", "why"), [(t.name, t.value, t.reason) for t in plan.tasks]
            )
        ),
    ]
    if plan.obstacles:
        parts.append(
            "in the way\n"
            + "\n".join(
                f"  {o.name}: {o.reason}\n{_indented(_indented(o.remedy))}" for o in plan.obstacles
            )
        )
    return "\n\n".join(parts)


def _section(title: str, items: Sequence[Explained]) -> str:
    if not items:
        return f"{title}\n  none"
    rows = [(f"{i.name}={i.value}" if i.value is not None else i.name, i.reason) for i in items]
    width = max(len(name) for name, _ in rows)
    return title + "\n" + "\n".join(f"  {name:<{width}}  because {why}" for name, why in rows)


def _indented(block: str) -> str:
    return "\n".join("  " + line for line in block.splitlines())
