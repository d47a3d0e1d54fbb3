"""A whole night: its parts are opened, it waits for its window, runs, and is judged."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from etdeploy.cache.workspace import Workspace
from etdeploy.core import cancel, console
from etdeploy.core.commands import quoted
from etdeploy.core.console import count
from etdeploy.core.errors import (
    DeviceError,
    EtdeployError,
    Interrupted,
    JobsError,
    MismatchError,
    RegressionError,
    StoreError,
)
from etdeploy.core.layout import fit
from etdeploy.farm.certificates import check_certificate
from etdeploy.farm.engine.base import Engine
from etdeploy.farm.model import (
    STOPPED,
    AttemptFailure,
    AttemptResult,
    Fate,
    Offer,
    Standing,
    VisitState,
)
from etdeploy.farm.night.dependencies import (
    NightDependencies,
    Prepare,
    StoreShelf,
    SystemClock,
    earlier_times,
    headline_of,
    open_engine,
)
from etdeploy.farm.night.ledger import Ledger
from etdeploy.farm.night.loop import run_night
from etdeploy.farm.night.model import Event, EventKind, NightEnd, listed
from etdeploy.farm.spec.conditions import find_opening
from etdeploy.farm.spec.load import load_farm
from etdeploy.farm.spec.matrix import NightPlan, plan_night
from etdeploy.farm.spec.model import Farm, LoadedFarm
from etdeploy.farm.spec.written import prepare_results
from etdeploy.graph.tasks.steps import Slots, heavy_at_once
from etdeploy.history.location import HistoryLocation, required_place

if TYPE_CHECKING:
    from etdeploy.farm.report.model import NightReport


def figure_of(ending: AttemptResult) -> str:
    """The number that the attempt's record is known by; empty where there is none to read."""
    from etdeploy.bench.records.stored import load_run
    from etdeploy.history.entry import disturbance_of
    from etdeploy.report.facts import main_figure

    if ending.record is None:
        return ""
    try:
        record = load_run(Path(ending.record)).record
    except EtdeployError:  # the night tells that
        return ""
    disturbed = " (disturbed)" if disturbance_of(record) else ""
    return f"{main_figure(record)}{disturbed}"


def folders_of(records: list[str]) -> list[str]:
    """The folders of a night in which these `record.json` are, each in a folder of its run."""
    return sorted({str(Path(record).parent.parent) for record in records})


# Hosts that run already connect again within seconds.
_HOSTS_S = 20.0
_SETTLED_S = 4.0


@dataclass(frozen=True)
class RunOptions:
    """What the command line asks for.

    Attributes:
        file: The farm.yaml.
        now: Whether the window does not matter.
        again: Whether an unfinished night is not gone on with.
        output: For records, in place of the farm's `results`.
        as_json: Whether JSON lines are printed.
        quiet: Whether progress is hidden.
    """

    file: Path
    now: bool = False
    again: bool = False
    output: Path | None = None
    as_json: bool = False
    quiet: bool = False


def run_whole(wish: RunOptions) -> None:
    """Runs a night and shows it."""
    loaded = load_farm(wish.file)
    place = required_place(loaded.farm.store)
    judged = Judged(loaded, place)
    # In a journal, the steps of thousands of attempts would hide how they ended.
    with console.TaskDisplay(quiet=wish.quiet, steps=False) as display:
        watch = NightDisplay(display, wish.as_json, wish.quiet, judged)
        end = _Whole(wish, loaded, place, display, watch).run()
    reports: list[str] = []
    report, blocked = _concluded(loaded, place, end, reports)
    records = folders_of([s.result.record for s in end.states if s.result and s.result.record])
    verdicts = [str(each.kind) for each in report.verdicts] if report else []
    error = error_of(end, verdicts, blocked, wish.file)
    if blocked and error is not blocked:
        console.warn(str(blocked))
    if wish.as_json:
        code = Interrupted.exit_code if end.stopped else error.exit_code if error else 0
        totals = {
            "night": end.night, "stopped": end.stopped, "exit_code": code,
            "records": records, "reports": reports,
        }  # fmt: skip
        console.result(json.dumps({**totals, "totals": totals_of(end, verdicts)}))
    elif report:
        from etdeploy.farm.report.forms import night_text

        width = console.width()
        console.result("\n" + fit(night_text(report, width), width))
    if not wish.as_json:
        files = [*(f"records  {path}" for path in records), *(f"report   {p}" for p in reports)]
        if files:
            console.result("\n" + "\n".join(files))
    if end.stopped:
        raise Interrupted
    if error:
        raise error


