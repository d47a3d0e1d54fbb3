"""The steps of a bisection that was stopped, so that it goes on with them."""

from __future__ import annotations

from pathlib import Path

from etdeploy.core.hashing import digest_json
from etdeploy.core.values import Value
from etdeploy.farm.verdicts.bisect.model import Candidate, Step
from etdeploy.farm.verdicts.bisect.run import Asked

_LENGTH = 12


class Kept(Value):
    """What was asked, and the steps that are done."""

    good: Candidate
    bad: Candidate
    steps: tuple[Step, ...] = ()


def file_of(output: Path, asked: Asked, recipe: str, settings: tuple[str, ...]) -> Path:
    """The file of a bisection: another one for everything that changes what is measured.

    Args:
        output: The folder for run records.
        asked: What is looked for.
        recipe: The recipe's path.
        settings: Overrides of the recipe.
    """
    candidates = [each.model_dump() for each in asked.candidates]
    named = [asked.device, asked.metric, recipe, list(settings), candidates]
    return output / f"bisect-{digest_json(named)[:_LENGTH]}.json"


def steps_in(file: Path) -> tuple[Step, ...]:
    """The steps that are done; none where there is no such file."""
    kept = Kept.load_or_none(file)
    return kept.steps if kept else ()


def add(file: Path, asked: Asked, step: Step) -> None:
    """Adds a step."""
    kept = Kept(good=asked.candidates[0], bad=asked.candidates[-1], steps=(*steps_in(file), step))
    kept.save(file)
