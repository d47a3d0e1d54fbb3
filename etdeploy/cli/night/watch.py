"""Shows a night while it goes on: live, or a line of JSON for each visit that ended."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from etdeploy.cli.night.figures import figure_of
from etdeploy.core import console
from etdeploy.farm.model import Ending, Fate, Standing, VisitState
from etdeploy.farm.night.model import Event, EventKind


class Judge(Protocol):
    """Judges visits that ended."""

    def know(self, states: Sequence[VisitState]) -> None:
        """Learns where visits stand."""
        ...

    def verdict(self, state: VisitState) -> str | None:
        """The verdict on its recipe and device; None while there is none."""
        ...


_FARM = "farm"


class Watch:
    """Shows events of a night.

    Args:
        display: Of the tasks.
        as_json: Whether each visit that ends is a line on stdout.
        quiet: Whether only results and warnings are shown.
        judge: Judges what a visit measured.
        figure: The number that an attempt measured, with its unit; empty for none.
    """

    def __init__(
        self,
        display: console.TaskDisplay,
        as_json: bool,
        quiet: bool,
        judge: Judge,
        figure: Callable[[Ending], str] = figure_of,
    ) -> None:
        self._display, self._as_json, self._quiet, self._judge = display, as_json, quiet, judge
        self._figure = figure
        self._names: dict[str, str] = {}

    def __call__(self, event: Event) -> None:
        """Shows an event."""
        if self._as_json:
            self._judge.know((*event.states, *((event.state,) if event.state else ())))
        if event.kind is EventKind.STARTED and event.order and event.state:
            self._started(event.state, event.order.offer.name)
        elif event.kind is EventKind.ENDED and event.ending:
            self._ended(event.ending)
        elif event.kind is EventKind.FINISHED and event.state:
            self._finished(event.state, event.offer.name if event.offer else None)
        elif event.kind is EventKind.TROUBLE and self._quiet:
            console.warn(event.text)
        elif event.text:
            warning = "warning: " if event.kind is EventKind.TROUBLE else ""
            self._display.end(_FARM, warning + event.text)

    def progress(self, visit: str, text: str, fraction: float | None) -> None:
        """Shows how far an attempt on this host is; called by its thread."""
        if visit in self._names:
            self._display.advance(self._names[visit], text, fraction)

    def _started(self, state: VisitState, device: str) -> None:
        visit = state.visit
        self._names[visit.id] = f"{visit.recipe} on {device} #{visit.repeat}"
        self._display.start(self._names[visit.id])

    def _ended(self, ending: Ending) -> None:
        name = self._names.pop(ending.visit, None)
        if name is not None:
            figure = self._figure(ending) if ending.fate is Fate.DONE else ""
            self._display.end(name, told(ending, figure), ending.seconds)

    def _finished(self, state: VisitState, device: str | None) -> None:
        if self._as_json:
            line = visit_json(state, device, self._judge.verdict(state))
            console.result(json.dumps(line, ensure_ascii=False))
        elif state.standing is not Standing.DONE:
            where = device or state.visit.device or state.visit.group
            name = f"{state.visit.recipe} on {where} #{state.visit.repeat}"
            self._display.end(name, f"{state.standing}: {state.reason}")


def told(ending: Ending, figure: str = "") -> str:
    """How an attempt ended, in a line, with the number that it measured."""
    if ending.failure is None:
        done = f"done: {figure}" if figure else "done"
        return done if ending.fate is Fate.DONE else str(ending.fate)
    first = ending.failure.message.partition("\n")[0]
    how = "done, but" if ending.fate is Fate.DONE else f"{ending.fate}:"
    return f"{how} {ending.failure.kind}: {first}"


def visit_json(state: VisitState, device: str | None, verdict: str | None) -> dict[str, Any]:
    """A visit that ended, as `--json` prints it.

    Args:
        state: Of the visit.
        device: Name of the device that it was given to last; None where there was none.
        verdict: On its recipe and device.
    """
    result = state.result
    last = result or (state.attempts[-1] if state.attempts else None)
    failure = last.failure if last else None
    return {
        "visit": state.visit.id,
        "run_id": result.run_id if result else None,
        "recipe": state.visit.recipe,
        "device": device,
        "identity": last.identity if last else state.visit.device,
        "host": last.host or None if last else None,
        "repeat": state.visit.repeat,
        "standing": str(state.standing),
        "reason": state.reason or None,
        "attempts": len(state.attempts),
        "seconds": last.seconds if last else None,
        "verdict": verdict,
        "failure": failure.model_dump(mode="json") if failure else None,
        "record": result.record if result else None,
    }