class _Whole:
    """A night with its real parts."""

    def __init__(
        self,
        wish: RunOptions,
        loaded: LoadedFarm,
        place: HistoryLocation,
        display: console.TaskDisplay,
        watch: NightDisplay,
    ) -> None:
        self._wish, self._loaded, self._place = wish, loaded, place
        self._display, self._watch = display, watch
        self._clock = SystemClock()
        results = (wish.output or loaded.farm.results).resolve()
        prepare_results(results, loaded.path.parent, "-o" if wish.output else "")
        self._opened, self._until = self._window()
        # One that is gone on with after midnight writes where it began.
        self._output = results / f"{self._opened or self._clock.now().astimezone():%Y-%m-%d}"

    def run(self) -> NightEnd:
        """Opens everything, waits for the window, and runs the night."""
        farm, slots = self._loaded.farm, Slots(heavy_at_once())
        if farm.hosts and farm.hosts.tls and (warning := check_certificate(farm.hosts.tls)):
            self._tell(warning)
        workspace = Workspace.opened()
        with ExitStack() as stack:
            stack.enter_context(workspace.in_use())
            ledger = stack.enter_context(self._ledger())
            # Held while it waits for its window, too; given back once the engine has ended all.
            ledger.claim(farm.name)
            opening = open_engine(farm, self._output, slots, self._watch.progress)
            engine = stack.enter_context(opening)
            named = self._name_unsatisfied(engine)
            self._wait()
            parts = NightDependencies(
                prepare=self._preparer(slots, workspace),
                shelf=StoreShelf(self._place, f"farm {farm.name}"),
                plan=self._plan,
                headline=headline_of,
                times=earlier_times(ledger, farm, self._tell),
                opened=self._opened,
                until=self._until,
                named=named,
            )
            return run_night(self._loaded, engine, ledger, self._clock, self._watch, parts)

    def _ledger(self) -> Ledger:
        return Ledger(self._place, tell=self._tell, resumes=not self._wish.again)

    def _plan(
        self, farm: Farm, night: str, offers: Sequence[Offer], window_s: float | None
    ) -> NightPlan:
        return plan_night(farm, night, offers, window_s)

    def _name_unsatisfied(self, engine: Engine) -> frozenset[tuple[str, str]]:
        """Says at once what no device can measure, before anything is waited for or built."""
        found = plan_night(self._loaded.farm, "", self._settled(engine), None).unsatisfied
        for each in found:
            self._watch(Event(EventKind.TROUBLE, f"{each.recipe} on {each.group}: {each.reason}"))
        return frozenset((each.recipe, each.group) for each in found)

    def _settled(self, engine: Engine) -> Sequence[Offer]:
        """The devices that are there, once hosts had time to connect."""
        offers = engine.offers()
        if self._loaded.farm.hosts is None:
            return offers
        begun_s = changed_s = self._clock.seconds()
        while self._clock.seconds() - begun_s < _HOSTS_S:
            cancel.checkpoint()
            self._clock.sleep(1.0)
            now, before = engine.offers(), {offer.identity for offer in offers}
            if {offer.identity for offer in now} != before:
                changed_s = self._clock.seconds()
            offers = now
            if offers and self._clock.seconds() - changed_s >= _SETTLED_S:
                break
        return offers

    def _window(self) -> tuple[datetime | None, datetime | None]:
        """When the window opens or has opened, and when it closes; None for any time."""
        window = self._loaded.farm.window
        if window is None or self._wish.now:
            return None, None
        return find_opening(window, self._clock.now())

    def _wait(self) -> None:
        """Waits until the window opens."""
        opened = self._opened
        if opened is None or self._clock.now() >= opened:
            return
        self._tell(
            f"waiting for the window until {opened:%Y-%m-%d %H:%M %Z} (--now begins at once)"
        )
        while (left_s := (opened - self._clock.now()).total_seconds()) > 0:
            cancel.checkpoint()
            self._clock.sleep(min(60.0, left_s))

    def _preparer(self, slots: Slots, workspace: Workspace) -> Prepare:
        from etdeploy.farm.work.prepare import PreparedParcels, prepare

        def made(wanted: Mapping[str, Sequence[Offer]]) -> PreparedParcels:
            return prepare(
                self._loaded.recipes, wanted, self._output, self._display,
                slots=slots, workspace=workspace, apps=self._loaded.farm.apps,
            )  # fmt: skip

        return made

    def _tell(self, text: str) -> None:
        self._watch(Event(EventKind.TOLD, text))


