"""Which rewrites of the model's graph an export tries, what they did, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from etdeploy.backends.rewrites import REWRITES, Chosen
from etdeploy.core.values import Explained
from etdeploy.recipe.model import Recipe


def rewrite_choices(
    recipe: Recipe, chosen: Chosen, found: Mapping[str, Any] | None
) -> tuple[Explained, ...]:
    """One entry for each rewrite that the backend has.

    Args:
        recipe: What the user requested.
        chosen: What is tried for the target.
        found: What the export told of them, as `export.json` has it; None before the export.
    """
    asked = recipe.export.rewrites
    named = () if isinstance(asked, str) else {*asked} & {*chosen.names}
    return tuple(
        Explained(name=name, value=value, reason=reason, by_hand=name in named)
        for name, value, reason in _entries(chosen, found)
    )


def _entries(chosen: Chosen, found: Mapping[str, Any] | None) -> Iterator[tuple[str, str, str]]:
    for name in (each for each in REWRITES if each in {*chosen.names, *chosen.left_out}):
        if name in chosen.left_out:
            yield name, "left out", chosen.left_out[name]
        elif found is None:
            yield name, "tried", f"it {REWRITES[name].summary}"
        elif "dropped" in found:
            yield name, "dropped", f"exported without rewrites, since {found['dropped']}"
        else:
            yield name, *_done(name, found)


def _done(name: str, found: Mapping[str, Any]) -> tuple[str, str]:
    places = found["applied"].get(name, 0)
    reasons = dict.fromkeys(each["reason"] for each in found["left"] if each["rewrite"] == name)
    left = f"left something as it is: {'; '.join(reasons)}" if reasons else ""
    if not places:
        return "nowhere", left or "the model has nothing for it"
    done = f"it {REWRITES[name].summary}"
    return f"{places} x", f"{done}; {left}" if left else done
