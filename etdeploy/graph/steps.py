"""A step of the pipeline: it makes a typed value in a file from other steps' values."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from etdeploy.core.progress import Progress
from etdeploy.core.values import Value

OTHER_RELEASE = "its last result was cut short, or another release of etdeploy wrote it"


@dataclass(frozen=True)
class StepLog:
    """What an action may use while it runs."""

    progress: Progress
    log: Path


@dataclass(frozen=True)
class Step:
    """One arrow of the pipeline.

    Attributes:
        name: As `doit list`, the display and the log file name it.
        title: What it does, for the user.
        needs: Steps whose output it reads.
        output: The JSON value that it writes.
        value: The type of that value; the step runs again if the file contains anything else.
        inputs: Everything else that determines the output, by name; a change is a reason to run.
        sound: Why what the output points to is missing or damaged; None if it is not. Called only
            if the output itself can be read.
        action: Does the work, writes `output`, and returns a line for the user.
        always: Whether it runs whenever it is selected (the device may have changed meanwhile).
    """

    name: str
    title: str
    output: Path
    action: Callable[[StepLog], str]
    needs: tuple[str, ...] = ()
    inputs: Mapping[str, Any] = field(default_factory=dict)
    sound: Callable[[], str | None] | None = None
    always: bool = False
    value: type[Value] | None = None

    @property
    def inputs_path(self) -> Path:
        """Where the inputs of the last run are kept, to say what changed."""
        return self.output.with_suffix(".inputs.json")


def changed_inputs(step: Step) -> list[str]:
    """What changed since the step's last run, as sentences."""
    try:
        before = json.loads(step.inputs_path.read_bytes())
    except (OSError, ValueError):
        return ["it has not run yet"]
    now = json.loads(json.dumps(step.inputs))
    return [
        f"{name} changed{_from_to(before.get(name), value)}"
        for name, value in now.items()
        if before.get(name) != value
    ] + [f"{name} is no longer given" for name in before if name not in now]


def _from_to(before: object, now: object) -> str:
    short = all(isinstance(v, str | int | float | bool | None) for v in (before, now))
    texts = [str(v) for v in (before, now)]
    return f" from {texts[0]} to {texts[1]}" if short and max(map(len, texts)) < 40 else ""


def reasons_to_run(step: Step) -> list[str]:
    """Why the step would run, from its own inputs and output; empty if it would not."""
    if step.always:
        return ["the device is checked each time"]
    if not step.output.is_file():
        return ["it has not run yet"]
    if step.value and step.value.load_or_none(step.output) is None:
        return [OTHER_RELEASE]
    reasons = changed_inputs(step)
    if not reasons and step.sound and (problem := step.sound()):
        reasons.append(problem)
    return reasons


def with_needs(steps: tuple[Step, ...], names: tuple[str, ...]) -> tuple[Step, ...]:
    """The named steps and all steps that they need, in order."""
    by_name = {step.name: step for step in steps}
    wanted: set[str] = set()

    def visit(name: str) -> None:
        if name not in wanted:
            wanted.add(name)
            for need in by_name[name].needs:
                visit(need)

    for name in names:
        visit(name)
    return tuple(step for step in steps if step.name in wanted)
