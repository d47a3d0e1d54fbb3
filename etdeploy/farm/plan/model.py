"""What `etdeploy farm plan` shows; its JSON form is an interface."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from etdeploy.core.console import count
from etdeploy.core.layout import fit, table
from etdeploy.core.values import Value
from etdeploy.farm.spec.matrix import Unsatisfied
from etdeploy.plan.requirements import some


class DiscoveredDevice(Value):
    """A device that was found; `problem` says why it cannot be used, if it cannot."""

    name: str
    host: str
    target: str
    model: str | None
    soc: str | None
    os: str | None
    pools: tuple[str, ...]
    groups: tuple[str, ...]
    problem: str = ""
    remedy: str = ""


class Lasts(Value):
    """How long something takes.

    Attributes:
        seconds: Wall time.
        basis: In words: what was measured before, or that it is a guess.
        measured: Whether the same pair was measured before.
    """

    seconds: float
    basis: str
    measured: bool


class MatrixCell(Value):
    """A pair of the matrix with the devices that it comes to.

    Attributes:
        recipe: A label.
        group: The entry of `devices`.
        devices: Names; with `take`, those that it may be.
        visits: Measurements in a night.
        each: How long one takes.
    """

    recipe: str
    group: str
    devices: tuple[str, ...]
    visits: int
    each: Lasts


class Piece(Value):
    """Something that is made once for the night.

    Attributes:
        step: A program is exported, a runner or an app is built.
        recipes: The labels that it is for.
        classes: What it is for, as target and SoC.
        cached: Whether it is there already; None where only the export can tell.
    """

    step: Literal["export", "build"]
    recipes: tuple[str, ...]
    classes: tuple[str, ...]
    cached: bool | None


class Refused(Value):
    """Why a recipe cannot be made for devices of a class."""

    recipe: str
    devices: tuple[str, ...]
    reason: str
    remedy: str | None


class MeasurementWindow(Value):
    """When measurements may begin, as ISO 8601 with the offset of the window's time zone."""

    opens: str
    closes: str
    seconds: float


class Outlook(Value):
    """All of it.

    Attributes:
        farm: Its name.
        devices: That were found.
        cells: The matrix; pairs without a device are in `unsatisfied` alone.
        pieces: What is exported and built.
        refused: What cannot be made.
        unsatisfied: What no device is there for.
        visits: Measurements in the night.
        expected_s: From the first to the last, with all devices at work; None for no visits.
        guessed: Whether a part of that is a guess.
        window: None for any time.
        notes: What else to know.
    """

    farm: str
    devices: tuple[DiscoveredDevice, ...]
    cells: tuple[MatrixCell, ...]
    pieces: tuple[Piece, ...]
    refused: tuple[Refused, ...]
    unsatisfied: tuple[Unsatisfied, ...]
    visits: int
    expected_s: float | None
    guessed: bool
    window: MeasurementWindow | None
    notes: tuple[str, ...]


def outlook_text(outlook: Outlook, width: int | None) -> str:
    """The plan in sections; what cannot run comes last, where it is read."""
    return fit("\n\n".join(_sections(outlook, width)), width)


def _sections(outlook: Outlook, width: int | None) -> Iterator[str]:
    yield "\n".join(_head(outlook))
    if outlook.cells:
        rows = [
            (c.recipe, c.group, some(c.devices), c.visits, duration(c.each.seconds), c.each.basis)
            for c in outlook.cells
        ]
        columns = ("recipe", "group", "devices", "visits", "each", "by")
        yield table(columns, rows, right=("visits", "each"), width=width)
    if outlook.pieces:
        made = [
            (piece.step, ", ".join(piece.recipes), ", ".join(piece.classes), _state(piece))
            for piece in outlook.pieces
        ]
        shown = table(("made once", "of", "for", "state"), made, width=width)
        yield f"{_made(outlook)}\n{shown}"
    for refused in outlook.refused:
        remedy = f"\n  what to do: {refused.remedy}" if refused.remedy else ""
        where = f"{refused.recipe} for {some(refused.devices)}"
        yield f"cannot be made: {where}: {refused.reason}{remedy}"
    if outlook.unsatisfied:
        yield "\n".join(["cannot be measured", *_unsatisfied(outlook)])
    remedies = {d.name: d.remedy for d in outlook.devices if d.remedy and d.groups}
    yield from (f"{name}: {remedy}" for name, remedy in remedies.items())
    yield from outlook.notes


def _unsatisfied(outlook: Outlook) -> Iterator[str]:
    """Each reason once, with the recipes that it holds for."""
    recipes: dict[tuple[str, str], list[str]] = {}
    for each in outlook.unsatisfied:
        recipes.setdefault((each.group, each.reason), []).append(each.recipe)
    for (group, reason), labels in recipes.items():
        yield f"  {group} ({some(labels)}): {reason}"


def _head(outlook: Outlook) -> Iterator[str]:
    devices = {name for cell in outlook.cells for name in cell.devices}
    recipes = {cell.recipe for cell in outlook.cells}
    yield (
        f"{outlook.farm}: {count(outlook.visits, 'visit')} of {count(len(recipes), 'recipe')} on "
        f"{count(len(devices), 'device')}"
    )
    if outlook.expected_s is not None:
        guessed = ", in part a guess" if outlook.guessed else ""
        yield f"expected time: {duration(outlook.expected_s)}{guessed}"
    if outlook.window:
        yield f"window: from {outlook.window.opens} until {outlook.window.closes}"


def _made(outlook: Outlook) -> str:
    told = []
    for step in ("export", "build"):
        own = [piece for piece in outlook.pieces if piece.step == step]
        cached = sum(piece.cached is True for piece in own)
        told.append(f"{count(len(own), step)}, {cached} cached")
    return "; ".join(told)


def _state(piece: Piece) -> str:
    if piece.cached is None:
        return "known after the export" if piece.step == "build" else "to do"
    return "cached" if piece.cached else "to do"


def duration(seconds: float) -> str:
    """A time for a plan: `40 s`, `12 min`, `3 h 05 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
