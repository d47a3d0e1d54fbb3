"""What `farm run` shows of a night: events while it runs, JSON lines, and how it ended."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from etdeploy.core import console
from etdeploy.core.commands import quoted
from etdeploy.core.console import count
from etdeploy.core.errors import (
    DeviceError,
    EtdeployError,
    JobsError,
    MismatchError,
    RegressionError,
)
from etdeploy.farm.model import (
    STOPPED,
    AttemptFailure,
    AttemptResult,
    Fate,
    Standing,
    VisitState,
)
from etdeploy.farm.night.model import Event, EventKind, NightEnd, listed
from etdeploy.farm.spec.model import LoadedFarm
from etdeploy.history.location import HistoryLocation

_FARM = "farm"


class LiveVerdicts:
    """Verdicts on recipes and devices, as soon as all repeats have ended."""

    def __init__(self, loaded: LoadedFarm, place: HistoryLocation) -> None:
        self._loaded, self._place = loaded, place
        self._states: dict[str, VisitState] = {}

    def update(self, states: Sequence[VisitState]) -> None:
        """Take in how measurements stand."""
        self._states.update({state.visit.id: state for state in states})

    def find(self, state: VisitState) -> str | None:
        """The verdict on a visit that ended; None while others of its recipe there are left."""
        result = state.result
        # One that was missed or failed may be the last of those that are judged.
        identity = result.identity if result else state.visit.device
        if identity is None:
            return None
        same = [each for each in self._states.values() if _is_same(each, state, identity)]
        if any(each.standing in (Standing.WAITING, Standing.RUNNING) for each in same):
            return None
        measured = [each for each in same if each.result]
        return self._judge(measured) if measured else None

    def _judge(self, states: Sequence[VisitState]) -> str | None:
        from etdeploy.farm.verdicts.night import judge_night
        from etdeploy.history.store.store import open_store

        night = states[0].visit.id.rpartition("-")[0]
        files = {label: recipe.path for label, recipe in self._loaded.recipes.items()}
        try:
            with open_store(self._place, read_only=True) as store:
                found = judge_night(store, night, states, self._loaded.farm, files)
        except EtdeployError:  # the history is away; the end of the night judges all
            return None
        return str(found[0].kind) if found else None


def _is_same(other: VisitState, state: VisitState, identity: str) -> bool:
    if other.visit.recipe != state.visit.recipe:
        return False
    where = other.result.identity if other.result else other.visit.device
    return where in (identity, None)


class NightDisplay:
    """Shows events of a night, on the display or as JSON lines."""

    def __init__(
        self, display: console.TaskDisplay, as_json: bool, quiet: bool, verdicts: LiveVerdicts
    ) -> None:
        self._display, self._as_json, self._quiet = display, as_json, quiet
        self._verdicts = verdicts
        self._names: dict[str, str] = {}

    def __call__(self, event: Event) -> None:
        """Show an event."""
        if self._as_json:
            self._verdicts.update((*event.states, *((event.state,) if event.state else ())))
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
        """Show the progress of an attempt on this host; called by its thread."""
        if visit in self._names:
            self._display.advance(self._names[visit], text, fraction)

    def _started(self, state: VisitState, device: str) -> None:
        visit = state.visit
        self._names[visit.id] = f"{visit.recipe} on {device} #{visit.repeat}"
        self._display.start(self._names[visit.id])

    def _ended(self, ending: AttemptResult) -> None:
        name = self._names.pop(ending.visit, None)
        if name is not None:
            self._display.end(name, attempt_text(ending), ending.seconds)

    def _finished(self, state: VisitState, device: str | None) -> None:
        if self._as_json:
            line = visit_json(state, device, self._verdicts.find(state))
            console.result(json.dumps(line, ensure_ascii=False))
        elif state.standing is not Standing.DONE:
            where = device or state.visit.device or state.visit.group
            name = f"{state.visit.recipe} on {where} #{state.visit.repeat}"
            self._display.end(name, f"{state.standing}: {state.reason}")


def attempt_text(ending: AttemptResult) -> str:
    """Return one line about an attempt that ended, with the number that it measured."""
    is_done = ending.fate is Fate.DONE
    if ending.failure is None:
        figure = measured_figure(ending) if is_done else ""
        return f"{ending.fate}: {figure}" if figure else str(ending.fate)
    first = ending.failure.message.partition("\n")[0]
    return f"{'done, but' if is_done else f'{ending.fate}:'} {ending.failure.kind}: {first}"


def visit_json(state: VisitState, device: str | None, verdict: str | None) -> dict[str, Any]:
    """Return what `--json` prints of a visit that ended."""
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


def measured_figure(ending: AttemptResult) -> str:
    """Return the headline number of the attempt's record; empty if there is none to read."""
    from etdeploy.bench.records.stored import load_run
    from etdeploy.history.entry import describe_disturbance
    from etdeploy.report.facts import main_figure

    if ending.record is None:
        return ""
    try:
        record = load_run(Path(ending.record)).record
    except EtdeployError:  # the end of the night reports it
        return ""
    disturbed = " (disturbed)" if describe_disturbance(record) else ""
    return f"{main_figure(record)}{disturbed}"