def _concluded(
    loaded: LoadedFarm, place: HistoryLocation, end: NightEnd, reports: list[str]
) -> tuple[NightReport | None, EtdeployError | None]:
    """Judges the night, writes its reports and tells who wants to know.

    A night that was stopped is only reported as far as it got: its files would else be those of the
    night before.
    """
    from etdeploy.farm.report.end import conclude
    from etdeploy.farm.report.source import find_night

    again = f"etdeploy farm report {quoted(end.night)} -f {quoted(loaded.path)}"
    try:
        night = find_night(place, end.night)
        report = conclude(
            loaded, place, night, console.warn, lambda path: reports.append(str(path)),
            is_over=not end.stopped,
        )  # fmt: skip
    except Interrupted:
        raise
    except EtdeployError as error:
        remedy = "\n".join(filter(None, (error.remedy, f"Then judge it: {again}")))
        why = f"the night could not be evaluated: {error.message}"
        return None, StoreError(why, place=error.place, remedy=remedy)
    if end.stopped or not report.blocked:
        return None if end.stopped else report, None
    why = f"nothing could be judged: {report.blocked}"
    return report, DeviceError(why, place=end.night, remedy=f"Look at every number: {again}")


class Judged:
    """Verdicts on recipes and devices, as soon as all repeats have ended."""

    def __init__(self, loaded: LoadedFarm, place: HistoryLocation) -> None:
        self._loaded, self._place = loaded, place
        self._states: dict[str, VisitState] = {}

    def know(self, states: Sequence[VisitState]) -> None:
        """Learns where visits stand."""
        self._states.update({state.visit.id: state for state in states})

    def verdict(self, state: VisitState) -> str | None:
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


REGRESSED = "regressed"


def totals_of(end: NightEnd, verdicts: Sequence[str]) -> dict[str, Any]:
    """How many visits ended how, and how many recipes on devices were judged how."""
    standings = Counter(state.standing for state in end.states)
    return {
        "visits": len(end.states),
        **{str(each): standings[each] for each in Standing},
        "attempts": sum(len(state.attempts) for state in end.states),
        "verdicts": dict(Counter(verdicts)),
        "unsatisfied": list(end.unsatisfied),
        "set_aside": end.set_aside,
    }


def failures_of(states: Sequence[VisitState]) -> list[AttemptFailure]:
    """Why visits failed; also of those that were measured with outputs that differ."""
    found = []
    for state in states:
        result = state.result
        if result:
            found += [result.failure] if result.failure else []
        # One that was given up with its recipe failed as the recipe's others did.
        elif state.standing is Standing.FAILED and (
            state.attempts or not state.reason.startswith(STOPPED)
        ):
            found.append(_last_failure(state))
    return found


def _last_failure(state: VisitState) -> AttemptFailure:
    known = [ending.failure for ending in state.attempts if ending.failure]
    if known:
        return known[-1]
    return AttemptFailure(
        kind=DeviceError.kind, exit_code=DeviceError.exit_code, message=state.reason
    )


def error_of(
    end: NightEnd,
    verdicts: Sequence[str],
    blocked: EtdeployError | None = None,
    farm: Path = Path("farm.yaml"),
) -> EtdeployError | None:
    """What the night ends with; None if all is well.

    A regression comes first, since a script acts on it. Then the worst failure: that with the
    highest exit code. A night that measured nothing of what it should is a failure of its devices;
    visits that were missed beside others are not. Last comes a night of which nothing could be
    judged.
    """
    worse = sum(each == REGRESSED for each in verdicts)
    if worse:
        what = count(worse, "recipe") + (" has" if worse == 1 else "s have").removeprefix("s")
        return RegressionError(f"{what} regressed on a device", place=end.night)
    failures = failures_of(end.states)
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
        f"and what is set aside: etdeploy farm quarantine -f {quoted(farm)}",
    )


def _as_error(failure: AttemptFailure) -> EtdeployError:
    error = EtdeployError(failure.message, place=failure.place, remedy=failure.remedy)
    error.exit_code = failure.exit_code  # type: ignore[misc]
    error.kind = failure.kind  # type: ignore[misc]
    return error


class Judge(Protocol):
    """Judges visits that ended."""

    def know(self, states: Sequence[VisitState]) -> None:
        """Learns where visits stand."""
        ...

    def verdict(self, state: VisitState) -> str | None:
        """The verdict on its recipe and device; None while there is none."""
        ...


_FARM = "farm"


class NightDisplay:
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
        figure: Callable[[AttemptResult], str] = figure_of,
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

    def _ended(self, ending: AttemptResult) -> None:
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


def told(ending: AttemptResult, figure: str = "") -> str:
    """How an attempt ended, in a line, with the number that it measured."""
    if ending.failure is None:
        done = f"done: {figure}" if figure else "done"
        return done if ending.fate is Fate.DONE else str(ending.fate)
    first = ending.failure.message.partition("\n")[0]
    how = "done, but" if ending.fate is Fate.DONE else f"{ending.fate}:"
    return f"{how} {ending.failure.kind}: {first}"


def visit_json(state: VisitState, device: str | None, verdict: str | None) -> dict[str, Any]:
    """A visit that ended, as `--json` prints it."""
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
