"""The end of a night: it is judged, written and told."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from etdeploy.core.errors import EtdeployError, Interrupted
from etdeploy.farm.report.files import Wanted, write
from etdeploy.farm.report.live.dashboard import write_dashboard
from etdeploy.farm.report.model import NightInfo, NightReport
from etdeploy.farm.report.notify import notify
from etdeploy.farm.report.source import Settings, board_of, judged, seen
from etdeploy.farm.spec.model import LoadedFarm
from etdeploy.farm.verdicts.night import note
from etdeploy.history.place import Place

Tell = Callable[[str], None]


def settings_of(loaded: LoadedFarm) -> Settings:
    """What a farm.yaml says about verdicts."""
    return Settings(loaded.farm, {label: each.path for label, each in loaded.recipes.items()})


def conclude(
    loaded: LoadedFarm,
    place: Place,
    night: NightInfo,
    tell: Tell,
    wrote: Callable[[Path], None] = lambda _: None,
    *,
    is_over: bool = True,
) -> NightReport:
    """Judges a night, notes the verdicts, writes the farm.yaml's reports, tells who wants to know.

    Args:
        loaded: The farm.yaml.
        place: The history, with the night's visits and records.
        night: Which.
        tell: Is told what could not be written, noted or told, in a sentence each: none of that
            changes how the night ended.
        wrote: Is told each report that was written, the dashboard by its first page.
        is_over: Whether the night is over; one that was stopped is only written.

    Raises:
        StoreError: The history cannot be read: nothing is judged, written or told.
        Interrupted: It was stopped.
    """
    from etdeploy.history.store.store import open_store

    settings = settings_of(loaded)
    report = judged(place, seen(place, night), settings)

    def noted() -> None:
        with open_store(place) as store:
            note(store, report.verdicts)

    if is_over:
        _try(noted, "the verdicts are not noted in the history", tell)
    wanted = loaded.farm.reports
    for one in (
        Wanted(html=wanted.html), Wanted(markdown=wanted.markdown), Wanted(junit=wanted.junit),
    ):  # fmt: skip
        _try(partial(_written, report, one, wrote), "a report is missing", tell)
    if folder := wanted.dashboard:
        _try(
            lambda: wrote(write_dashboard(board_of(place, settings, night.farm), folder)),
            "the dashboard is not up to date",
            tell,
        )
    for trouble in notify(report, loaded.farm.notify) if is_over else ():
        tell(trouble)
    return report


def _written(report: NightReport, one: Wanted, wrote: Callable[[Path], None]) -> None:
    for path in write(report, one):
        wrote(path)


def _try(action: Callable[[], object], otherwise: str, tell: Tell) -> None:
    try:
        action()
    except Interrupted:
        raise
    except (EtdeployError, OSError) as error:
        tell(f"{otherwise}: {error}")