def night_totals(end: NightEnd, verdicts: Sequence[str]) -> dict[str, Any]:
    """Count measurements by how they ended, and verdicts by kind."""
    standings = Counter(state.standing for state in end.states)
    return {
        "visits": len(end.states),
        **{str(each): standings[each] for each in Standing},
        "attempts": sum(len(state.attempts) for state in end.states),
        "verdicts": dict(Counter(verdicts)),
        "unsatisfied": list(end.unsatisfied),
        "quarantined": end.quarantined,
    }


def _failures(states: Sequence[VisitState]) -> list[AttemptFailure]:
    """Return why visits failed, and which were measured with outputs that differ."""
    failures = []
    for state in states:
        if state.result:
            failures += [state.result.failure] if state.result.failure else []
        # One that was given up with its recipe failed as the recipe's others did.
        elif state.standing is Standing.FAILED and (
            state.attempts or not state.reason.startswith(STOPPED)
        ):
            by_attempt = [attempt.failure for attempt in state.attempts if attempt.failure]
            unknown = AttemptFailure(
                kind=DeviceError.kind, exit_code=DeviceError.exit_code, message=state.reason
            )
            failures.append(by_attempt[-1] if by_attempt else unknown)
    return failures


def night_error(
    end: NightEnd,
    verdicts: Sequence[str],
    blocked: EtdeployError | None = None,
    farm: Path = Path("farm.yaml"),
) -> EtdeployError | None:
    """Return the error that the night ends with; None if all is well.

    A regression comes first, since a script acts on it, then the failure with the highest exit
    code. A night that measured nothing is a failure of its devices; single visits that were missed
    are not. A night that could not be evaluated comes last.
    """
    worse = sum(verdict == "regressed" for verdict in verdicts)
    if worse:
        recipes = f"{count(worse, 'recipe')} {'has' if worse == 1 else 'have'}"
        return RegressionError(f"{recipes} regressed on a device", place=end.night)
    failures = _failures(end.states)
    if failures:
        failed = sum(state.standing is Standing.FAILED for state in end.states)
        worst = max(failures, key=lambda failure: failure.exit_code)
        differ = sum(each.kind == MismatchError.kind for each in failures)
        every = count(len(end.states), "visit")
        text = f"{failed} of {every} failed"
        if differ:
            wrong = f"the outputs of {differ}"
            text = f"{text}, {wrong} differ" if failed else f"{wrong} of {every} differ"
        return JobsError(f"{text}; the worst: {worst.message}", _as_error(worst))
    if any(state.standing is Standing.DONE for state in end.states):
        return blocked
    why = sorted({state.reason for state in end.states if state.reason}) or end.unsatisfied
    return DeviceError(
        f"nothing was measured: {listed(tuple(why)) or 'no visit was planned'}",
        remedy=f"See what matches: etdeploy farm plan {quoted(farm)}\n"
        f"and the quarantined devices: etdeploy farm quarantine -f {quoted(farm)}",
    )


def _as_error(failure: AttemptFailure) -> EtdeployError:
    error = EtdeployError(failure.message, place=failure.place, remedy=failure.remedy)
    error.exit_code = failure.exit_code  # type: ignore[misc]
    error.kind = failure.kind  # type: ignore[misc]
    return error
