"""Nights that a ledger keeps, as the commands read them; and the end of a night."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from etdeploy import device_pool
from etdeploy.cli.main import run_cli
from etdeploy.core import console
from etdeploy.core.errors import StoreError, UsageError
from etdeploy.farm.model import Standing, VisitState
from etdeploy.farm.night.ledger import Ledger
from etdeploy.farm.report import source
from etdeploy.farm.report.end import conclude
from etdeploy.farm.report.model import NightInfo
from etdeploy.farm.report.source import (
    Settings,
    find_night,
    list_nights,
    load_dashboard,
)
from etdeploy.farm.spec.model import LoadedFarm, Reports
from etdeploy.history.entry import Judgement
from etdeploy.history.location import HistoryLocation
from etdeploy.history.nights import KnownDevice
from etdeploy.history.store.store import open_store
from etdeploy.report.markdown import MARK
from tests.support.judged_nights import (
    FIRST,
    PHONE,
    done,
    farm,
    keep_nights,
    missed,
    place_in,
    quiet,
)


@pytest.fixture
def place(tmp_path: Path) -> HistoryLocation:
    return place_in(tmp_path)


def kept_night(place: HistoryLocation, folder: Path, *, over: bool = True) -> str:
    """A night after ten others, in which mlp became slower; a last visit is not measured."""
    with open_store(place) as store:
        made = keep_nights(store, [*quiet(10), 1.2])
    with Ledger(place, folder=folder, tell=lambda _: None) as ledger:
        night = ledger.open_night("shelf", "d", FIRST + timedelta(days=10)).night
        states = [done(10, i, run) for i, run in enumerate(made[-1], 1)] + [missed(10, 4)]
        named = [_in(night, state) for state in states]
        ledger.plan([state.visit for state in named])
        for state in named[:3]:
            ledger.running(state.visit.id, 1, PHONE, "shelf-1", "android:S1")
            for ending in state.attempts:
                ledger.ended(ending.model_copy(update={"record": None}))
        if over:
            ledger.give_up(named[3].visit.id, Standing.MISSED, "unplugged")
            ledger.finish(night)
        else:
            ledger.running(named[3].visit.id, 1, PHONE, "shelf-1", "android:S1")
    return night


def _in(night: str, state: VisitState) -> VisitState:
    own = f"{night}-{state.visit.repeat if state.attempts else 4:04d}"
    attempts = tuple(each.model_copy(update={"visit": own}) for each in state.attempts)
    of = state.visit.model_copy(update={"id": own})
    return state.model_copy(update={"visit": of, "attempts": attempts})


def test_nights_are_found_by_name(place: HistoryLocation, tmp_path: Path) -> None:
    assert list_nights(place) == []
    for name in ("last", "shelf-20261101"):
        with pytest.raises(UsageError, match="no night"):
            find_night(place, name)
    night = kept_night(place, tmp_path)
    assert find_night(place, "last").id == night
    assert find_night(place, night[-6:], "shelf").id == night
    with pytest.raises(UsageError, match="no night 'nonsense'"):
        find_night(place, "nonsense")
    with pytest.raises(UsageError, match="no night"):
        find_night(place, "last", "another farm")
    # A slip in its name.
    with pytest.raises(UsageError, match=f"mean {night}?"):
        find_night(place, night[:-1] + "x")


def test_the_end_of_a_night(
    place: HistoryLocation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    night = kept_night(place, tmp_path)
    foreign = tmp_path / "mine.md"
    foreign.write_text("mine")
    reports = Reports(junit=tmp_path / "j.xml", markdown=foreign, dashboard=tmp_path / "pages")
    told: list[str] = []
    chosen = farm(reports=reports, on_end=(str(tmp_path / "none"),))
    loaded = LoadedFarm(tmp_path / "farm.yaml", chosen, {}, {})
    wrote: list[Path] = []
    report = conclude(loaded, place, find_night(place, night), told.append, wrote.append)
    assert wrote == [tmp_path / "j.xml", tmp_path / "pages" / "index.html"]
    assert report.exit_code == 1
    assert (tmp_path / "j.xml").is_file()
    assert (tmp_path / "pages" / "index.html").is_file()
    assert foreign.read_text() == "mine"
    assert len(told) == 2
    assert str(foreign) in told[0]
    assert str(tmp_path / "none") in told[1]
    with open_store(place) as store:
        entry = store.entry(report.verdicts[0].run_ids[0])
    assert entry is not None
    assert entry.judgement is Judgement.REGRESSED


def test_a_night_that_was_stopped_is_written_and_its_command_is_not_started(
    place: HistoryLocation, tmp_path: Path
) -> None:
    night = find_night(place, kept_night(place, tmp_path))
    markdown = tmp_path / "night.md"
    markdown.write_text(f"{MARK}\nyesterday's\n")
    chosen = farm(reports=Reports(markdown=markdown), on_end=(str(tmp_path / "none"),))
    loaded = LoadedFarm(tmp_path / "farm.yaml", chosen, {}, {})
    told: list[str] = []
    report = conclude(loaded, place, night, told.append, is_over=False)
    assert night.id in markdown.read_text()
    assert told == []
    with open_store(place) as store:
        entry = store.entry(report.verdicts[0].run_ids[0])
    assert entry is not None
    assert entry.judgement is None


def test_the_commands(
    place: HistoryLocation, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    night = kept_night(place, tmp_path, over=False)
    store = ("--store", str(place.file))
    assert run_cli(["farm", "report", *store]) == 0
    assert "REGRESSED" in capsys.readouterr().out
    page = tmp_path / "n.html"
    assert run_cli(["farm", "report", *store, "--html", str(page), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["files"] == [str(page)]
    assert told["verdicts"][0]["kind"] == "regressed"
    # Its process has ended, and took nothing with it.
    assert run_cli(["farm", "status", *store]) == 0
    assert "stopped: etdeploy farm" in capsys.readouterr().out
    with Ledger(place, folder=tmp_path, tell=lambda _: None) as ledger:
        assert ledger.open_night("shelf", "d", FIRST + timedelta(days=10)).night == night
        ledger.running(f"{night}-0004", 2, PHONE, "shelf-1", "android:S1")
        assert run_cli(["farm", "status", *store]) == 0
        assert "measuring: mlp" in capsys.readouterr().out
        assert run_cli(["farm", "status", *store, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    devices = {each["identity"]: each for each in told["devices"]}
    assert (told["stopped"], devices[PHONE]["now"]) == (False, "measuring")
    assert run_cli(["farm", "status", *store, "--json", "--watch"]) == 2
    assert run_cli(["farm", "report", "nonsense", *store]) == 2
    capsys.readouterr()


def test_open_alerts_are_in_every_form_of_the_report(
    place: HistoryLocation, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    night = kept_night(place, tmp_path)
    reports = Reports(
        html=tmp_path / "n.html", markdown=tmp_path / "n.md", junit=tmp_path / "n.xml"
    )
    loaded = LoadedFarm(tmp_path / "farm.yaml", farm(reports=reports), {}, {})
    report = conclude(loaded, place, find_night(place, night), lambda _: None)
    # The alert that this night opened is in its own report.
    [group] = report.alerts
    [alert] = group.alerts
    assert (alert.night, alert.state, report.exit_code) == (night, "open", 1)
    facts = (alert.since, "farm bisect", group.cause.split()[-1])
    for file in ("n.html", "n.md", "n.xml"):
        text = (tmp_path / file).read_text(encoding="utf-8")
        assert all(fact in text for fact in facts), file
    store = ("--store", str(place.file))
    assert run_cli(["alerts", *store]) == 0
    listed = capsys.readouterr().out.strip()
    assert run_cli(["farm", "report", *store]) == 0
    assert listed in capsys.readouterr().out
    monkeypatch.setenv("ETDEPLOY_STORE", str(place.file))
    assert run_cli(["alerts", "ack", "1", "--by", "ann"]) == 0
    capsys.readouterr()
    junit = tmp_path / "n.xml"
    assert run_cli(["farm", "report", *store, "--json", "--junit", str(junit)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["exit_code"], told["worse"][0]["acknowledged"]) == (0, "acknowledged by ann")
    assert told["headline"].startswith("1 regressed and acknowledged, 1 missed; ")
    [shown] = told["alerts"][0]["alerts"]
    assert (shown["state"], shown["who"], shown["commits"]) == (
        "acknowledged",
        "ann",
        alert.commits,
    )
    xml = junit.read_text(encoding="utf-8")
    assert "<failure" not in xml
    assert "alert 1: acknowledged by ann, since " in xml


def test_a_report_may_require_coverage(
    place: HistoryLocation, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    kept_night(place, tmp_path)
    named = ("farm", "report", "--store", str(place.file), "--require-coverage")
    assert run_cli([*named, "50"]) == 0
    capsys.readouterr()
    assert run_cli([*named, "90"]) == 6
    shown = capsys.readouterr()
    assert "1 of 2 pairs judged" in shown.out.splitlines()[0]
    assert "error (no verdict): " in shown.err
    assert "that is 50 % of them, and 90 % are required" in shown.err


def test_the_dashboard_has_the_latest_nights(place: HistoryLocation, tmp_path: Path) -> None:
    settings = Settings(farm())
    assert load_dashboard(place, settings).reports == ()
    first = kept_night(place, tmp_path)
    with Ledger(place, folder=tmp_path, tell=lambda _: None) as ledger:
        second = ledger.open_night("shelf", "d", FIRST + timedelta(days=11)).night
        visit = missed(11, 1).visit.model_copy(update={"id": f"{second}-0001"})
        ledger.plan([visit])
        board = load_dashboard(place, settings)
    assert [report.night.id for report in board.reports] == [second, first]
    assert board.status.visits == 1
    assert load_dashboard(place, settings, "another farm").reports == ()
    phone = KnownDevice(identity=PHONE, device="android:S1")
    device_pool.quarantine_device(place, phone, "hot", "ann@wolf")
    devices = load_dashboard(place, settings).reports[1].devices
    assert {each.identity: each.quarantined for each in devices}[PHONE] == "hot"


def test_a_watch_outlives_a_history_that_is_away(
    place: HistoryLocation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    kept_night(place, tmp_path, over=False)
    told: list[str] = []

    def watch(text: Callable[[], str], _: float) -> None:
        told.append(text())
        with monkeypatch.context() as patch:
            patch.setattr(source, "list_nights", _away)
            told.append(text())
        told.append(text())

    monkeypatch.setattr(console, "watch", watch)
    line = ["farm", "status", "--watch", "--store", str(place.file)]
    assert run_cli(line) == 0
    first, second, third = told
    assert second.startswith(f"{first}\n\n")
    assert second.endswith("the database is down")
    assert third == first
    monkeypatch.setattr(source, "list_nights", _away)
    assert run_cli(line) == StoreError.exit_code
    assert "the database is down" in capsys.readouterr().err


def _away(*_: object) -> list[NightInfo]:
    raise StoreError("the database is down")
