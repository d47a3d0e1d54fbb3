"""Nights of all kinds in both kinds of history, and the dashboard in a browser."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from etdeploy.bench.records.record import RunRecord
from etdeploy.farm.night.ledger import Ledger
from etdeploy.farm.report.model import NightReport
from etdeploy.farm.report.pages import write_dashboard
from etdeploy.farm.report.source import (
    Settings,
    find_night,
    load_dashboard,
    load_report,
    load_snapshot,
)
from etdeploy.farm.verdicts.pair import VerdictKind
from etdeploy.history.location import HistoryLocation, require_location
from etdeploy.history.store.store import open_store
from tests.support.bench_values import make_device
from tests.support.browser import chromium, opened
from tests.support.judged_nights import FIRST, PHONE, done, farm, keep_nights, place_in, quiet
from tests.support.postgres import Postgres, postgres  # noqa: F401 - a fixture

pytestmark = pytest.mark.integration
_SETTINGS = Settings(farm())


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> HistoryLocation:
    if request.param == "sqlite":
        return place_in(tmp_path)
    server: Postgres = request.getfixturevalue("postgres")
    return require_location(server.new_database(tmp_path.name))


def _kept(place: HistoryLocation, folder: Path, day: int, runs: Sequence[RunRecord]) -> str:
    """A night that measured these runs."""
    with Ledger(place, folder=folder, tell=lambda _: None) as ledger:
        night = ledger.open_night("shelf", "d", FIRST + timedelta(days=day)).night
        states = [done(day, i, run) for i, run in enumerate(runs, 1)]
        of = [s.visit.model_copy(update={"id": f"{night}-{i:04d}"}) for i, s in enumerate(states)]
        ledger.plan(of)
        for visit, state in zip(of, states, strict=True):
            ledger.running(visit.id, 1, PHONE, "shelf-1", "android:S1")
            [ending] = state.attempts
            ledger.ended(ending.model_copy(update={"visit": visit.id, "record": None}))
        ledger.finish(night)
    return night


def _report(place: HistoryLocation, night: str) -> NightReport:
    return load_report(place, load_snapshot(place, find_night(place, night)), _SETTINGS)


def test_a_history_of_all_kinds_of_nights(place: HistoryLocation, tmp_path: Path) -> None:
    first = quiet(1)
    with open_store(place) as store:
        [runs] = keep_nights(store, first)
    night = _kept(place, tmp_path, 0, runs)
    [verdict] = _report(place, night).verdicts
    assert verdict.kind is VerdictKind.NOT_JUDGED
    assert verdict.reason.startswith("0 earlier nights")
    with open_store(place) as store:
        keep_nights(store, quiet(4, seed=2), first=1)
        # One repeat instead of three; then the phone has another name.
        keep_nights(store, quiet(3, seed=3), first=5, repeats=1)
        renamed = make_device("android", name="android:10.0.0.7:5555", serial="S1")
        keep_nights(store, quiet(2, seed=4), first=8, device=renamed)
        [same] = keep_nights(store, [1.0], first=10, repeats=1)
        [slower] = keep_nights(store, [1.25], first=11, device=renamed)
    [verdict] = _report(place, _kept(place, tmp_path, 10, same)).verdicts
    assert verdict.kind is VerdictKind.NO_DIFFERENCE
    night = _kept(place, tmp_path, 11, slower)
    report = _report(place, night)
    [verdict] = report.verdicts
    assert verdict.kind is VerdictKind.REGRESSED
    # One series under its first name; what to do names the phone as it is now.
    assert verdict.device.startswith("android:S1 ")
    assert " android:10.0.0.7:5555 " in verdict.remedy
    assert report.exit_code == 1
    assert len(report.trends) == 1
    board = load_dashboard(place, _SETTINGS)
    assert board.reports[0].night.id == night
    assert len(board.reports) == 3


def test_the_dashboard_on_a_phone(tmp_path: Path) -> None:
    place = place_in(tmp_path)
    with open_store(place) as store:
        made = keep_nights(store, [*quiet(10), 1.2], recipe="a-name-without-a-space" * 20)
    night = _kept(place, tmp_path, 10, made[-1])
    index = write_dashboard(load_dashboard(place, _SETTINGS), tmp_path / "pages")
    pages = ((index, "light"), (index.parent / f"night-{night}.html", "dark"))
    with chromium() as browser:
        for file, scheme in pages:
            with opened(browser, file, 360, scheme) as page:
                assert page.evaluate("document.documentElement.scrollWidth") <= 360, file.name
                assert not page.locator("#trouble").is_visible()
