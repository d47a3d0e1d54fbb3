"""A whole night: its parts are opened, it waits for its window, runs, and is judged."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from etdeploy.cache.workspace import Workspace
from etdeploy.cli.night.end import error_of, totals_of
from etdeploy.cli.night.figures import folders_of
from etdeploy.cli.night.judged import Judged
from etdeploy.cli.night.watch import Watch
from etdeploy.core import cancel, console
from etdeploy.core.errors import DeviceError, EtdeployError, Interrupted, StoreError
from etdeploy.core.text.layout import fit
from etdeploy.core.text.shell import quoted
from etdeploy.farm.engine.base import Engine
from etdeploy.farm.engine.certificates import check_certificate
from etdeploy.farm.model import Offer
from etdeploy.farm.night.clock import SystemClock
from etdeploy.farm.night.ledger import Ledger
from etdeploy.farm.night.model import Event, EventKind, NightEnd
from etdeploy.farm.night.parts import Parts, Prepare
from etdeploy.farm.night.real import StoreShelf, earlier_times, headline_of, open_engine
from etdeploy.farm.night.run import run_night
from etdeploy.farm.spec.load import load_farm
from etdeploy.farm.spec.matrix import NightPlan, plan_night
from etdeploy.farm.spec.model import Farm, LoadedFarm
from etdeploy.farm.spec.results import prepare_results
from etdeploy.farm.spec.window import opens
from etdeploy.graph.tasks.slots import Slots, heavy_at_once
from etdeploy.history.place import Place, required_place

if TYPE_CHECKING:
    from etdeploy.farm.report.model import NightReport

# Hosts that run already connect again within seconds.
_HOSTS_S = 20.0
_SETTLED_S = 4.0


@dataclass(frozen=True)
class Wish:
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


def run_whole(wish: Wish) -> None:
    """Runs a night and shows it.

    Raises:
        RegressionError: A number has become worse.
        JobsError: Visits failed.
        DeviceError: Nothing could be measured.
        Interrupted: It was stopped; the same command goes on with it.
        RecipeError: The farm.yaml or a recipe cannot be used.
        StoreError: The history cannot be used.
        UsageError: The folder for results cannot be one.
    """
    loaded = load_farm(wish.file)
    place = required_place(loaded.farm.store)
    judged = Judged(loaded, place)
    # In a journal, the steps of thousands of attempts would hide how they ended.
    with console.TaskDisplay(quiet=wish.quiet, steps=False) as display:
        watch = Watch(display, wish.as_json, wish.quiet, judged)
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
        from etdeploy.farm.report.shown.text import night_text

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
        wish: Wish,
        loaded: LoadedFarm,
        place: Place,
        display: console.TaskDisplay,
        watch: Watch,
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
            parts = Parts(
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
        return opens(window, self._clock.now())

    def _wait(self) -> None:
        """Waits until the window opens.

        Raises:
            Interrupted: It was stopped meanwhile.
        """
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
        from etdeploy.farm.work.prepare import Prepared, prepare

        def made(wanted: Mapping[str, Sequence[Offer]]) -> Prepared:
            return prepare(
                self._loaded.recipes, wanted, self._output, self._display,
                slots=slots, workspace=workspace, apps=self._loaded.farm.apps,
            )  # fmt: skip

        return made

    def _tell(self, text: str) -> None:
        self._watch(Event(EventKind.TOLD, text))


def _concluded(
    loaded: LoadedFarm, place: Place, end: NightEnd, reports: list[str]
) -> tuple[NightReport | None, EtdeployError | None]:
    """Judges the night, writes its reports and tells who wants to know.

    A night that was stopped is only reported as far as it got: its files would else be those of the
    night before.

    Args:
        loaded: The farm.yaml.
        place: The history.
        end: The night.
        reports: Gets the paths of what was written.

    Returns:
        The report of a night that is over; and why nothing could be judged.
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
