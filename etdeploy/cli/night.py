"""`etdeploy farm run`: opens what a night needs, waits for its window, runs it, and concludes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from etdeploy.cache.workspace import Workspace
from etdeploy.cli.night_display import LiveVerdicts, NightDisplay, night_error, night_totals
from etdeploy.core import cancel, console
from etdeploy.core.commands import quoted
from etdeploy.core.errors import EtdeployError, Interrupted, NoVerdictError, StoreError
from etdeploy.core.layout import fit
from etdeploy.farm.certificates import check_certificate
from etdeploy.farm.engine.base import Engine
from etdeploy.farm.model import AvailableDevice
from etdeploy.farm.night.dependencies import (
    NightDependencies,
    StoreDevicePool,
    SystemClock,
    earlier_times,
    headline_of,
    open_engine,
)
from etdeploy.farm.night.ledger import Ledger
from etdeploy.farm.night.loop import run_night
from etdeploy.farm.night.model import Event, EventKind, NightEnd
from etdeploy.farm.spec.conditions import find_opening
from etdeploy.farm.spec.load import load_farm
from etdeploy.farm.spec.matrix import plan_night
from etdeploy.farm.spec.model import LoadedFarm
from etdeploy.farm.spec.written import prepare_results
from etdeploy.graph.tasks.steps import Slots, heavy_at_once
from etdeploy.history.location import HistoryLocation, require_location

if TYPE_CHECKING:
    from etdeploy.farm.report.model import NightReport
    from etdeploy.farm.work.prepare import PreparedArtifacts

# Hosts that are already running connect again within seconds.
_CONNECT_S = 20.0
_SETTLED_S = 4.0


@dataclass(frozen=True)
class RunOptions:
    """The options of the command line.

    Attributes:
        now: Whether to ignore the window.
        again: Whether to start a new night instead of resuming an unfinished one.
        output: For records, instead of the farm's `results`.
        as_json: Whether to print JSON lines.
        required_percent: How much of the expected pairs has to be judged.
    """

    file: Path
    now: bool = False
    again: bool = False
    output: Path | None = None
    as_json: bool = False
    quiet: bool = False
    required_percent: float = 0.0


def run_farm(options: RunOptions) -> None:
    """Run a night and show it; raise the error that it ends with."""
    loaded = load_farm(options.file)
    place = require_location(loaded.farm.store)
    # In the journal of a timer, the steps of thousands of attempts would hide how they ended.
    with console.TaskDisplay(quiet=options.quiet, steps=False) as display:
        verdicts = LiveVerdicts(loaded, place)
        watch = NightDisplay(display, options.as_json, options.quiet, verdicts)
        end = _FarmRun(options, loaded, place, display, watch).run()
    reports: list[str] = []
    report, blocked = _conclude(loaded, place, end, reports, options.required_percent)
    # A record is in the folder of its run, and that in the folder of the night.
    folders = {str(Path(s.result.record).parent.parent) for s in end.states
               if s.result and s.result.record}  # fmt: skip
    kinds = [str(verdict.kind) for verdict in report.verdicts] if report else []
    failing = [str(v.kind) for v in report.verdicts if not v.acknowledged] if report else []
    error = night_error(end, failing, blocked, options.file)
    if blocked and error is not blocked:
        console.warn(str(blocked))
    if options.as_json:
        code = Interrupted.exit_code if end.stopped else error.exit_code if error else 0
        totals = {
            "night": end.night, "stopped": end.stopped, "exit_code": code,
            "records": sorted(folders), "reports": reports,
        }  # fmt: skip
        if report:
            from etdeploy.farm.report.end import coverage_json

            totals["coverage"] = coverage_json(report.coverage)
        console.result(json.dumps({**totals, "totals": night_totals(end, kinds)}))
    else:
        if report:
            from etdeploy.farm.report.forms import night_text

            width = console.width()
            console.result("\n" + fit(night_text(report, width), width))
        files = [*(f"records  {path}" for path in sorted(folders)),
                 *(f"report   {path}" for path in reports)]  # fmt: skip
        if files:
            console.result("\n" + "\n".join(files))
    if end.stopped:
        raise Interrupted
    if error:
        raise error


class _FarmRun:
    """A night with the real clock, devices, builds and history."""

    def __init__(
        self,
        options: RunOptions,
        loaded: LoadedFarm,
        place: HistoryLocation,
        display: console.TaskDisplay,
        watch: NightDisplay,
    ) -> None:
        self._options, self._loaded, self._place = options, loaded, place
        self._display, self._watch = display, watch
        self._clock = SystemClock()
        results = (options.output or loaded.farm.results).resolve()
        prepare_results(results, loaded.path.parent, "-o" if options.output else "")
        self._opened: datetime | None = None
        self._until: datetime | None = None
        if loaded.farm.window and not options.now:
            self._opened, self._until = find_opening(loaded.farm.window, self._clock.now())
        # A night that is resumed after midnight writes to the folder where it started.
        self._output = results / f"{self._opened or self._clock.now().astimezone():%Y-%m-%d}"

    def run(self) -> NightEnd:
        """Open everything, wait for the window, and run the night."""
        farm, slots = self._loaded.farm, Slots(heavy_at_once())
        if farm.hosts and farm.hosts.tls and (warning := check_certificate(farm.hosts.tls)):
            self._say(warning)
        workspace = Workspace.opened()
        with ExitStack() as stack:
            stack.enter_context(workspace.in_use())
            ledger = Ledger(self._place, tell=self._say, resumes=not self._options.again)
            stack.enter_context(ledger)
            # Claimed while it waits for its window, too; released once the engine has ended.
            ledger.claim(farm.name)
            opening = open_engine(farm, self._output, slots, self._watch.progress)
            engine = stack.enter_context(opening)
            unsatisfied = self._report_unsatisfied(engine)
            self._wait()

            def prepare_artifacts(
                wanted: Mapping[str, Sequence[AvailableDevice]],
            ) -> PreparedArtifacts:
                from etdeploy.farm.work.prepare import prepare

                return prepare(
                    self._loaded.recipes, wanted, self._output, self._display,
                    slots=slots, workspace=workspace, apps=farm.apps,
                )  # fmt: skip

            dependencies = NightDependencies(
                prepare=prepare_artifacts,
                shelf=StoreDevicePool(self._place, f"farm {farm.name}"),
                plan=plan_night,
                headline=headline_of,
                times=earlier_times(ledger, farm, self._say),
                opened=self._opened,
                until=self._until,
                named=unsatisfied,
            )
            return run_night(self._loaded, engine, ledger, self._clock, self._watch, dependencies)

    def _report_unsatisfied(self, engine: Engine) -> frozenset[tuple[str, str]]:
        """Name what no device can measure, before anything is waited for or built."""
        unsatisfied = plan_night(self._loaded.farm, "", self._offers(engine), None).unsatisfied
        for each in unsatisfied:
            self._watch(Event(EventKind.TROUBLE, f"{each.recipe} on {each.group}: {each.reason}"))
        return frozenset((each.recipe, each.group) for each in unsatisfied)

    def _offers(self, engine: Engine) -> Sequence[AvailableDevice]:
        """Return the available devices, once hosts had time to connect."""
        offers = engine.offers()
        if self._loaded.farm.hosts is None:
            return offers
        started_s = changed_s = self._clock.seconds()
        while self._clock.seconds() - started_s < _CONNECT_S:
            cancel.checkpoint()
            self._clock.sleep(1.0)
            before = {offer.identity for offer in offers}
            offers = engine.offers()
            if {offer.identity for offer in offers} != before:
                changed_s = self._clock.seconds()
            if offers and self._clock.seconds() - changed_s >= _SETTLED_S:
                break
        return offers

    def _wait(self) -> None:
        """Wait until the window opens."""
        opened = self._opened
        if opened is None or self._clock.now() >= opened:
            return
        self._say(f"waiting for the window until {opened:%Y-%m-%d %H:%M %Z} (--now starts at once)")
        while (left_s := (opened - self._clock.now()).total_seconds()) > 0:
            cancel.checkpoint()
            self._clock.sleep(min(60.0, left_s))

    def _say(self, text: str) -> None:
        self._watch(Event(EventKind.TOLD, text))


def _conclude(
    loaded: LoadedFarm,
    place: HistoryLocation,
    end: NightEnd,
    reports: list[str],
    required_percent: float,
) -> tuple[NightReport | None, EtdeployError | None]:
    """Evaluate the night, write its reports and run `on_end`; return why that was not possible.

    A night that was stopped is reported as far as it got, so that its files replace those of the
    night before.
    """
    from etdeploy.farm.report.end import conclude
    from etdeploy.farm.report.source import find_night

    again = f"etdeploy farm report {quoted(end.night)} -f {quoted(loaded.path)}"
    try:
        night = find_night(place, end.night)
        report = conclude(
            loaded, place, night, console.warn, lambda path: reports.append(str(path)),
            is_over=not end.stopped, required_percent=required_percent,
        )  # fmt: skip
    except Interrupted:
        raise
    except EtdeployError as error:
        remedy = "\n".join(filter(None, (error.remedy, f"Then evaluate it: {again}")))
        why = f"the night could not be evaluated: {error.message}"
        return None, StoreError(why, place=error.place, remedy=remedy)
    if end.stopped or not (report.blocked or report.uncovered):
        return None if end.stopped else report, None
    why = f"nothing could be judged: {report.blocked}" if report.blocked else report.uncovered
    return report, NoVerdictError(why, place=end.night, remedy=f"See every number: {again}")
