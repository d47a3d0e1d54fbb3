"""The explanation of a plan as text, and one choice of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from etdeploy.core import console
from etdeploy.core.layout import fit

if TYPE_CHECKING:
    from etdeploy.core.values import ReasonedChoice
    from etdeploy.graph.explain import Explanation

_WIDE = 52


def explained(plan: Explanation, name: str) -> ReasonedChoice:
    """The choice with that name."""
    from difflib import get_close_matches

    from etdeploy.core.errors import UsageError

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


def _section(title: str, items: Sequence[ReasonedChoice]) -> str:
    if not items:
        return f"{title}\n  none"
    rows = [(f"{i.name}={i.value}" if i.value is not None else i.name, i.reason) for i in items]
    # A single long value must not push all reasons to the right.
    width = max((len(name) for name, _ in rows if len(name) <= _WIDE), default=0)
    return title + "\n" + "\n".join(f"  {name:<{width}}  because {why}" for name, why in rows)


def _indented(block: str) -> str:
    return "\n".join("  " + line for line in block.splitlines())
