"""What `etdeploy farm plan` shows; its JSON form is an interface."""

from __future__ import annotations

from typing import Literal

from etdeploy.core.values import Value
from etdeploy.farm.spec.matrix import Unsatisfied


class Seen(Value):
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


class Cell(Value):
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


class Opening(Value):
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
    devices: tuple[Seen, ...]
    cells: tuple[Cell, ...]
    pieces: tuple[Piece, ...]
    refused: tuple[Refused, ...]
    unsatisfied: tuple[Unsatisfied, ...]
    visits: int
    expected_s: float | None
    guessed: bool
    window: Opening | None
    notes: tuple[str, ...]
